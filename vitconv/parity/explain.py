"""Why do two sides part: the fault that, put into the one, gives exactly what the other did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from vitconv.errors import Refused, VitconvError
from vitconv.layout.semantics import Semantics
from vitconv.parity.cause import Cause, cause_of
from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import Scale, exact_scale, noise_scale, widened
from vitconv.parity.faults.fault import AnyConfig, Knobs
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.faults.randomness import first_random, name_random
from vitconv.parity.locus import Placed
from vitconv.parity.order import explained_in_order, order_of
from vitconv.parity.pair import GIVEN, PROBE, Pair, pair_of
from vitconv.parity.precision import precision_of
from vitconv.parity.search import Budget, Sample, Search, State
from vitconv.parity.side import Side
from vitconv.parity.trace import Trace, cotangent_of
from vitconv.parity.where import Where
from vitconv.vit.config import ViTConfig, config_from_shapes

# Coloured pictures show what is swapped, those of low variance show an eps.
INPUTS = ("coloured", "low-variance")
# The faults that say how well constants are known which codebases make or keep in float32, and what these are.
ROUNDED = {"coordinates-rounded": "coordinates", "rope-rounded": "rotary positions"}
# Runs with different random numbers; a path that is dropped in one image of ten shows in most of four pairs.
RANDOM_RUNS = 5


def explain(
    side_a: Side,
    side_b: Side,
    where: Where | None = None,
    budget: Budget | None = None,
    *,
    pair: Pair | None = None,
) -> Cause:
    """Search the fault catalogue for what makes side B (or A) compute something else than the other.

    The side whose facts are known is rebuilt as the reference ViT and must compute the same as it does in float64;
    faults are put into the rebuilt one, until it does what the other side did. In float64 that is a proof.

    Args:
        side_a: one side.
        side_b: the other side.
        where: where they part; it says at which weights, and in which precision. Float64 and probe weights unless
            given.
        budget: what the search may cost.
        pair: the sides on the bench, with the runs made so far.
    """
    bench = pair or pair_of(side_a, side_b)
    of = PROBE if where is None else where.weights
    if where is not None and where.precision != "fp64":
        from vitconv.parity.profile import explain_numerics

        return explain_numerics(bench, where.precision, of)
    reasons = []
    for side in (bench.b, bench.a):
        random = _random(bench, side, of)
        if random is not None:
            return random
    last: Cause | None = None
    for right, wrong in ((bench.a, bench.b), (bench.b, bench.a)):
        cause = _one_way(bench, right, wrong, of, budget or Budget())
        if cause.found:
            return cause
        reasons.append(cause.reason)
        if last is None or (last.unsound and not cause.unsound):
            last = cause
    assert last is not None
    return dataclasses.replace(last, reason="; ".join(dict.fromkeys(reasons)))


def _random(pair: Pair, side: Side, of: str) -> Cause | None:
    inputs = next(iter(pair.images))
    runs = [pair.run(side, inputs, "fp64", of, backward=False, seed=seed) for seed in range(1, 3)]
    site = first_random(runs)
    if site is None:
        return None
    # More runs, and images enough to see some dropped and others not.
    images = pair.images[inputs]
    images = images.repeat(-(-6 // len(images)), *[1] * (images.ndim - 1))
    more = [
        pair.run(side, inputs, "fp64", of, backward=False, seed=seed, images=images)
        for seed in range(1, RANDOM_RUNS + 1)
    ]
    name = name_random(more) or name_random(runs)
    if name is None:
        said = f"side {side.label} is random in eval, first at {site}, and not as dropout or dropped paths are"
        return Cause(side=side.label, unsound=True, reason=said, proven=False)
    reason = f"side {side.label} is random in eval: {FAULTS[name].title}"
    return Cause(found=(name,), side=side.label, titles=(FAULTS[name].title,), reason=reason, rounds=1, proven=False)


def _one_way(pair: Pair, right: Side, wrong: Side, of: str, budget: Budget) -> Cause:
    config: AnyConfig
    try:
        config = _flat(right, wrong) or rebuilt_config(right, wrong)
    except VitconvError as e:
        return Cause(
            side=wrong.label,
            unsound=True,
            # One sentence, whatever lines the refusal has.
            reason=f"side {right.label} cannot be rebuilt as the reference ViT: {' '.join(str(e).split())}",
        )
    weights = pair.weights(right, of)
    stored = of == GIVEN and _unlike(weights, pair.weights(wrong, of))
    names = [n for n in INPUTS if n in pair.images] or list(pair.images)[:1]
    runs = {side.label: [_unscaled(pair, pair.run(side, n, "fp64", of), of) for n in names] for side in (right, wrong)}
    images = [pair.images[n] for n in names]
    if isinstance(config, FlatConfig):
        weights = config.flat(weights)
        runs = {label: [in_a_row(config, r) for r in row] for label, row in runs.items()}
    # Gradients of a side behind edits are in the other side's terms.
    gradients = right.edits is None
    cause = explain_traces(
        config,
        weights,
        images,
        runs[wrong.label],
        right=runs[right.label],
        seed=pair.seed,
        budget=budget,
        stored=stored,
        gradients=gradients,
    )
    if stored and not cause.found:
        cause = dataclasses.replace(cause, reason=f"the sides have their own weights, and these differ; {cause.reason}")
    reason = cause.reason.replace("{A}", right.label).replace("{B}", wrong.label)
    return dataclasses.replace(cause, side=wrong.label, reason=reason)


def _flat(right: Side, wrong: Side) -> FlatConfig | None:
    """Return the configuration of a side that is a network of stages, as `rebuilt_config` does; None: it is none."""
    if right.dialect_family != "stages":
        return None
    from vitconv.vit.stages.config import config_of_stages

    return FlatConfig(config_of_stages(right.shapes, right.facts.filled(wrong.facts.known())))


def in_a_row(config: FlatConfig, run: Trace) -> Trace:
    """Return the trace of a network of stages with the names of a row of blocks."""
    taps, tap_grads, grads = (config.flat(part) for part in (run.taps, run.tap_grads, run.grads))
    return dataclasses.replace(run, taps=taps, tap_grads=tap_grads, grads=grads)


def _unscaled(pair: Pair, run: Trace, of: str) -> Trace:
    """Leave out the taps that were brought to the other side's scale: the reference ViT has them in its own."""
    scaled = {tap for gains in pair.gains(of).values() for tap in gains}
    if not scaled:
        return run
    taps = {n: x for n, x in run.taps.items() if n not in scaled}
    return dataclasses.replace(run, taps=taps, tap_grads={n: g for n, g in run.tap_grads.items() if n not in scaled})


