"""Files of the authors' own code with options that no published network has compute the author's numbers once loaded.

Only what the file cannot say is told; see the facts in the metadata of the traces in fixtures/golden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitconv
from vitconv.conversion.facts import Wishes
from vitconv.conversion.recognise import recognise
from vitconv.conversion.translate import translate
from vitconv.errors import Refused, VitconvError

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
HEADS = {"heads": 2}
# What is told about each golden trace.
CASES: dict[str, dict[str, Any]] = {
    # No LayerScale, no bias in any linear of a block, and registers.
    "dinov2/dinov2-bare": HEADS,
    "dinov2/dinov2-chunked": HEADS,
    # No LayerScale; places by the longer side, which were computed in float32.
    "dinov3/dinov3-places": {"rope_places": "max", "rope_precision": "float32"},
    "dinov3/dinov3-untied": {},
    # xformers' SwiGLU and attention, no sub-LN, waves of float32: all of it is in the file.
    "eva/eva-02-packed": {},
    # Of its two kinds of attention the author's own rounds logits to float32.
    "eva/eva-02": {"attention_precision": "float32"},
    "eva/eva-02-mlp": {"attention_precision": "float32"},
    "beit/beit-author": {"grid": (4, 6)},
    "beit/beit-author-absolute": HEADS,
    "beit/beit-author-shared": {"grid": (4, 6)},
    "deit/deit-3-plain": HEADS,
    "mae/mae-fine-tuned": HEADS,
    # No table in the file: it is made anew for every image.
    "npz/big-vision-sincos": {},
    "npz/big-vision-token": {},
    "npz/big-vision-gap": {},
    # Pooled by the mean, it norms after it, which the pooling alone tells.
    "vit-pytorch/vit-pytorch-0.40.2-mean": {**HEADS, "pooling": "avg-prefix", "image_size": (16, 16), "grid": (4, 4)},
}


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.abs().max())


def dialect_of(name: str) -> str:
    return "big-vision" if name.startswith("npz/") else name.split("/")[0]


def loaded(name: str, facts: dict[str, Any]) -> torch.nn.Module:
    path = FOLDER / f"{name}{'.npz' if name.startswith('npz/') else '.pth'}"
    return vitconv.load(path, "reference", from_=dialect_of(name), facts=facts)


def weights(name: str) -> dict[str, Tensor]:
    if name.startswith("npz/"):
        return {k: torch.from_numpy(v) for k, v in np.load(FOLDER / f"{name}.npz").items()}
    state: dict[str, Tensor] = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    return state


@pytest.mark.parametrize("name", CASES)
def test_the_author_s_numbers(name: str) -> None:
    trace = load_file(FOLDER / f"{name}.trace.safetensors")
    module = loaded(name, CASES[name])
    x = trace["input"].clone().requires_grad_()
    y = module(x)
    # Sums in float32 are of another order on another machine.
    close = 2e-6 if "attention_precision" in CASES[name] else 1e-12
    assert near(y, trace["output"]) < close
    y.backward(trace["grad_output"])
    assert x.grad is not None
    assert near(x.grad, trace["grad.input"]) < 10 * close
    grads = {
        k: trace.get(f"grad.{k}", torch.full_like(v, torch.nan))
        for k, v in weights(name).items()
        if v.is_floating_point()
    }
    told: dict[str, Any] = {"facts": CASES[name], "axes": {"p": 4, "q": 4}} if "vit-pytorch" in name else {}
    moved = translate(grads, dialect_of(name), "canonical", "gradients", **told)
    found = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
    scale = max(float(g.abs().max()) for g in found.values())
    off = {k: float((g - moved[k]).abs().max()) / scale for k, g in found.items() if not moved[k].isnan().any()}
    assert len(off) >= len(found) - 3
    assert {k: v for k, v in off.items() if v > 10 * close} == {}


@pytest.mark.parametrize(
    ("name", "fault", "by"),
    [
        ("dinov3/dinov3-places", {"rope_places": "separate"}, 1e-3),
        ("dinov3/dinov3-places", {"rope_precision": "float64"}, 1e-10),
        ("eva/eva-02-packed", {"pooling": "avg-prefix"}, 1e-3),
        ("eva/eva-02-packed", {"attention_precision": "float32"}, 1e-10),
        ("beit/beit-author-absolute", {"pooling": "avg"}, 1e-3),
        ("mae/mae-fine-tuned", {"norm_eps": 1e-5}, 1e-9),
        ("npz/big-vision-sincos", {"sincos_rule": "mae"}, 1e-3),
        ("npz/big-vision-sincos", {"position": "none"}, 1e-3),
    ],
    ids=["places", "precision", "pooling", "logits", "other-pooling", "eps", "sines", "no-sines"],
)
def test_a_wrong_fact_is_no_rounding(name: str, fault: dict[str, Any], by: float) -> None:
    trace = load_file(FOLDER / f"{name}.trace.safetensors")
    assert near(loaded(name, {**CASES[name], **fault})(trace["input"]), trace["output"]) > by


def test_an_eps_that_was_told_is_that_of_every_norm_where_the_author_has_one() -> None:
    found = recognise(FOLDER / "dino" / "dino-tiny.pth", Wishes(from_="dino", facts={"norm_eps": 1e-5}))
    found.checkpoint.close()
    assert (found.facts.norm_eps, found.facts.final_norm_eps) == (1e-5, 1e-5)
    both = {"norm_eps": 1e-5, "final_norm_eps": 1e-6}
    found = recognise(FOLDER / "dino" / "dino-tiny.pth", Wishes(from_="dino", facts=both))
    found.checkpoint.close()
    assert found.facts.final_norm_eps == 1e-6


def test_places_by_the_longer_side_have_no_place_in_transformers() -> None:
    state = torch.load(FOLDER / "dinov3" / "dinov3-places.pth", weights_only=True)
    with pytest.raises(Refused, match="rope places: max here"):
        translate(state, "dinov3", "hf-dinov3-5", facts={"rope_places": "max"})


def test_positions_that_no_table_holds_are_not_left_out_in_silence(tmp_path: Path) -> None:
    state = torch.load(FOLDER / "dino" / "dino-tiny.pth", weights_only=True)
    path = tmp_path / "bare.pth"
    torch.save({k: v for k, v in state.items() if k != "pos_embed"}, path)
    facts = {**HEADS, "norm_placement": "pre", "norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": 1e-6}
    facts |= {"kv_normalised": True, "activation": "gelu", "attention": "softmax", "pooling": "token"}
    with pytest.raises(Refused, match="sincos_rule"):
        vitconv.load(path, "reference", from_="timm", facts={**facts, "position": "sincos"})
    with pytest.raises(VitconvError, match="no table of positions"):
        vitconv.load(path, "reference", from_="timm", facts={**facts, "position": "learned"})
    assert vitconv.load(path, "reference", from_="timm", facts={**facts, "position": "none"})


def test_waves_that_a_file_of_eva_lacks_are_asked_about(tmp_path: Path) -> None:
    """Without them a table of positions may be all, or stand beside rotary ones that were taken out of the file."""
    state = torch.load(FOLDER / "eva" / "eva-02-packed.pth", weights_only=True)
    path = tmp_path / "stripped.pth"
    torch.save({k: v for k, v in state.items() if "freqs" not in k}, path)
    with pytest.raises(Refused, match="--set position="):
        vitconv.load(path, "reference", from_="eva", facts=HEADS)


def test_a_norm_behind_the_pooling_is_found_by_the_pooling_that_is_told() -> None:
    state = weights("vit-pytorch/vit-pytorch-0.40.2-mean")
    told: dict[str, Any] = {"axes": {"p": 4, "q": 4}}
    mean = translate(state, "vit-pytorch", "canonical", facts={"pooling": "avg-prefix"}, **told)
    token = translate(state, "vit-pytorch", "canonical", **told)
    assert ("pool.norm.weight" in mean, "norm.weight" in mean) == (True, False)
    assert ("pool.norm.weight" in token, "norm.weight" in token) == (False, True)
    facts = {"pooling": "avg-prefix", "norm_placement": "pre", "kv_normalised": True}
    back = translate(mean, "canonical", "vit-pytorch", facts=facts, **told)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[k], state[k]) for k in state)


@pytest.mark.parametrize("base", [100.0, 30.0, 7.5])
def test_the_base_of_stored_periods_is_read_off_them(base: float, tmp_path: Path) -> None:
    state = weights("dinov3/dinov3-masked")
    n = len(state["rope_embed.periods"])
    path = tmp_path / "w.pth"
    torch.save(state | {"rope_embed.periods": base ** (torch.arange(n, dtype=torch.float64) / n)}, path)
    found = recognise(path, Wishes(from_="dinov3"))
    found.checkpoint.close()
    assert found.facts.rope_theta == pytest.approx(base, rel=1e-9)
    assert any("rope_theta" in note for note in found.notes) == (base != 100.0)


def test_periods_of_no_base_are_said(tmp_path: Path) -> None:
    state = weights("dinov3/dinov3-masked")
    n = len(state["rope_embed.periods"])
    path = tmp_path / "w.pth"
    torch.save(state | {"rope_embed.periods": torch.linspace(0.5, 90.0, n, dtype=torch.float64)}, path)
    found = recognise(path, Wishes(from_="dinov3"))
    found.checkpoint.close()
    assert any("periods of no base" in note for note in found.notes)
