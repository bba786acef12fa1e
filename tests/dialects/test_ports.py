"""The first ports of Google's ViT to torch: what their converters make of its files, and where they part from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
NAMES = ("jeonsworld/jeonsworld-tiny", "pretrained-vit/pretrained-vit-tiny")
RESIZE = ("--set", "grid=4x4", "--edit", "resize-position:to=6x6,rule=bilinear-corners")
LAST = ("pre_logits/kernel", "pre_logits/bias", "head/kernel", "head/bias")


def weights(name: str) -> dict[str, Tensor]:
    return torch.load(FOLDER / f"{name}.pth", weights_only=True)


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


@pytest.fixture
def google(tmp_path: Path) -> Path:
    """Return Google's file in the published numbering, without its last layers."""
    arrays = np.load(FOLDER / "npz" / "vit-jax-published.npz")
    path = tmp_path / "google.npz"
    np.savez(path, **{k: v for k, v in arrays.items() if k not in LAST})
    return path


@pytest.mark.parametrize(
    ("golden", "dialect", "edits", "head"),
    [
        ("jeonsworld/jeonsworld-loaded", "jeonsworld", [*RESIZE], True),
        ("pretrained-vit/pretrained-vit-converted", "pretrained-vit", [], False),
    ],
    ids=["jeonsworld", "pretrained-vit"],
)
def test_google_s_file_becomes_what_the_port_s_own_converter_makes(
    golden: str, dialect: str, edits: list[str], head: bool, google: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.safetensors"
    assert run(["convert", str(google), str(out), "--to", dialect, *edits]) == 0
    written, theirs = load_file(out), weights(golden)
    if head:
        # Its loader was told to leave the classifier zero.
        assert not theirs.pop("head.weight").any()
        theirs.pop("head.bias")
    assert written.keys() == theirs.keys()
    table = next(k for k in theirs if "pos" in k)
    assert near(written.pop(table), theirs.pop(table)) < 1e-12
    assert all(torch.equal(written[k], theirs[k]) for k in theirs)


@pytest.mark.parametrize("name", NAMES, ids=["jeonsworld", "pretrained-vit"])
def test_timm_computes_it_too_and_the_way_back_is_exact(name: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    trace = load_file(FOLDER / f"{name}.trace.safetensors")
    there, back = tmp_path / "t.safetensors", tmp_path / "b.safetensors"
    assert run(["convert", str(FOLDER / f"{name}.pth"), str(there), "--to", "timm", "--set", "heads=2"]) == 0
    module: Any = timm.models.VisionTransformer(
        img_size=(16, 24), patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5, mlp_ratio=1.5
    )
    module.double().eval().load_state_dict(load_file(there))
    assert near(module(trace["input"]), trace["output"]) < 1e-12
    assert run(["convert", str(there), str(back), "--to", name.partition("/")[0]]) == 0
    assert all(torch.equal(v, weights(name)[k]) for k, v in load_file(back).items())
    with safe_open(there, "pt") as f:
        facts = f.metadata()["vitconv.facts"]
    assert '"activation":"gelu"' in facts
    assert '"norm_eps":1e-06' in facts
    assert '"position_resize":"bilinear-corners"' in facts


REPRESENTATION = FOLDER / "pretrained-vit" / "pretrained-vit-representation.pth"


def test_a_layer_of_representation_ahead_of_the_norm_goes_nowhere_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the pooling, where Google and torchvision have it, it computes something else."""
    out = tmp_path / "o.safetensors"
    for target in ("vit-jax", "torchvision", "timm", "jeonsworld"):
        assert run(["convert", str(REPRESENTATION), str(out), "--to", target, "--axis", "h=2"]) == 3
        assert "layer with tanh on every token, ahead of the final norm" in capsys.readouterr().err
        assert not out.exists()
    # Its own loader leaves the layer out unless it is told otherwise.
    assert run(["convert", str(REPRESENTATION), str(out), "--to", "timm", "--drop", "trunk_dense.*"]) == 0


def test_google_s_layer_of_representation_is_read_where_google_has_it_on_request(tmp_path: Path) -> None:
    out, back = tmp_path / "o.npz.safetensors", tmp_path / "b.safetensors"
    told = ["--set", "from.representation=google"]
    assert run(["convert", str(REPRESENTATION), str(out), "--to", "torchvision", *told]) == 0
    assert torch.equal(
        load_file(out)["heads.pre_logits.weight"], weights(str(REPRESENTATION)[:-4])["pre_logits.weight"]
    )
    assert run(["convert", str(out), str(back), "--to", "pretrained-vit"]) == 3


@pytest.mark.parametrize(
    ("name", "key", "shape", "reason"),
    [
        (NAMES[0], "transformer.embeddings.hybrid_model.root.conv.weight", (64, 3, 7, 7), "a hybrid: a ResNet"),
        (NAMES[0], "part_head.0.weight", (5, 16), "TransFG"),
        (NAMES[0], "transformer.encoder.part_layer.attn.query.weight", (16, 16), "TransFG"),
    ],
    ids=["hybrid", "part-head", "part-layer"],
)
def test_what_stands_on_its_keys_is_refused_with_the_reason(
    name: str, key: str, shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        translate({**weights(name), key: torch.zeros(shape)}, None, "canonical")