def rebuilt_config(right: Side, wrong: Side) -> ViTConfig:
    """Return the configuration of a side as the reference ViT; facts it does not show are taken from the other side.

    That is no leap of faith: the rebuilt network is run and must compute what the side does.

    Raises:
        Refused: facts are missing, or the reference does not compute this.
    """
    return config_of(right.shapes, right.facts, wrong.facts)


def config_of(shapes: Mapping[str, tuple[int, ...]], right: Semantics, wrong: Semantics) -> ViTConfig:
    """Return the configuration of `rebuilt_config` from a side's canonical shapes and the facts of both."""
    if any(name.startswith("stages.") for name in shapes):
        raise Refused(
            "it is a network of stages, whose faults are searched in float64 only; facts that differ are named,"
            " and --set-a or --set-b with the other side's value shows whether they explain it"
        )
    return config_from_shapes(shapes, right.filled({k: v for k, v in wrong.known().items() if k != "residual_alpha"}))


def explain_traces(
    config: AnyConfig,
    weights: Mapping[str, Tensor],
    images: Sequence[Tensor],
    wrong: Sequence[Trace],
    *,
    right: Sequence[Trace] = (),
    seed: int = 0,
    budget: Budget | None = None,
    stored: bool = False,
    gradients: bool = True,
    catalogue: Sequence[str] = tuple(FAULTS),
) -> Cause:
    """Search for what makes the traces `wrong` out of the reference ViT of `config` and canonical `weights`.

    Args:
        config: the reference ViT that computes what is right.
        weights: its canonical weights.
        images: of each trace.
        wrong: traces of the network under suspicion, in float64, or in float32 together with those of `right`.
        right: traces of the side that is right, in the same precision: proof that the reference is that side, and in
            float32 the measure of noise.
        seed: of the cotangent of the traces.
        budget: what the search may cost.
        stored: the network under suspicion has other weights, and its gradients are at those.
        gradients: whether gradients are in the terms of `weights`.
        catalogue: the faults to try.
    """

    def samples(runs: Sequence[Trace], scales: Sequence[Scale | None]) -> list[Sample]:
        kept = [_on_cpu(r if gradients else dataclasses.replace(r, grads={}, tap_grads={})) for r in runs]
        return [
            Sample(x.cpu(), cotangent_of(r.output.shape, seed) if gradients else None, r, scale)
            for x, r, scale in zip(images, kept, scales, strict=True)
        ]

    weights = {name: w.cpu() for name, w in weights.items()}
    precision = precision_of(wrong[0].precision)
    low = precision.name != "fp64"
    if right and not low:
        proof = Search(config, weights, samples(right, [exact_scale(r) for r in right]))
        base = proof.state(())
        if base is None or not base.passes:
            left = "it does not run" if base is None else f"it is off by {base.left}"
            return Cause(unsound=True, reason=f"the reference ViT is not side {{A}} with the facts it shows: {left}")
    scales: list[Scale | None] = [None] * len(wrong)
    if low:
        exact = Search(config, weights, samples(wrong, scales))
        plain = exact.plain()
        scales = [
            noise_scale(_on_cpu(r), _on_cpu(a), p, precision.unit) for r, a, p in zip(wrong, right, plain, strict=True)
        ]
    search = Search(
        config,
        weights,
        samples(wrong, scales),
        budget or Budget(),
        stored=stored,
        catalogue=tuple(catalogue),
        dtype=precision.dtype,
    )
    order = None if isinstance(config, FlatConfig) else order_of(wrong, config.depth)
    if order is not None and (cause := explained_in_order(order, search)).found:
        return cause
    first, found = search.run()
    if first is None:
        return Cause(unsound=True, reason="the reference ViT does not run with side {A}'s facts")
    rounded = next((name for name in ROUNDED if FAULTS[name].apply(Knobs(config)) is not None), None)
    if not low and not found and not first.passes and rounded is not None:
        return _cause_of_rounded(search, first, rounded)
    return cause_of(search, first, found)


