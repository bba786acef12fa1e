"""Is the test itself sound: repeatable, alive, and touching every parameter?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from vitconv.hosts.base.autocasts import Autocast
from vitconv.hosts.base.copied import ran_of
from vitconv.hosts.base.host import Built
from vitconv.layout.match import collapse
from vitconv.parity.bridge import state_of
from vitconv.parity.capability import finest, scale_of
from vitconv.parity.compare import gaps, is_constant, is_finite, rms
from vitconv.parity.nondeterminism import watching
from vitconv.parity.observed import acts, autocasts_of, off_on_cpu, told, watching_autocasts
from vitconv.parity.pair import PROBE, Pair
from vitconv.parity.precision import precision_of
from vitconv.parity.side import Side, module_of
from vitconv.parity.stage import OWN_AUTOCAST, Blame, Row, Stage, Status, short, stage
from vitconv.parity.tolerance import NEARLY, NUDGE, NULL, SAME_FUNCTION
from vitconv.parity.trace import INPUT, Trace

KEY, TITLE = "sanity", "Is the test itself sound?"

# Why a parameter gets no gradient in a network that is right.
_REASONS = {
    ".attn.k.bias": "it cancels in the softmax",
    "embed.mask": "it acts only on masked patches",
    "pool.dense": "the output is taken ahead of the pooler",
}


def sound(pair: Pair) -> Stage:
    """Run each side twice, in other batches and without gradients, and see what the output depends on."""
    inputs = next(iter(pair.images))
    rows: list[Row] = []
    notes: list[str] = []
    for side in (pair.a, pair.b):
        precision, why = finest(pair, side)
        if why:
            notes.append(f"{side.label} does not run in float64 ({why}): looked at in {precision}")
        scale, exact = scale_of(precision), precision == "fp64"
        t = pair.run(side, inputs, precision, PROBE, loss_scale=scale, saved=exact)
        rows.append(_repeats(pair, side, inputs, t))
        if "blocks" in t.facts:
            notes.append(f"{side.label}: blocks ran in the order {', '.join(t.facts['blocks'].split())}")
        for of in pair.sets:
            rows += _alive(side, of, pair.run(side, inputs, precision, of, loss_scale=scale, saved=exact))
        stray: list[str] = []
        own: list[Autocast] = []
        hooks = (partial(_stray, side, stray), watching_autocasts(own))
        without = pair.run(side, inputs, precision, PROBE, backward=False, hooks=hooks)
        pair.autocasts[side.label] = tuple(dict.fromkeys(own))
        rows += [*_strays(side, stray), *_autocasts(pair, side)]
        rows += [_inference(side, without, t), *_batches(pair, side, without)]
        rows.append(_exercised(pair, side, inputs, t, notes))
    return stage(KEY, TITLE, rows, notes)


def _stray(side: Side, found: list[str], _built: Built) -> AbstractContextManager[None]:
    return ran_of(side.built.module, found)


def _strays(side: Side, names: list[str]) -> Iterator[Row]:
    """Fail a network that runs parts of the one it was copied from: weights put into the copy do not reach them."""
    if names:
        said = ", ".join(collapse(list(dict.fromkeys(names))[:6]))
        yield Row(
            f"{side.label}: runs its own parts",
            "fail",
            f"a copy of it runs {said} of the network that was copied: a forward holds that instance where it should"
            " take self, so weights put into the copy, and gradients, do not reach them",
            {"parts": len(names)},
            "undecided",
        )


def _autocasts(pair: Pair, side: Side) -> Iterator[Row]:
    """Warn of autocasts that a side switches on itself: in effect, or left off by torch on a CPU."""
    name = f"{side.label}: {OWN_AUTOCAST}"
    if said := off_on_cpu(pair, side):
        yield Row(name, "warn", said)
    elif own := [a for a in autocasts_of(pair, side) if acts(pair, a)]:
        yield Row(name, "warn", f"it switches on autocast to {told(own)}, whatever precision is asked for")


def _near(t: Trace) -> float:
    """Return what two runs of one side may part by: nothing to speak of in float64."""
    return SAME_FUNCTION if t.precision == "fp64" else NEARLY * precision_of(t.precision).unit


def _repeats(pair: Pair, side: Side, inputs: str, first: Trace) -> Row:
    """Build the network anew from other random numbers, run it, and expect the same bits."""
    name = f"{side.label}: repeats"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(pair.seed + 1)
        weights = pair.weights(side, PROBE)
        dtype = precision_of(first.precision).dtype
        again = module_of(side, dtype=dtype, device=pair.device, weights=weights, remake=True)
    second = pair.run(side, inputs, first.precision, PROBE, built=again, seed=1, loss_scale=first.loss_scale)
    found = gaps(first, second)
    worst = max(found, key=lambda g: g.rel_rms)
    if worst.max_abs == 0 and worst.finite:
        return Row(name, "ok", "two runs, built anew and with other random numbers, agree to the bit", {"gap": 0.0})
    site = next((g.name for g in found if not g.finite or g.max_abs != 0), worst.name)
    sites: dict[str, str] = {}
    pair.run(side, inputs, first.precision, PROBE, hooks=(lambda b: watching(b, sites),), backward=False, seed=2)
    named = ", ".join(f"{where} ({op})" for where, op in list(sites.items())[:8])
    detail = f"two runs part first at {site}, by {short(worst.rel_rms)} at most"
    detail += f"; random numbers are drawn by {named}" if sites else "; no random operator was seen"
    within = worst.finite and worst.rel_rms <= _near(first)
    blame = _blame(side)
    return Row(name, "warn" if within else "fail", detail, {"gap": worst.rel_rms, "site": site, "random": sites}, blame)


def _batches(pair: Pair, side: Side, t: Trace) -> Iterator[Row]:
    """Compare the first image alone with the first of the batch, both without gradients."""
    inputs = t.inputs
    if len(pair.images[inputs]) < 2:
        return
    one = pair.run(side, inputs, t.precision, PROBE, backward=False, images=pair.images[inputs][:1])
    gap = _relative(one.output, t.output[:1])
    status: Status = "ok" if gap <= _near(t) else "fail"
    said = "does not depend on" if status == "ok" else "depends on"
    how = short(gap)
    if one.output.shape != t.output[:1].shape:
        how = f"shapes {list(one.output.shape)} alone, {list(t.output.shape)} of {len(t.output)}"
    yield Row(
        f"{side.label}: batch of 1 and of {len(pair.images[inputs])}",
        status,
        f"the output of an image {said} the others in its batch ({how})",
        {"gap": gap},
        _blame(side),
    )


def _inference(side: Side, without: Trace, t: Trace) -> Row:
    """Compare with a run without gradients, where some libraries take another path."""
    gap = _relative(without.output, t.output)
    return Row(
        f"{side.label}: without gradients",
        "ok" if gap <= _near(t) else "fail",
        f"the output without gradients is {'the same' if gap <= _near(t) else 'another'} ({short(gap)})",
        {"gap": gap},
        _blame(side),
    )


def _alive(side: Side, of: str, t: Trace) -> Iterator[Row]:
    """Expect finite values everywhere, and an output that depends on the image."""
    name = f"{side.label}: {of} weights, alive"
    sick = [n for n, x in (*t.taps.items(), ("output", t.output)) if not is_finite(x)]
    if sick:
        yield Row(name, "fail", f"NaN or Inf, first at {sick[0]}", {"site": sick[0]}, _blame(side))
        return
    sick = [n for n, x in (*t.tap_grads.items(), *t.grads.items()) if not is_finite(x)]
    if sick:
        yield Row(name, "fail", f"gradients are NaN or Inf at {', '.join(collapse(sick[:8]))}", {}, _blame(side))
        return
    flat = [n for n, x in (*t.taps.items(), ("output", t.output)) if is_constant(x)]
    size = float(t.output.norm())
    felt = float(t.grads[INPUT].norm()) if INPUT in t.grads else math.inf
    moved = len(t.output) < 2 or not torch.equal(t.output[0], t.output[1])
    if flat or size == 0:
        yield Row(
            name, "fail", f"one number everywhere at {(flat or ['output'])[0]}: the test is vacuous", {}, "undecided"
        )
    elif felt <= NULL * size or not moved:
        yield Row(name, "fail", "the output does not depend on the image: the test is vacuous", {}, "undecided")
    else:
        yield Row(name, "ok", "finite, and the output depends on the image", {"output": size, "input_gradient": felt})


def _blame(side: Side) -> Blame:
    # Of a baseline that is not sound nothing can be said; a candidate that is not, beside one that is, is another.
    return "undecided" if side.label == "A" else "differs"


def _exercised(pair: Pair, side: Side, inputs: str, t: Trace, notes: list[str]) -> Row:
    """List the parameters without a gradient, and see whether the output feels them all the same."""
    grads = {n: g for n, g in t.grads.items() if n != INPUT}
    sizes = {n: rms(g) for n, g in grads.items()}
    largest = max(sizes.values(), default=0.0)
    null = [n for n, s in sizes.items() if s <= NULL * largest]
    name, count = f"{side.label}: parameters exercised", {"exercised": len(sizes) - len(null), "of": len(sizes)}
    if largest == 0:
        return Row(name, "fail", "no parameter has a gradient: the test is vacuous", count, "undecided")
    if not null:
        return Row(name, "ok", f"all {len(sizes)} change the output", count)
    felt = _felt(pair, side, inputs, t, null) if side.edits is None else []
    if felt:
        detail = f"the output feels {', '.join(collapse(felt))}, and they get no gradient: they are cut off backward"
        return Row(name, "warn", detail, {**count, "cut_off": len(felt)})
    groups: dict[str, list[str]] = {}
    for n in null:
        reason = next((why for end, why in _REASONS.items() if end in n), "the output does not feel it")
        groups.setdefault(reason, []).append(n)
    said = "; ".join(f"{', '.join(collapse(names))}: {reason}" for reason, names in groups.items())
    notes.append(f"{side.label}: compared by accounting alone, since no run exercises them: {said}")
    expected = set(groups) <= set(_REASONS.values())
    return Row(name, "info" if expected else "warn", f"not exercised: {said}", count)


def _felt(pair: Pair, side: Side, inputs: str, t: Trace, names: list[str]) -> list[str]:
    """Return those of the parameters whose change the output feels."""

    def moved(chosen: list[str]) -> bool:
        weights = pair.weights(side, PROBE)
        generator = torch.Generator().manual_seed(pair.seed + 5)
        for n in chosen:
            noise = torch.randn(weights[n].shape, generator=generator, dtype=torch.float64)
            weights[n] = weights[n] + NUDGE * (1 + weights[n].abs()) * noise
        tied = {group[0]: group for group in side.bridge.ties}
        for first, group in tied.items():
            weights |= dict.fromkeys(group, weights[first])
        built = pair.network(side, t.precision, PROBE)
        state = state_of(built.module)
        side.bridge.write(weights, state)
        try:
            changed = pair.run(side, inputs, t.precision, PROBE, backward=False, built=built)
        finally:
            side.bridge.write(pair.weights(side, PROBE), state)
        return _relative(changed.output, t.output) > _near(t)

    if not moved(names):
        return []
    return [n for n in names if moved([n])]


def _relative(x: Tensor, y: Tensor) -> float:
    if x.shape != y.shape:
        return math.inf
    x, y = x.double().cpu(), y.double().cpu()
    gap, size = float((x - y).norm()), float(y.norm())
    if not math.isfinite(gap):
        return math.inf
    return gap / size if size else (0.0 if gap == 0 else math.inf)
