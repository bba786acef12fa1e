"""Networks that only an init scheme of their own goes with: built, run, and answered by every check."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from vitconv.checks.base.context import Context
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import all_checks, run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.variants import smaller
from vitconv.errors import UsageError
from vitconv.parity.bridge import state_of

SIZE = ("depth=3", "dim=48", "heads=3", "image=16", "patch=4", "classes=10", "channels=1")
KINDS = {
    "rezero": ("norm=none", "layer_scale=true"),
    "t-fixup": ("norm=none",),
    "sub-ln": ("sub_norm=true",),
    "layer-scale": ("layer_scale=true",),
    "deepnorm": ("norm=deepnorm",),
    "small-gain": ("norm=res-post",),
}
CHEAP = [c for c in all_checks() if c.cost in ("facts", "pass", "half")]
DEAR = [c for c in all_checks() if c.cost not in ("facts", "pass", "half") and c.id != "step-parity"]


def made(scheme: str, *more: str, **plan: Any) -> Context:
    wanted = Wanted((*SIZE, *KINDS[scheme], *more), scheme=scheme, plan=Plan(**plan))
    return context_of("vit_tiny", wanted)


@pytest.mark.parametrize("scheme", KINDS)
def test_every_check_has_an_answer_and_none_is_bad(scheme: str) -> None:
    context = made(scheme)
    found = {c.id: run_one(context, c) for c in CHEAP}
    assert [(n, o.skipped) for n, o in found.items() if o.undecided] == []
    assert [(n, f.text) for n, o in found.items() for f in o.findings if f.level in ("warn", "error")] == []
    ran = {n for n, o in found.items() if o.findings}
    assert {"signals", "attention", "gradient-profile", "fp16-headroom", "loss-at-init"} <= ran


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rezero", "t-fixup", "sub-ln"])
def test_what_trains_has_an_answer_too(scheme: str) -> None:
    context = made(scheme, steps=45)
    outcomes = {c.id: run_one(context, c, {"steps": 30} if c.id == "overfit" else {}) for c in DEAR}
    assert [(n, o.skipped) for n, o in outcomes.items() if o.undecided] == []
    assert all(o.findings for o in outcomes.values())


@pytest.mark.parametrize("scheme", KINDS)
def test_the_small_twin_that_is_trained_is_of_the_same_kind(scheme: str) -> None:
    twin = smaller(made(scheme), 48, 2)
    assert (twin.scheme, twin.placement) == (scheme, made(scheme).placement)
    for end in ("ls1", "attn.norm.weight", "norm1.weight"):
        assert twin.arch.has(f"blocks.0.{end}") == made(scheme).arch.has(f"blocks.0.{end}"), end


def test_no_eps_is_varied_where_there_is_no_norm() -> None:
    with pytest.raises(UsageError, match="eps=1e-5 is that of the norms in the blocks, and there are none"):
        smaller(made("t-fixup"), 48, 2, {"eps": "1e-5"})


@pytest.mark.parametrize(("gate", "level", "says"), [(0.0, "info", "start at 0"), (0.5, "ok", "gain of 0.5")])
def test_rezeros_gates_are_bounded_by_the_plan(gate: float, level: str, says: str, check: Any) -> None:
    context = made("rezero")
    weights = {n: torch.full_like(t, gate) if n.endswith(("ls1", "ls2")) else t for n, t in context.canonical.items()}
    found = check("gate-growth", dataclasses.replace(context, weights=weights))
    assert (found.findings[0].level, says in found.findings[0].text) == (level, True)


def test_a_branch_without_norm_and_gate_has_nothing_to_open(check: Any) -> None:
    assert "neither norms nor gains" in check("gate-growth", made("t-fixup")).skipped


def test_a_stream_that_grows_without_norms_is_seen(check: Any) -> None:
    """Planted: weights of the usual size in blocks that have no norm to hold them."""
    context = made("t-fixup")
    assert context.bridge is not None
    grown = {
        n: 8 * t if n.endswith((".mlp.down.weight", ".mlp.up.weight")) else t for n, t in context.canonical.items()
    }
    context.bridge.write(grown, state_of(context.network.module))
    assert check("signals", dataclasses.replace(context, weights=grown)).level in ("warn", "error")


@pytest.mark.parametrize(("fix", "scheme"), [(True, "timm-naflex"), (False, "timm")])
def test_timms_naflex_has_a_scheme_of_its_own(fix: bool, scheme: str, check: Any) -> None:
    import timm

    torch.manual_seed(0)
    size = {"embed_dim": 192, "depth": 4, "num_heads": 3, "fix_init": fix}
    found = check("init-audit", context_of(timm.create_model("naflexvit_base_patch16_gap", **size), Wanted()))
    named = next(f for f in found.findings if f.level == "ok").text
    # Without the division the branches are as timm's default draws them.
    assert ("0 tensors deviate" in named and scheme in named) == fix
    assert [f.text for f in found.findings if f.level in ("warn", "error")] == []