def _cause_of_rounded(exact: Search, first: State, rounded: str) -> Cause:
    """Search again where constants that codebases keep in float32 are known to their rounding only.

    Two codebases make the coordinates of Swin V2, or the angles of rotary positions, by the same formula in another
    order, or one of them in float64.
    """
    base = exact.rebuilt(Knobs(exact.config), exact.backward)
    moved = FAULTS[rounded].apply(Knobs(exact.config))
    assert moved is not None
    other = exact.rebuilt(moved, exact.backward)
    scales = [
        widened(scale, other.run(s.images, s.cotangent), base.run(s.images, s.cotangent))
        for s, scale in zip(exact.samples, exact.scales, strict=True)
    ]
    samples = [dataclasses.replace(s, scale=scale) for s, scale in zip(exact.samples, scales, strict=True)]
    search = dataclasses.replace(exact, samples=samples, rough=rounded)
    start, found = search.run()
    if start is not None and start.passes:
        found = [dataclasses.replace(start, found=(Placed(rounded, None),))]
    cause = cause_of(search, first, found)
    if not found or cause.found == (rounded,):
        return cause
    reason = f"{cause.reason}; what is left is the rounding of {ROUNDED[rounded]} in float32"
    return dataclasses.replace(cause, reason=reason)


def _on_cpu(run: Trace) -> Trace:
    def moved(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: x.cpu() for name, x in part.items()}

    return dataclasses.replace(
        run, taps=moved(run.taps), tap_grads=moved(run.tap_grads), grads=moved(run.grads), output=run.output.cpu()
    )


def _unlike(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    both = one.keys() & two.keys()
    return any(one[n].shape != two[n].shape or not bool((one[n] == two[n]).all()) for n in both)
