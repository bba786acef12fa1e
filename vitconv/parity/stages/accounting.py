"""Accounting: every tensor mapped and back, weights compared bit by bit, facts that differ; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from vitconv.layout.match import collapse
from vitconv.parity.bridge import state_of
from vitconv.parity.pair import Pair
from vitconv.parity.side import Side, module_of
from vitconv.parity.stage import Row, Stage, stage

KEY, TITLE = "accounting", "Every tensor accounted for"
SHOWN = 20
# What wrote a file says nothing of the function; its other facts do.
ASIDE = ("release", "mlp_dropout")


def account(pair: Pair) -> Stage:
    """Compare what both sides consist of."""
    rows = [*_mapped(pair), *_shared(pair), *(_trip_back(s) for s in (pair.a, pair.b)), *_loaded(pair), *_weights(pair)]
    rows += [*_facts(pair), *_sites(pair.a), *_sites(pair.b), *_when_training(pair)]
    notes = [f"{s.label}: {note}" for s in (pair.a, pair.b) for note in s.notes]
    for s in (pair.a, pair.b):
        if s.edits is not None:
            notes += [f"{s.label}: {x.edit}: {x.what}; gradients go back {x.adjoint}" for x in s.edits.network.log]
    return stage(KEY, TITLE, rows, notes)


def _mapped(pair: Pair) -> Iterator[Row]:
    a, b = (s.edits.shapes if s.edits is not None else s.shapes for s in (pair.a, pair.b))
    left, right = pair.a.shapes, pair.b.shapes
    count = len(left), len(right)
    yield Row(
        "tensors",
        "ok",
        f"{count[0]} canonical tensors of A ({pair.a.dialect}), {count[1]} of B ({pair.b.dialect}), every element once",
        {"a": count[0], "b": count[1]},
    )
    if pair.a.edits is not None or pair.b.edits is not None:
        return
    for label, here, there in (("A", a, b), ("B", b, a)):
        only = [n for n in here if n not in there]
        if only:
            yield Row(
                f"only in {label}",
                "fail",
                f"{', '.join(collapse(only))}: the other side has no such parameters{_filled(label, only)}",
                {"tensors": len(only)},
            )
    other = [n for n in a if n in b and a[n] != b[n]]
    if other:
        lines = [f"{n} {list(a[n])} and {list(b[n])}" for n in other[:SHOWN]]
        yield Row("shapes", "fail", "; ".join(lines), {"tensors": len(other)})


def _filled(label: str, only: Sequence[str]) -> str:
    """Return how to compare where a layout has biases that the other cannot hold, as those that `convert` makes up."""
    if not all(name.endswith(".bias") for name in only):
        return ""
    return "; where that is meant, compare with zeros there: " + " ".join(
        f"--edit-{label.lower()} fill:{name}=0" for name in only[:SHOWN]
    )


def _shared(pair: Pair) -> Iterator[Row]:
    """Say which tensors are one and the same in a side: modules that are used twice."""
    left, right = (side.bridge.shared(state_of(side.built.module)) for side in (pair.a, pair.b))
    for label, here, there in (("A", left, right), ("B", right, left)):
        alone = [group for group in here if group not in there]
        if alone:
            pairs = ", ".join(collapse(name for group in alone for name in group))
            yield Row(
                f"shared in {label}",
                "fail",
                f"{pairs}: of each two or more are one tensor in {label}, and tensors of their own on the other side: "
                "a module is used several times",
                {"groups": len(alone)},
            )
    both = [group for group in left if group in right]
    if both:
        names = ", ".join(collapse(name for group in both for name in group))
        yield Row("shared", "info", f"{names}: of each two or more are one tensor on both sides", {"groups": len(both)})


def _trip_back(side: Side) -> Row:
    """Carry the network's own tensors to canonical ones and back into a network of NaN; every bit must return."""
    state = {k: v.detach() for k, v in state_of(side.built.module).items()}
    emptied = {k: _poisoned(v) for k, v in state.items()}
    consts = {side.bridge.prefix + k for k in side.bridge.match.consts}
    side.bridge.write(side.bridge.read(state), emptied)
    wrong = [k for k in state if k not in consts and not same_bits(state[k], emptied[k])]
    if wrong:
        return Row(f"{side.label}: there and back", "fail", f"changed: {', '.join(collapse(wrong))}", blame="undecided")
    return Row(f"{side.label}: there and back", "ok", f"{len(state) - len(consts)} tensors return bit for bit")


