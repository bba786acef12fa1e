"""One seed per tensor name: the same network whatever else it has, wherever it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitconv.conversion.diff import diff
from vitconv.conversion.recognise import recognise
from vitconv.errors import Refused, UsageError
from vitconv.initialise.audit import audit_file
from vitconv.initialise.network import Job, architecture
from vitconv.initialise.write import initialise
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.distribution import truncated_sigma
from vitconv.inits.base.draw import draw, sample
from vitconv.registry import INITS, load

Make = Callable[..., Architecture]
SIZE = {"dim": "64", "heads": "4", "depth": "2", "image": "32", "patch": "8", "classes": "7"}


def test_a_tensor_does_not_shift_the_draws_of_another(make: Make) -> None:
    scheme = load(INITS, "timm")
    small, large = draw(make(), scheme, 3), draw(make(layer_scale="true", sub_norm="true", registers="4"), scheme, 3)
    shared = [name for name in small if name in large]
    assert len(shared) > 40
    assert all(torch.equal(small[name], large[name]) for name in shared)


def test_draws_depend_on_the_seed_only(make: Make) -> None:
    scheme = load(INITS, "jax")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = draw(make(), scheme, 3)
    torch.manual_seed(99)
    assert all(torch.equal(t, b) for t, b in zip(a.values(), draw(make(), scheme, 3).values(), strict=True))
    c = draw(make(), scheme, 4)
    assert not torch.equal(a["blocks.0.attn.q.weight"], c["blocks.0.attn.q.weight"])
    assert not torch.equal(a["blocks.0.attn.q.weight"], a["blocks.1.attn.q.weight"])
    torch.manual_seed(0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_cut_leaves_no_edge_behind() -> None:
    d = truncated_sigma(0.02)
    x = sample(d, (2000, 1000), 0)
    assert int((x.abs() >= d.high).sum()) == 0
    assert int((x == -2.0).sum()) == 0


DIALECTS = ["canonical", "timm", "xformers", "xformers-fused", "hf-vit", "torchvision"]


@pytest.mark.parametrize("to", DIALECTS[1:])
def test_the_same_network_in_every_dialect_bit_for_bit(to: str, tmp_path: Path) -> None:
    for name in ("canonical", to):
        initialise("vit_tiny", tmp_path / name, Job("mae", to=name, seed=5, size=SIZE))
    a, b = (recognise(tmp_path / name / "model.safetensors") for name in ("canonical", to))
    with a.checkpoint, b.checkpoint:
        found = diff(a, b)
    assert found.same, [p for p in found.pairs if p.verdict != "same"]


def test_a_checkpoint_is_initialised_in_its_own_architecture_and_dialect(tmp_path: Path) -> None:
    initialise("vit_tiny", tmp_path / "a.safetensors", Job("timm", to="hf-vit", size=SIZE))
    made = initialise(str(tmp_path / "a.safetensors"), tmp_path / "b.safetensors", Job("jax", seed=1))
    assert made.prepared.order.to == "hf-vit"
    audited = audit_file(tmp_path / "b.safetensors")
    assert audited.training.state == "never trained"
    assert "jax" in audited.scheme
    with pytest.raises(UsageError, match="its own"):
        architecture(str(tmp_path / "a.safetensors"), Job("jax", size={"depth": "3"}))


def test_a_change_is_said_and_written(tmp_path: Path) -> None:
    job = Job("deepnorm", to="xformers", size=SIZE, changes={"norm": "deepnorm"})
    made = initialise("vit_tiny", tmp_path / "a.safetensors", job)
    assert made.changes == ("norms: pre became deepnorm, alpha = 1.4142 in the residual",)
    assert made.bound == pytest.approx(1.0, rel=0.05)
    with recognise(tmp_path / "a.safetensors").checkpoint as checkpoint:
        assert '"scheme": "deepnorm"' in checkpoint.metadata["init"]
        assert '"norm_placement":"deepnorm"' in checkpoint.metadata["vitconv.facts"]


def test_a_wrong_architecture_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="norm=deepnorm"):
        initialise("vit_tiny", tmp_path / "a.safetensors", Job("deepnorm", size=SIZE))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["vit_small_patch16_224", "vit_base_patch32_clip_224", "vit_small_patch14_reg4_dinov2",
     "deit_tiny_distilled_patch16_224",
     "deit3_small_patch16_224", "vit_base_patch16_rpn_224", "vit_medium_patch16_reg4_gap_256",
     "vit_giant_patch14_dinov2"],
)  # fmt: skip
def test_a_name_gives_timms_own_shapes(name: str) -> None:
    timm = pytest.importorskip("timm")
    from vitconv.layout.detect import detect
    from vitconv.layout.network import decode
    from vitconv.layout.semantics import Semantics
    from vitconv.registry import DIALECTS as KIND

    with torch.device("meta"):
        state = timm.create_model(name, weight_init="skip" if "rpn" not in name else "").state_dict()
    arch, _ = architecture(name, Job("timm"))
    match = detect({k: tuple(t.shape) for k, t in state.items()}, [load(KIND, "timm")], facts=arch.facts.known())
    assert dict(arch.shapes) == dict(decode(match, dict.fromkeys(state, "F32"), Semantics()).shapes)


def test_a_name_that_is_no_plain_vit_is_refused() -> None:
    with pytest.raises(Refused, match=r"no plain ViT|class token"):
        architecture("vit_base_patch16_siglip_224", Job("timm"))
    with pytest.raises(UsageError, match="vit_tiny"):
        architecture("vit_tinny", Job("timm"))
