"""Public reports on initialisation (J) and optimiser groups (L) as the commands answer them, and own inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import rand_t, save, vitconv
from torch import nn

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.initialise.network import Job, architecture
from vitconv.inits import coverage
from vitconv.inits.audit.audit import audit_tensors
from vitconv.inits.base.change import changed
from vitconv.inits.base.draw import draw
from vitconv.registry import CHECKS, INITS, load

SMALL = ("dim=48", "heads=3", "image=16", "patch=4", "classes=10", "channels=1")


def drawn(scheme: str, **more: str) -> tuple[dict[str, torch.Tensor], Any]:
    changes = {k: more.pop(k) for k in ("norm", "layer_scale") if k in more}
    size = {"depth": "3", "dim": "192", "heads": "3", "image": "32", "patch": "8", "classes": "100", **more}
    arch, _ = changed(architecture("vit_tiny", Job(scheme, size=size))[0], changes)
    return draw(arch, load(INITS, scheme), 0), arch


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        pytest.param("timm", "cut at the values -2 and 2", id="J01-absolute"),
        pytest.param("timm-2sigma", "true std 0.01759", id="J01-two-sigma"),
        pytest.param("timm-compensated", "widened to have std 0.02", id="J02-compensated"),
        pytest.param("xformers-timm", "cut at the values -0.034641", id="J01-own-sqrt-3"),
        pytest.param("deepnorm", "xavier normal x", id="J07"),
        pytest.param("mae", "q, k, v as one matrix", id="J14-fused"),
        pytest.param("torchvision", "xavier", id="J14-own"),
    ],
)
def test_init_says_the_formula_and_the_std(scheme: str, says: str, tmp_path: Path) -> None:
    sets = [f"--set={pair}" for pair in (*SMALL, "depth=2", *(("norm=deepnorm",) if scheme == "deepnorm" else ()))]
    answer = vitconv("init", "vit_tiny", tmp_path / "a.safetensors", "--scheme", scheme, "--to", "canonical", *sets)
    assert answer.code == 0, answer.text
    assert says in " ".join(answer.out.split())
    assert "std drawn" in answer.out


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        pytest.param("timm", "hf-deit", {"embed.cls", "embed.pos", "embed.patch"}, id="J04"),
        pytest.param("timm-jax", "jax", {"attn.q", "attn.k", "attn.v"}, id="J04-own-fused"),
    ],
)
def test_two_codebases_are_held_beside_each_other(one: str, other: str, differ: set[str], tmp_path: Path) -> None:
    sets = [f"--set={pair}" for pair in (*SMALL, "depth=2")]
    words = ("--scheme", one, "--beside", other, "--to", "canonical", "--json")
    answer = vitconv("init", "vit_tiny", tmp_path / "a.safetensors", *words, *sets)
    assert answer.code == 0, answer.text
    rows = next(s["rows"] for s in answer.json["sections"] if s["key"] == "beside")
    assert all(any(kind in row["tensor"] for row in rows) for kind in differ)
    assert not any("norm" in row["tensor"] for row in rows)


@pytest.mark.parametrize(
    ("key", "factor"),
    [
        pytest.param("blocks.11.mlp.down.weight", 3e6, id="J08"),
        pytest.param("blocks.3.attn.out.weight", 1e7, id="J08-own"),
    ],
)
def test_growth_of_the_largest_value_by_block(key: str, factor: float) -> None:
    context = context_of("vit_tiny", Wanted((*SMALL, "depth=24"), plan=Plan(batch=2)))
    assert run_one(context, load(CHECKS, "signals")).level == "ok"
    with torch.no_grad():
        dict(context.network.module.named_parameters())[key].mul_(factor)
    wrong = context_of(context.network.module, Wanted(plan=Plan(batch=2)))
    found = run_one(wrong, load(CHECKS, "signals"))
    assert found.level == "error"
    assert found.findings[0].where == (".".join(key.split(".")[:2]),)
    assert "16376" in found.findings[0].text


@pytest.mark.parametrize("kind", [pytest.param("data", id="J10"), pytest.param("copy", id="J10-own")])
def test_helpers_that_work_on_copies_change_nothing(kind: str) -> None:
    def helper(module: nn.Module) -> None:
        for p in module.parameters():
            nn.init.zeros_(p.detach().clone() if kind == "data" else torch.tensor(p.tolist()))

    assert {row.state for row in coverage(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), helper)} == {"left"}


@pytest.mark.parametrize(
    ("value", "found"),
    [pytest.param(1.0, True, id="J11"), pytest.param(1e-5, False, id="J11-right")],
)
def test_layer_scale_that_was_reset(value: float, found: bool) -> None:
    weights, arch = drawn("dinov2", layer_scale="true")
    for name in weights:
        if name.endswith((".ls1", ".ls2")):
            weights[name].fill_(value)
    assert (audit_tensors(weights, arch.facts).found("layer-scale-one") is not None) == found


@pytest.mark.parametrize(
    ("depth", "value"),
    [
        pytest.param("12", "0.1", id="J13-12"),
        pytest.param("24", "1e-05", id="J13-24"),
        pytest.param("36", "1e-06", id="J13-36"),
        pytest.param("18", "0.1", id="J13-own-18"),
    ],
)
def test_layer_scale_by_depth_is_said(depth: str, value: str, tmp_path: Path) -> None:
    sets = [f"--set={pair}" for pair in (*SMALL, f"depth={depth}", "layer_scale=true")]
    words = ("--scheme", "layer-scale", "--to", "canonical")
    answer = vitconv("init", "vit_tiny", tmp_path / "a.safetensors", *words, *sets)
    assert answer.code == 0, answer.text
    assert f"{value} for {depth} blocks" in answer.out


@pytest.mark.parametrize(
    ("token", "count"),
    [pytest.param("reg_token", 4, id="L01"), pytest.param("cls_token", 1, id="L01-own")],
)
def test_tokens_are_not_decayed_and_sit_at_the_embeddings(token: str, count: int, tmp_path: Path) -> None:
    state = rand_t()
    if token == "reg_token":
        g = torch.Generator().manual_seed(1)
        state |= {"reg_token": torch.randn(1, count, 32, generator=g), "pos_embed": torch.randn(1, 21, 32, generator=g)}
    path = save(tmp_path / "t.safetensors", state)
    answer = vitconv("inspect", path, "--groups", "--layer-decay", "0.5", "--set", "grid=4x4", "--json")
    assert answer.code == 0, answer.text
    rows = {r["key"]: r for s in answer.json["sections"] if s["key"] == "parameters" for r in s["rows"]}
    assert (rows[token]["decay"], rows[token]["layer"]) == ("no decay", 0)
    assert rows["blocks.1.attn.qkv.weight"]["decay"] == "decay"
    assert rows[token]["scale"] < rows["blocks.1.attn.qkv.weight"]["scale"]
