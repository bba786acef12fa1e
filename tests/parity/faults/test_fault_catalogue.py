"""Every fault of the catalogue: it can be had, does what it says and no more, and can be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vitconv.layout.semantics import Semantics
from vitconv.parity.faults import FAULTS, Fault, Knobs
from vitconv.parity.faults.error import exact_scale, ratios
from vitconv.parity.faults.fault import KINDS, MEASURED
from vitconv.parity.faults.rebuild import Rebuilt, Seen
from vitconv.parity.trace import cotangent_of

DRAWN = [name for name, fault in FAULTS.items() if fault.visible not in MEASURED and "plain" in fault.families]
# Making a network costs more than running it.
TEMPLATES: dict = {}
ORDER = (
    "token", "rich", "distilled", "deepnorm", "rms", "halves turn", "over the shorter side", "neighbours turn",
    "relative",
)  # fmt: skip


def run(config, weights, images, *placed: tuple[Fault, tuple[int, ...] | None]) -> Seen | None:
    knobs: Knobs | None = Knobs(config)
    for fault, layers in placed:
        knobs = None if knobs is None else fault.apply(knobs, layers)
    if knobs is None:
        return None
    return Rebuilt(knobs, weights, templates=TEMPLATES).run(images, cotangent_of((len(images), 5), 0))


@pytest.fixture(scope="session")
def clean(network_named, images):
    return {name: run(*network_named(name), images) for name in ORDER}


def layers_of(fault: Fault) -> tuple[int, ...] | None:
    return (1,) if fault.single else None


def test_importing_the_catalogue_costs_no_torch() -> None:
    code = "import sys, vitconv.parity.faults as f; assert len(f.FAULTS) > 200; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", FAULTS)
def test_an_entry_is_complete(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert fault.title[0].islower() or fault.title.split()[0] in ("LayerScale", "K")
    assert set(fault.shows) <= {*KINDS}
    assert all(hasattr(Semantics(), fact) for fact in fault.facts)
    assert (fault.visible in MEASURED) == (not (fault.weights or fault.model or fault.images or fault.config))
    assert fault.site in fault.summary


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_fault_does_what_it_says_in_some_network(name: str, network_named, images, clean) -> None:
    fault = FAULTS[name]
    effects = []
    for which in ORDER:
        config, weights = network_named(which)
        spoiled = run(config, weights, images, (fault, layers_of(fault)))
        if spoiled is None:
            continue
        found = ratios(spoiled, clean[which], exact_scale(clean[which]))
        forward = max(r for (kind, _), r in found.items() if kind in ("tap", "output"))
        backward = max((r for (kind, _), r in found.items() if kind not in ("tap", "output")), default=0.0)
        effects.append((found["output", "output"], forward, backward))
        if max(forward, backward) > 1:
            break
    assert effects, "no network here can have it"
    output, forward, backward = (max(e[j] for e in effects) for j in range(3))
    if fault.visible == "never":
        assert output <= 1
    elif fault.visible == "backward":
        assert forward <= 1 < backward
    else:
        assert forward > 1


def test_taken_back_the_network_is_as_before_to_the_bit(network, images) -> None:
    config, weights = network
    knobs, before = Knobs(config), {k: v.clone() for k, v in weights.items()}
    first = Rebuilt(knobs, weights).run(images, cotangent_of((3, 5), 0))
    templates: dict = {}
    for fault in FAULTS.values():
        spoiled = fault.apply(knobs, layers_of(fault))
        if spoiled is not None and fault.visible not in MEASURED:
            # All share the templates, which must not keep anything of it.
            Rebuilt(spoiled, weights, templates=templates)
    again = Rebuilt(knobs, weights, templates=templates).run(images, cotangent_of((3, 5), 0))
    assert knobs == Knobs(config)
    assert all(torch.equal(weights[k], before[k]) for k in weights), "the weights given are left alone"
    assert torch.equal(first.output, again.output)
    assert all(torch.equal(first.grads[n], again.grads[n]) for n in first.grads)


@pytest.mark.parametrize("name", ["activation-relu", "qkv-order-kqv", "eps-blocks-1e-3", "backward-k-detached"])
def test_a_fault_in_one_block_leaves_the_blocks_ahead_alone(name: str, network_named, images, clean) -> None:
    config, weights = network_named("token")
    spoiled = run(config, weights, images, (FAULTS[name], (1,)))
    assert spoiled is not None
    assert torch.equal(spoiled.taps["blocks.0"], clean["token"].taps["blocks.0"])
    found = ratios(spoiled, clean["token"], exact_scale(clean["token"]))
    behind = [r for (kind, n), r in found.items() if kind == "grad" and n.startswith("blocks.2")]
    changed = (
        found["tap", "blocks.1"] > 1 or max(r for (k, n), r in found.items() if k == "grad" and "blocks.1" in n) > 1
    )
    assert changed
    if FAULTS[name].visible == "backward":
        assert max(behind) <= 1


def test_what_is_there_already_is_no_fault(network_named) -> None:
    config, _ = network_named("token")
    assert FAULTS["activation-gelu"].apply(Knobs(config)) is None
    assert FAULTS["eps-blocks-1e-6"].apply(Knobs(config)) is None
    assert FAULTS["registers-missing"].apply(Knobs(config)) is None
    assert FAULTS["pos-transposed"].apply(Knobs(config), (1,)) is None


def test_two_faults_are_put_in_one_after_the_other(network_named, images, clean) -> None:
    config, weights = network_named("token")
    one, two = FAULTS["channels-reversed"], FAULTS["patch-transposed"]
    both = run(config, weights, images, (one, None), (two, None))
    back = run(config, weights, images, (one, None), (one, None))
    assert both is not None and back is not None
    assert not torch.allclose(both.output, clean["token"].output)
    assert torch.equal(back.output, clean["token"].output), "reversed twice it is as it was"


def test_half_of_one_head_is_one_head(network_named, images) -> None:
    config, weights = network_named("token")
    one, half = FAULTS["heads-one"], FAULTS["heads-halved"]
    both, alone = run(config, weights, images, (one, None), (half, None)), run(config, weights, images, (one, None))
    assert both is not None and alone is not None
    assert torch.equal(both.output, alone.output)


def test_gradients_of_changed_files_are_at_the_changed_weights(network_named, images) -> None:
    config, weights = network_named("token")
    knobs = FAULTS["qkv-order-kqv"].apply(Knobs(config))
    assert knobs is not None
    code = Rebuilt(knobs, weights).run(images, cotangent_of((3, 5), 0))
    file = Rebuilt(knobs, weights, stored=True).run(images, cotangent_of((3, 5), 0))
    assert torch.equal(code.output, file.output)
    torch.testing.assert_close(code.grads["blocks.0.attn.k.weight"], file.grads["blocks.0.attn.q.weight"])


def test_a_stretch_is_a_part_of_the_whole(network, images) -> None:
    config, weights = network
    rebuilt = Rebuilt(Knobs(config), weights)
    whole = rebuilt.run(images, cotangent_of((3, 5), 0))
    part = rebuilt.stretch("blocks.0", whole.taps["blocks.0"], "blocks.1", whole.tap_grads["blocks.1"], images)
    assert torch.equal(part.taps["blocks.1.attn"], whole.taps["blocks.1.attn"])
    assert torch.equal(part.taps["blocks.1"], whole.taps["blocks.1"])
    torch.testing.assert_close(part.grads["start"], whole.tap_grads["blocks.0"])
    name = "blocks.1.mlp.up.weight"
    torch.testing.assert_close(part.grads[name], whole.grads[name])
    for stop in ("embed", "pool", "head"):
        start = None if stop == "embed" else "blocks.2"
        value = images if start is None else whole.taps["blocks.2"]
        assert torch.equal(rebuilt.stretch(start, value, stop, None, images).taps[stop], whole.taps[stop])