def _poisoned(x: Tensor) -> Tensor:
    return torch.full_like(x, float("nan")) if x.is_floating_point() else torch.zeros_like(x)


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Return True when both tensors are the same bits: dtype, shape, and NaN payloads too."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    left, right = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (x, y))
    return torch.equal(left, right)


def _loaded(pair: Pair) -> Iterator[Row]:
    """Load the given weights in float32, read them again, and compare."""
    for side in (pair.a, pair.b):
        if side.weights is None:
            continue
        back = side.bridge.read(state_of(module_of(side).module))
        # Of names that are one tensor the last one's weights are in it, which is a row of its own.
        several = {name for group in side.bridge.shared(state_of(side.built.module)) for name in group}
        apart = {n: t for n, t in side.weights.items() if n not in several}
        rounded = [n for n, t in apart.items() if not torch.equal(back[n].double(), t.double())]
        unfit = [n for n in rounded if side.weights[n].isfinite().all()]
        detail = f"{len(back)} tensors of {side.origin}, read again from the network"
        if unfit:
            names = collapse(unfit)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            detail = f"float32 does not hold the weights of {', '.join(names[:SHOWN])}{more}; they were rounded"
        yield Row(f"{side.label}: weights loaded", "warn" if unfit else "ok", detail, {"tensors": len(back)})


def _unstated(pair: Pair) -> Row:
    """Say that only probe weights are run, and whether the users' own networks came with the same ones."""
    a, b = pair.a, pair.b
    said = "neither side has any: only probe weights are run"
    if not a.host.name == b.host.name == "python":
        return Row("weights", "info", said)
    left, right = (side.bridge.read(state_of(side.built.module)) for side in (a, b))
    common = [n for n in left if n in right and left[n].shape == right[n].shape]
    unequal = [n for n in common if not same_bits(left[n], right[n])]
    if not unequal:
        return Row("weights", "info", f"{said}; the networks came with the same ones")
    names = collapse(unequal)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    which = f"{len(unequal)} of {len(common)} tensors ({', '.join(names[:SHOWN])}{more})"
    how = f"to compare those, name them: {a.spec}@CHECKPOINT"
    return Row("weights", "warn", f"{said}; those the networks came with differ in {which}; {how}")


def _came_with(side: Side) -> Iterator[Row]:
    """Compare what the user's own network came with, when most of it is what it is given: it was loaded, and not whole.

    One that was never loaded has nothing in common with the weights but what every init holds, such as zeros.
    """
    if side.own or side.weights is None or side.host.name != "python":
        return
    came = side.bridge.read(state_of(side.built.module))
    drawn = {n: t for n, t in side.weights.items() if n in came and t.numel() > 1 and bool((t != t.flatten()[0]).any())}
    # Rounding to the network's own dtype is no difference.
    unequal = [n for n, t in drawn.items() if not torch.equal(came[n], t.to(came[n].dtype))]
    if not unequal or 2 * len(unequal) >= len(drawn):
        return
    names = collapse(unequal)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    yield Row(
        f"{side.label}: came with",
        "fail",
        f"{len(drawn) - len(unequal)} of {len(drawn)} tensors that the network comes with are those of {side.origin}, "
        f"and {', '.join(names[:SHOWN])}{more} are others: they were not loaded, or were drawn anew after it; "
        "everything below is run with the given weights in their place",
        {"same": len(drawn) - len(unequal), "of": len(drawn)},
    )


