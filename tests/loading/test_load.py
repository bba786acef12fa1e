"""A ready module from any checkpoint: strictly loaded, in eval mode, the facts from where they are stated."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconv
from vitconv.cli.main import run
from vitconv.errors import NotRecognised, Refused, UsageError

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
FACTS = {
    "heads": 4, "norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu", "grid": (4, 4), "pooling": "token",
    "norm_placement": "pre", "kv_normalised": True, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5),
}  # fmt: skip
HOSTS = ("timm", "transformers", "torchvision", "reference")


@pytest.fixture(scope="module")
def timm_vit() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    gen = torch.Generator().manual_seed(1)
    module = VisionTransformer(**SMALL)
    with torch.no_grad():
        for name, p in module.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            p.copy_(around + 0.3 * torch.randn(p.shape, generator=gen))
    return module.eval()


@pytest.fixture
def bare(tmp_path: Path, timm_vit: Any) -> Path:
    save_file(timm_vit.state_dict(), tmp_path / "w.safetensors", metadata={"format": "pt"})
    return tmp_path / "w.safetensors"


def answer(module: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = module.double()(x)
    # The network of the first report gives its logits by name.
    return out["CLS"] if type(out) is dict else getattr(out, "logits", out)


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("host", [*HOSTS, "xformers-style", "xformers"])
def test_every_library_computes_the_same(bare: Path, timm_vit: Any, host: str) -> None:
    if host == "xformers":
        pytest.importorskip("xformers.factory", reason="xformers 0.0.28.post3 is not installed")
    module = vitconv.load(bare, host, facts=FACTS)
    assert not module.training
    assert not any(m.training for m in module.modules())
    import copy

    assert torch.allclose(answer(module, X), answer(copy.deepcopy(timm_vit), X), rtol=0, atol=1e-10)


@pytest.mark.parametrize("host", HOSTS)
def test_what_is_unknown_is_asked_for(bare: Path, host: str) -> None:
    with pytest.raises(Refused, match="heads"):
        vitconv.load(bare, host, facts={k: v for k, v in FACTS.items() if k != "heads"})


def test_facts_of_the_metadata_and_of_a_configuration(bare: Path, tmp_path: Path) -> None:
    sets = [w for k, v in FACTS.items() for w in ("--set", f"{k}={_text(v)}")]
    assert run(["convert", str(bare), str(tmp_path / "hf"), "--to", "hf-vit", *sets]) == 0
    vitconv.load(tmp_path / "hf", "timm")
    (tmp_path / "hf" / "config.json").unlink()
    vitconv.load(tmp_path / "hf", "timm")
    plain = tmp_path / "plain.safetensors"
    save_file(load_file(tmp_path / "hf" / "model.safetensors"), plain)
    with pytest.raises(Refused, match="heads"):
        vitconv.load(plain, "timm")


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_of_the_file_stays(tmp_path: Path, timm_vit: Any, dtype: torch.dtype) -> None:
    state = {k: v.to(dtype) for k, v in timm_vit.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    module = vitconv.load(tmp_path / "w.safetensors", "timm", facts=FACTS)
    assert all(torch.equal(v, state[k]) and v.dtype == dtype for k, v in module.state_dict().items())


def test_a_training_file_with_branches(tmp_path: Path, timm_vit: Any) -> None:
    state = timm_vit.state_dict()
    other = {f"module.{k}": v + 1 for k, v in state.items()}
    torch.save({"model": other, "model_ema": state, "epoch": 3}, tmp_path / "t.pth")
    module = vitconv.load(tmp_path / "t.pth", facts=FACTS)
    assert torch.equal(module.state_dict()["norm.bias"], state["norm.bias"])
    module = vitconv.load(tmp_path / "t.pth", facts=FACTS, branch="model")
    assert torch.equal(module.state_dict()["norm.bias"], state["norm.bias"] + 1)


def test_further_arguments_of_the_constructor(bare: Path) -> None:
    module = vitconv.load(bare, "timm", facts=FACTS, options={"drop_path_rate": 0.5})
    assert module.blocks[1].drop_path1.drop_prob == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("host", "error", "words"),
    [
        ("keras", UsageError, "keras"),
        ("python", UsageError, "MODULE:FACTORY"),
        ("timm", NotRecognised, "stranger"),
    ],
)
def test_what_is_refused(bare: Path, tmp_path: Path, host: str, error: type[Exception], words: str) -> None:
    path = bare
    if error is NotRecognised:
        path = tmp_path / "s.safetensors"
        save_file({**load_file(bare), "stranger": torch.ones(2)}, path)
    with pytest.raises(error, match=words):
        vitconv.load(path, host, facts=FACTS)


def test_a_file_of_a_deeper_network_than_its_configuration_says_is_not_half_loaded(bare: Path, tmp_path: Path) -> None:
    sets = [w for k, v in FACTS.items() for w in ("--set", f"{k}={_text(v)}")]
    assert run(["convert", str(bare), str(tmp_path / "t"), "--to", "timm", *sets]) == 0
    path = tmp_path / "t" / "config.json"
    config = json.loads(path.read_text())
    config["model_args"]["depth"] = 1
    path.write_text(json.dumps(config))
    module = vitconv.load(tmp_path / "t", "timm", facts=FACTS)
    assert len(module.blocks) == 2


@pytest.mark.parametrize("host", ["timm", "transformers", "torchvision", "xformers-style"])
def test_what_nothing_says_is_asked_for_in_words_of_python(host: str, tmp_path: Path) -> None:
    state = {
        "cls_token": torch.randn(1, 1, 8),
        "pos_embed": torch.randn(1, 5, 8),
        "patch_embed.proj.weight": torch.randn(8, 3, 2, 2),
        "patch_embed.proj.bias": torch.randn(8),
        "norm.weight": torch.randn(8),
        "norm.bias": torch.randn(8),
        "head.weight": torch.randn(3, 8),
        "head.bias": torch.randn(3),
    }
    linears = {"attn.qkv": (24, 8), "attn.proj": (8, 8), "mlp.fc1": (16, 8), "mlp.fc2": (8, 16)}
    for block in ("blocks.0.", "blocks.1."):
        state |= {f"{block}{name}": torch.randn(8) for n in "12" for name in (f"norm{n}.weight", f"norm{n}.bias")}
        state |= {f"{block}{name}.weight": torch.randn(shape) for name, shape in linears.items()}
        state |= {f"{block}{name}.bias": torch.randn(shape[0]) for name, shape in linears.items()}
    torch.save(state, tmp_path / "s.pth")
    with pytest.raises(Refused, match="do not say") as refused:
        vitconv.load(tmp_path / "s.pth", host)
    said = str(refused.value)
    assert "--set" not in said
    stated = re.search(r"facts=(\{.*?\})", said)
    assert stated is not None
    facts = ast.literal_eval(re.sub(r": (N|\.\.\.)", ": 2", stated[1]).replace("1e-6|1e-5|1e-12", "1e-6"))
    assert facts["heads"] == 2
