"""vit-pytorch's SimpleViT: its table is made anew, so it is written by name and compared on the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import NotRecognised, Refused
from vitconv.layout.semantics import Semantics
from vitconv.layout.sincos import grid_of, sincos
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "vit-pytorch"
NAMES = (
    "vit-pytorch-simple-0.40.2",
    "vit-pytorch-simple-1.2.0",
    "vit-pytorch-simple-1.6.9",
    "vit-pytorch-simple-registers-1.26.14",
)
SIDES = {"p": 4, "q": 4}
TELL = ["--axis", "p=4", "--axis", "q=4", "--set", "grid=4x6"]
MAKE = ["--edit", "make-position:rule=big-vision"]


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return torch.load(FOLDER / f"{name}.pth", weights_only=True), load_file(FOLDER / f"{name}.trace.safetensors")


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def reference(path: Path) -> nn.Module:
    weights = load_file(path)
    facts = Semantics(
        heads=2, norm_placement="pre", norm_eps=1e-5, final_norm_eps=1e-5, embed_norm_eps=1e-5, activation="gelu",
        attention="softmax", kv_normalised=True, pooling="avg", position="sincos", grid=(4, 6),
    )  # fmt: skip
    vit = ViT(config_from_shapes({k: tuple(v.shape) for k, v in weights.items()}, facts)).double().eval()
    vit.load_state_dict(weights)
    return vit


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_computes_what_its_code_did(name: str, tmp_path: Path) -> None:
    """The traces are of the code with its table in float64."""
    _, trace = golden(name)
    out = tmp_path / "o.safetensors"
    assert run(["convert", str(FOLDER / f"{name}.pth"), str(out), "--to", "canonical", *TELL, *MAKE]) == 0
    vit = reference(out)
    x = trace["input"].clone().requires_grad_()
    y = vit(x)
    assert near(y, trace["output"]) < 1e-12
    y.backward(trace["grad_output"])
    assert x.grad is not None
    assert near(x.grad, trace["grad.input"]) < 1e-11


@pytest.mark.parametrize("rule", ["mae", "moco-v3"])
def test_a_table_by_another_rule_computes_something_else(rule: str, tmp_path: Path) -> None:
    _, trace = golden(NAMES[2])
    out = tmp_path / "o.safetensors"
    command = ["convert", str(FOLDER / f"{NAMES[2]}.pth"), str(out), "--to", "canonical", *TELL]
    assert run([*command, "--edit", f"make-position:rule={rule}"]) == 0
    assert near(reference(out)(trace["input"]), trace["output"]) > 1e-3


def test_timm_computes_it_too_and_the_way_back_is_exact(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    weights, trace = golden(NAMES[0])
    there, back = tmp_path / "t.safetensors", tmp_path / "b.safetensors"
    assert run(["convert", str(FOLDER / f"{NAMES[0]}.pth"), str(there), "--to", "timm", *TELL, *MAKE]) == 0
    module: Any = timm.models.VisionTransformer(
        img_size=(16, 24), patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5, class_token=False,
        global_pool="avg", fc_norm=True, mlp_ratio=1.5, qkv_bias=False,
        norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-5, **{x: y for x, y in k.items() if x != "eps"}),
    ).double().eval()  # fmt: skip
    written = load_file(there)
    module.load_state_dict({k: v for k, v in written.items() if "qkv.bias" not in k})
    assert near(module(trace["input"]), trace["output"]) < 1e-12
    assert run(["convert", str(there), str(back), "--to", "vit-pytorch-simple"]) == 0
    again = load_file(back)
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[k], weights[k]) for k in weights)


def test_without_the_edit_a_stored_table_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.safetensors"
    assert run(["convert", str(FOLDER / f"{NAMES[0]}.pth"), str(out), "--to", "hf-ijepa", *TELL]) == 3
    said = capsys.readouterr().err
    assert "--edit make-position:rule=KIND" in said
    assert not out.exists()


def test_a_norm_of_pixels_is_kept_only_in_a_residue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, residue = tmp_path / "o.safetensors", tmp_path / "r.safetensors"
    command = ["convert", str(FOLDER / f"{NAMES[1]}.pth"), str(out), "--to", "timm-naflex", *TELL, *MAKE]
    assert run(command) == 3
    assert "a norm of the pixels of a patch" in capsys.readouterr().err
    assert not out.exists()
    assert run([*command, "--residue", str(residue)]) == 0
    assert load_file(residue)["embed.pixel_norm.weight"].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t + 1e-3, "not the table of sines and cosines of big-vision"),
        (lambda t: torch.from_numpy(sincos("big-vision", (6, 4), 16)), "of a grid of 6x4, not of 4x6"),
        (lambda t: torch.from_numpy(sincos("mae", (4, 6), 16)), "not the table"),
    ],
    ids=["trained", "turned", "MAE"],
)
def test_another_table_is_never_left_out(change: Any, match: str) -> None:
    weights, _ = golden(NAMES[0])
    there = translate(weights, "vit-pytorch-simple", "canonical", axes=SIDES)
    table = torch.from_numpy(sincos("big-vision", (4, 6), 16))
    facts = {"grid": "4x6", "position": "sincos", "pooling": "avg", "norm_placement": "pre", "kv_normalised": True}
    home = translate({**there, "embed.pos": table}, "canonical", "vit-pytorch-simple", facts=facts)
    assert all(torch.equal(home[k], weights[k]) for k in weights)
    with pytest.raises(Refused, match=match):
        translate({**there, "embed.pos": change(table)}, "canonical", "vit-pytorch-simple", facts=facts)


def test_a_table_tells_its_grid() -> None:
    for grid in ((4, 6), (6, 4), (3, 8)):
        assert grid_of("mae", sincos("mae", grid, 16)) == grid
        assert grid_of("big-vision", sincos("mae", grid, 16)) is None


# Of other networks of vit-pytorch, each a key that it has, laid into one that is carried.
OTHERS = {
    "vit-pytorch-simple-1.6.9": [
        ("transformer.layers.0.0.q_norm.gamma", (2, 1, 8), "norms of queries and keys"),
        ("transformer.layers.0.0.temperature", (), "temperature of attention"),
    ],
    "vit-pytorch-1.6.9": [
        ("transformer.layers.0.0.reattn_weights", (2, 2), "DeepViT"),
        ("memory_tokens", (3, 16), "memory tokens"),
        ("transformer.patch_merger.queries", (4, 16), "merging of patches"),
    ],
}


@pytest.mark.parametrize(
    ("name", "key", "shape", "reason"), [(name, *case) for name, cases in OTHERS.items() for case in cases]
)
def test_its_other_networks_are_refused_with_the_reason(
    name: str, key: str, shape: tuple[int, ...], reason: str
) -> None:
    weights, _ = golden(name)
    with pytest.raises(Refused, match=reason):
        translate({**weights, key: torch.zeros(shape)}, None, "canonical", axes=SIDES)


def test_an_unknown_key_is_named() -> None:
    weights, _ = golden(NAMES[0])
    with pytest.raises(NotRecognised, match=r"closest: vit-pytorch-simple[\s\S]*unknown here: what"):
        translate({**weights, "what": torch.zeros(1)}, None, "canonical", axes=SIDES)


def averaged() -> dict[str, Tensor]:
    """Return what its ViT with pool="mean" saves: a class token of no rows, and no row for it."""
    weights, _ = golden("vit-pytorch-1.26.14")
    return {**weights, "cls_token": torch.zeros(0, 16), "pos_embedding": weights["pos_embedding"][1:].contiguous()}


def test_a_network_that_averages_has_a_class_token_of_no_rows() -> None:
    weights = averaged()
    there = translate(weights, "vit-pytorch", "canonical", axes=SIDES)
    assert "embed.cls" not in there
    facts = {"pooling": "avg", "norm_placement": "pre", "kv_normalised": True, "position": "learned"}
    back = translate(there, "canonical", "vit-pytorch", facts=facts)
    assert back.keys() == weights.keys()
    assert back["cls_token"].shape == (0, 16)
    assert all(torch.equal(back[k], weights[k]) for k in weights)


def test_the_student_of_a_distillation_is_taken_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DistillWrapper keeps student, teacher and a token of its own in one file: which is meant is asked."""
    weights, _ = golden("vit-pytorch-1.26.14")
    whole = {f"student.{k}": v for k, v in weights.items()} | {f"teacher.{k}": -v for k, v in weights.items()}
    whole |= {"distillation_token": torch.randn(1, 16), "distill_mlp.1.weight": torch.randn(5, 16)}
    torch.save(whole, tmp_path / "s.pth")
    command = ["convert", str(tmp_path / "s.pth"), str(tmp_path / "o.safetensors"), "--to", "vit-pytorch", *TELL[:4]]
    assert run(command) == 3
    said = capsys.readouterr().err
    assert "distillation_token" in said
    assert "--branch" in said
    assert run([*command, "--branch", "student"]) == 0
    written = load_file(tmp_path / "o.safetensors")
    assert all(torch.equal(written[k], weights[k]) for k in weights)
