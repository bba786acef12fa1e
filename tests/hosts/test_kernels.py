"""`kernels=` is an option of every host: what runs, why, and that the numbers stay what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.hosts.base.host import Built, Spec
from vitconv.parity.verify import verify
from vitconv.registry import HOSTS, load, load_all

FLATTEN = Path(__file__).parents[2] / "fixtures" / "golden" / "flatten"
TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


def timm(**options: Any) -> Built:
    torch.manual_seed(0)
    return load(HOSTS, "timm").build(Spec("vit_tiny_patch16_224", {**TINY, **options}))


def test_every_host_has_the_option() -> None:
    assert all("kernels" in host.options for host in load_all(HOSTS, plugins=False).values())


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="kernels=cuda: expected one of auto, torch, triton, compile"):
        timm(kernels="cuda")


@pytest.mark.skipif(
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="Triton can run here"
)
def test_triton_is_refused_with_its_reason_where_it_cannot_run() -> None:
    with pytest.raises(Refused, match=r"cannot run: .*the tensors are on the CPU"):
        timm(kernels="triton")


def test_plain_pytorch_is_said_and_changes_nothing() -> None:
    plain, asked = timm(), timm(kernels="torch")
    assert any(note.startswith("kernels: plain PyTorch") for note in asked.notes)
    images = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(plain(images), asked(images))


@pytest.mark.slow
def test_compiled_blocks_give_the_same_numbers() -> None:
    plain, asked = timm(), timm(kernels="compile")
    assert any("2 blocks compiled" in note for note in asked.notes)
    images = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        assert (plain(images) - asked(images)).abs().max() < 1e-5


SCRIPT = """
import torch
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load
host, tiny = load(HOSTS, "timm"), {tiny}
torch.manual_seed(0)
plain = host.build(Spec("vit_tiny_patch16_224", tiny))
asked = host.build(Spec("vit_tiny_patch16_224", {{**tiny, "kernels": "triton"}}))
asked.module.load_state_dict(plain.module.state_dict())
x = torch.randn(1, 3, 16, 16)
(a, b) = (net(x) for net in (plain, asked))
for y in (a, b):
    y.square().sum().backward()
print("logits", float((a - b).abs().max() / a.abs().max()))
pairs = zip(plain.module.parameters(), asked.module.parameters())
print("grads", max(float((p.grad - q.grad).abs().max() / (p.grad.abs().max() + 1e-6)) for p, q in pairs))
print(*asked.notes)
double = asked.module.double()
print("double", double(x.double()).dtype)
"""


@pytest.mark.slow
def test_triton_in_the_interpreter_gives_the_same_numbers() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    code = SCRIPT.format(tiny=TINY)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert float(said["logits"]) < 1e-5
    assert float(said["grads"]) < 1e-4
    assert "5 LayerNorms" in said["kernels:"]
    assert "triton (asked for)" in said["kernels:"]
    # In float64 the reference runs, since no kernel does.
    assert said["double"] == "torch.float64"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ({"attention": "focused-original"}, {"attention": "focused-stable", "focused_eps_mode": "sum"}, 0),
        ({"attention": "focused-original"}, {"attention": "focused-simplified"}, 1),
        ({"attention": "focused-upstream-fix"}, {"attention": "softmax"}, 1),
    ],
    ids=["original-ours", "original-simplified", "focused-softmax"],
)
def test_a_plain_network_with_focused_attention(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], code: int
) -> None:
    from safetensors.torch import save_file

    save_file(timm().module.state_dict(), tmp_path / "vit.safetensors")
    known = {"heads": 2, "norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu", "pooling": "token"}
    known |= {"norm_placement": "pre", "focusing_factor": 3}
    file = tmp_path / "vit.safetensors"
    assert verify(file, file, set_a={**known, **a}, set_b={**known, **b}, precisions=()).exit_code == code


@pytest.mark.slow
def test_the_fix_of_upstream_has_no_finite_gradient_in_half_precision_and_ours_has() -> None:
    path = FLATTEN / "flatten-fixed-swin-model-LLSS.pth"
    ours = {"attention": "focused-stable"}
    half = ("amp-fp16",)
    assert verify(path, path, set_a=ours, set_b={**ours, "kernels": "torch"}, precisions=half).exit_code == 0
    result = verify(path, path, set_a={"attention": "focused-upstream-fix"}, set_b=ours, precisions=half)
    assert result.exit_code == 3
    said = [row.detail for stage in result.stages for row in stage.rows]
    assert any("NaN or Inf" in text for text in said)