def _weights(pair: Pair) -> Iterator[Row]:
    a, b = pair.a, pair.b
    if a.weights is None or b.weights is None:
        yield _unstated(pair)
        return
    carried = next((s for s in (a, b) if not s.own), None)
    for side in (a, b):
        yield from _came_with(side)
    if carried is not None:
        yield Row("weights", "ok", f"the same for both, from {carried.origin}")
        if not (a.own and b.own) and (a.edits or b.edits):
            return
    left: Mapping[str, Tensor] = a.weights
    right: Mapping[str, Tensor] = b.weights
    common = [n for n in left if n in right and left[n].shape == right[n].shape]
    unequal = [n for n in common if not same_bits(left[n], right[n])]
    if carried is not None and not unequal:
        return
    yield Row(
        "same weights",
        "fail" if unequal else "ok",
        f"{len(common) - len(unequal)} of {len(common)} canonical tensors are the same bits",
        {"same": len(common) - len(unequal), "of": len(common)},
    )
    for name in unequal[:SHOWN]:
        x, y = left[name].double(), right[name].double()
        d, size = (x - y).abs(), float(x.abs().max())
        kinds = "" if left[name].dtype == right[name].dtype else f", {left[name].dtype} and {right[name].dtype}"
        worst = float(d.max())
        count = int((d != 0).sum())
        detail = f"{count} of {x.numel()} elements, largest difference {worst:.3g}{kinds}"
        yield Row(f"weight {name}", "fail", detail, {"max_abs": worst, "relative": worst / size if size else None})
    if len(unequal) > SHOWN:
        yield Row("weights, more", "fail", f"{len(unequal) - SHOWN} more tensors differ", {"tensors": len(unequal)})


def _facts(pair: Pair) -> Iterator[Row]:
    different = pair.a.facts.differences(pair.b.facts)
    told = {k: v for k, v in different.items() if k not in ASIDE}
    for name, (x, y) in told.items():
        yield Row(f"fact {name}", "warn", f"{x} here, {y} there", {"a": x, "b": y})
    left, right = pair.a.facts.known(), pair.b.facts.known()
    if not told:
        both = sum(name in right for name in left)
        yield Row("facts", "ok", f"{both} facts are known of both sides, and none differs", {"both": both})
    for label, here, there in (("A", left, right), ("B", right, left)):
        only = [f"{name} ({value})" for name, value in here.items() if name not in there and name not in ASIDE]
        if only:
            yield Row(f"facts known of {label} only", "info", ", ".join(only), {"count": len(only)})


def _when_training(pair: Pair) -> Iterator[Row]:
    """Say what only a training network does, for both are compared in eval mode."""
    rates: list[dict[str, list[float]]] = []
    for side in (pair.a, pair.b):
        kinds: dict[str, list[float]] = {}
        for site in side.built.survey.random:
            if site.rate > 0:
                kinds.setdefault(site.kind, []).append(site.rate)
        rates.append({kind: sorted(found) for kind, found in kinds.items()})
    left, right = rates
    for kind in sorted({*left, *right}):
        x, y = left.get(kind, []), right.get(kind, [])
        said = f"{_rates(x)} in A, {_rates(y)} in B"
        name = f"{kind} while training"
        values = {"a": len(x), "b": len(y)}
        if x == y:
            yield Row(name, "info", f"{said}; switched off in both to compare them", values)
        else:
            yield Row(
                name, "warn", f"{said}: they train differently, and that is not compared: both are in eval", values
            )
    backends = [side.built.survey.attention_backend for side in (pair.a, pair.b)]
    if len(set(backends)) > 1:
        yield Row(
            "attention by", "info", f"{backends[0]} in A, {backends[1]} in B", {"a": backends[0], "b": backends[1]}
        )


def _rates(found: list[float]) -> str:
    if not found:
        return "none"
    low, high = f"{found[0]:g}", f"{found[-1]:g}"
    return f"{len(found)} sites at {low}" + (f" to {high}" if low != high else "")


def _sites(side: Side) -> Iterator[Row]:
    survey = side.built.survey
    active = [f"{r.name} ({r.kind} {r.rate:g})" for r in survey.random if r.active]
    if active or survey.training or survey.mixed:
        what = [f"random sites are active: {', '.join(active)}"] if active else []
        what += ["the network is in training mode"] if survey.training else []
        what += [f"in another mode than the rest: {', '.join(survey.mixed[:8])}"] if survey.mixed else []
        yield Row(f"{side.label}: modes", "warn", "; ".join(what) + "; both are put into eval mode")
