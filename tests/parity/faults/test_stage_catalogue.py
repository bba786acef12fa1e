"""Every fault of networks of stages: it can be had, does what it says, and is named when it was put in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stage_kit import NETWORKS, images, network

from vitconv.parity.explain import explain_traces
from vitconv.parity.faults import FAULTS, Fault, Knobs
from vitconv.parity.faults.error import exact_scale, ratios
from vitconv.parity.faults.rebuild import Rebuilt, Seen
from vitconv.parity.trace import Trace, cotangent_of
from vitconv.vit.stages.model import StageViT

OF_STAGES = [n for n, f in FAULTS.items() if "stages" in f.families]
OWN = [n for n, f in FAULTS.items() if f.families == ("stages",)]
TEMPLATES: dict[str, Any] = {}


def run(name: str, *placed: tuple[Fault, tuple[int, ...] | None]) -> Seen | None:
    config, weights = network(name)
    knobs: Knobs | None = Knobs(config)
    for fault, layers in placed:
        knobs = None if knobs is None else fault.apply(knobs, layers)
    if knobs is None:
        return None
    try:
        return Rebuilt(knobs, weights, templates=TEMPLATES).run(images(name), cotangent_of((2, 5), 0))
    except RuntimeError:
        return None


def trace(seen: Seen) -> Trace:
    """Return what a host of stages shows: no taps inside of blocks."""

    def shown(values: Any) -> dict[str, Any]:
        return {n: v for n, v in values.items() if not n.endswith((".attn", ".mlp"))}

    return Trace(
        side="B", precision="fp64", inputs="coloured", taps=shown(seen.taps), output=seen.output, grads=seen.grads,
        tap_grads=shown(seen.tap_grads), loss_scale=1.0, dtypes={}, facts={},
    )  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_in_a_row_a_network_is_what_it_was(name: str) -> None:
    config, weights = network(name)
    plain = StageViT(config.stages).double()
    back = {config.flat_name(n): n for n in config.stages.shapes}
    assert len(back) == len(config.stages.shapes)
    plain.load_state_dict({back[n]: w for n, w in weights.items()}, strict=True)
    x = images(name).clone().requires_grad_()
    y = plain(x)
    y.backward(cotangent_of(y.shape, 0).to(y))
    seen = run(name)
    assert seen is not None
    torch.testing.assert_close(seen.output, y.detach(), rtol=0, atol=1e-12)
    for n, p in plain.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(seen.grads[config.flat_name(n)], grad, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_STAGES)
def test_a_fault_does_what_it_says_in_some_network(name: str) -> None:
    fault, effects = FAULTS[name], []
    for which in NETWORKS:
        spoiled, clean = run(which, (fault, None)), run(which)
        if spoiled is None or clean is None:
            continue
        found = ratios(spoiled, clean, exact_scale(clean))
        forward = max(r for (kind, _), r in found.items() if kind in ("tap", "output"))
        effects.append((forward, max(found.values())))
        if effects[-1][1] > 1:
            break
    assert effects, "no network here can have it"
    forward, largest = effects[-1]
    assert largest > 1
    assert (forward <= 1) == (fault.visible == "backward")


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_what_was_put_in_is_named(name: str) -> None:
    for which in NETWORKS:
        config, weights = network(which)
        spoiled, clean = run(which, (FAULTS[name], None)), run(which)
        if spoiled is None or clean is None or max(ratios(spoiled, clean, exact_scale(clean)).values()) <= 1:
            continue
        cause = explain_traces(config, weights, [images(which)], [trace(spoiled)], right=[trace(clean)])
        assert frozenset({name}) in cause.names, (which, cause)
        assert all(len(names) == 1 for names in cause.names)
        return
    pytest.fail("no network here shows it")


def test_where_nothing_was_put_in_nothing_is_found() -> None:
    for which in NETWORKS:
        config, weights = network(which)
        clean = run(which)
        assert clean is not None
        cause = explain_traces(config, weights, [images(which)], [trace(clean)], right=[trace(clean)])
        assert cause.found == () and "computes the same" in cause.reason
