"""Which planted faults are seen, and which are named: a matrix over networks, weights and precisions.

Networks are timm's, spoiled by `vitconv.bench.mutate`, which knows nothing of the fault catalogue; the explainer is
shown nothing but traces.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconv.bench.mutate import Mutation, embed_and_head
from vitconv.bench.mutate_block import in_blocks
from vitconv.bench.networks import host_of, mutations, networks
from vitconv.bench.stage_networks import stage_networks
from vitconv.hosts.base.host import Spec
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import bridge_of, state_of
from vitconv.parity.explain import Cause, explain_traces, in_a_row
from vitconv.parity.faults.error import TIMES, exact_scale, noise_scale, ratios
from vitconv.parity.faults.fault import AnyConfig
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.faults.randomness import name_random
from vitconv.parity.precision import precision_of
from vitconv.parity.probe import probe_images, probe_weights
from vitconv.parity.trace import Trace, trace
from vitconv.vit.config import config_from_shapes

__all__ = ["Bench", "Cell", "bench_of", "cell", "mutations", "networks", "pairs", "summary", "weights_of"]

INPUTS = ("coloured", "low-variance")


@dataclass
class Bench:
    """One clean network with its weights, and what it does.

    `weights`: init (timm's own initialisation), like (trained-like) or trained.
    """

    name: str
    weights_name: str
    net: Any
    weights: dict[str, Tensor] = field(default_factory=dict)
    runs: dict[str, list[Trace]] = field(default_factory=dict)
    _pooled: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.net = self.net.double().eval()
        self.host = host_of(self.net)
        built = self.host.describe(self.net, Spec())
        self.images = {n: x for n, x in probe_images(built.inputs, 0).items() if n in INPUTS}
        self.bridge = bridge_of(state_of(self.net), built.dialects, built.facts)
        if self.weights_name == "like":
            drawn = probe_weights(self.bridge.shapes, 0)
            for name, scale in drawn.items():
                if name.endswith("logit_scale"):
                    # On both sides of its limit, log 100; but there the mask shows that transformers adds twice.
                    scale.copy_(torch.linspace(1.0, 2.5 if self.name.startswith("transformers") else 5.0, len(scale)))
            self.bridge.write(drawn, state_of(self.net))
        self.weights = {n: w.detach() for n, w in self.bridge.read(state_of(self.net)).items()}
        self.config = configuration(self.bridge.shapes, built.facts)
        if isinstance(self.config, FlatConfig):
            self.weights = self.config.flat(self.weights)

    def traces(self, net: Any, precision: str, *, backward: bool = True, seed: int = 0) -> list[Trace]:
        """Run a network of this kind on all images."""
        net = copy.deepcopy(net).to(precision_of(precision).dtype)
        built = self.host.describe(net, Spec())
        runs = [
            trace(built, x, 0, precision, inputs=name, bridge=self.bridge, backward=backward, seed=seed)
            for name, x in self.images.items()
        ]
        return [in_a_row(self.config, r) for r in runs] if isinstance(self.config, FlatConfig) else runs

    def clean(self, precision: str) -> list[Trace]:
        """Run the network itself; once."""
        if precision not in self.runs:
            self.runs[precision] = self.traces(self.net, precision)
        return self.runs[precision]

    def spoiled(self, *mutations: Mutation) -> Any:
        """Return a copy with faults planted."""
        net = copy.deepcopy(self.net)
        for mutation in mutations:
            mutation.plant(net)
        return net

    def pooled(self, precision: str) -> Any:
        """Return the regression over many inputs, for what is less than rounding in each of them; made once."""
        from vitconv.bench.half import HalfBench

        if precision not in self._pooled:
            self._pooled[precision] = HalfBench(self, precision)
        return self._pooled[precision]

    def explain(self, net: Any, precision: str) -> Cause:
        """Explain what a network does that should be this one.

        Raises:
            RuntimeError: the clean network itself could not be rebuilt, so the bench is at fault.
        """
        cause = explain_traces(
            self.config,
            self.weights,
            list(self.images.values()),
            self.traces(net, precision),
            right=self.clean(precision),
        )
        if cause.unsound:
            raise RuntimeError(f"{self.name}, {self.weights_name}, {precision}: {cause.reason}")
        return cause


def configuration(shapes: Mapping[str, tuple[int, ...]], facts: Semantics) -> AnyConfig:
    """Return the configuration of a plain network or one of stages, from its canonical shapes and its facts."""
    if not any(name.startswith("stages.") for name in shapes):
        return config_from_shapes(shapes, facts)
    from vitconv.vit.stages.config import config_of_stages

    return FlatConfig(config_of_stages(shapes, facts))


def weights_of(digits: Path | None) -> list[tuple[str, str]]:
    """Return (network, weights) of every bench.

    Each plain network as initialised and trained-like, the trained one, and networks of stages trained-like.
    """
    trained = [] if digits is None else [("digits", "trained")]
    plain = ((name, kind) for name in networks() for kind in ("like", "init"))
    return [*trained, *plain, *((name, "like") for name in stage_networks())]


def bench_of(name: str, weights: str, digits: Path | None = None) -> Bench:
    """Return one clean network, made anew."""
    if name == "digits":
        import timm

        return Bench(name, weights, timm.create_model(f"local-dir:{digits}", pretrained=True))
    return Bench(name, weights, {**networks(), **stage_networks()}[name]())


def pairs(bench: Bench, count: int) -> list[tuple[Mutation, Mutation]]:
    """Return pairs to plant together: one outside of the blocks and one inside, and some with both inside."""
    draw = random.Random(0)
    outside = [m for m in embed_and_head() if m.fits(bench.net) and not _whole(m)]
    inside = [m for m in in_blocks() if m.fits(bench.net) and not m.random and "" not in m.truth]
    named = {m.name: m for m in inside}
    both = [
        (named[a], named[b])
        for a, b in itertools.product(
            ("eps 1e-5 in blocks", "rows kqv", "rows read per head", "eps 1e-12 at the end"),
            ("tanh GELU", "QuickGELU", "scale too large by 1 %", "tanh GELU in block 2", "no LayerScale"),
        )
        if a in named and b in named
    ]
    crossed = draw.sample([(a, b) for a in outside for b in inside], count)
    return [*crossed, *draw.sample(both, min(len(both), count // 2))]


def _whole(mutation: Mutation) -> bool:
    """Whether it changes the same function whatever else is changed."""
    return "class-last" in mutation.truth


@dataclass(frozen=True)
class Cell:
    """What came of one planting.

    `effect`: the function changed at these weights. `seen`: the precision shows it. `named`: the explainer's answer
    holds the truth. `accused`: it named something, and that was not it. `hidden`: it is below rounding, and the report
    says that it could not be excluded.
    """

    network: str
    weights: str
    precision: str
    mutation: str
    truth: tuple[str, ...]
    effect: bool
    seen: bool
    named: bool
    accused: bool
    answer: tuple[tuple[str, ...], ...]
    before: float
    after: float
    runs: int
    hidden: bool = False


def cell(bench: Bench, planted: Sequence[Mutation], precision: str) -> Cell:
    """Plant and ask."""
    net = bench.spoiled(*planted)
    if any(m.random for m in planted):
        return _random_cell(bench, planted, net, precision)
    effect, hidden = _change(bench, net, precision)
    cause = bench.explain(net, precision)
    if precision != "fp64" and effect and cause.reason.endswith("no fault"):
        return bench.pooled(precision).cell(planted, net)
    truths = {frozenset(t) for t in itertools.product(*(m.truth for m in planted))}
    # Of two faults, one can hide the other: under a causal mask no image reaches a class token that stands first.
    truths |= {frozenset((t,)) for m in planted if len(planted) > 1 and _alone(bench, m, net) for t in m.truth}
    answers = {frozenset(names - {""}) for names in cause.names}
    named = bool({frozenset(t - {""}) for t in truths} & answers)
    seen = not cause.reason.endswith("no fault")
    names = tuple(dict.fromkeys([cause.found, *cause.others])) if cause.found else ()
    truth = tuple("|".join(m.truth) for m in planted)
    text = " + ".join(m.name for m in planted)
    return Cell(
        bench.name,
        bench.weights_name,
        precision,
        text,
        truth,
        effect,
        seen,
        named,
        bool(cause.found) and not named,
        names,
        cause.before,
        cause.after,
        cause.runs,
        hidden,
    )


def _alone(bench: Bench, mutation: Mutation, net: Any) -> bool:
    """Whether a network with several faults computes what it does with this one alone."""
    one, both = bench.traces(bench.spoiled(mutation), "fp64"), bench.traces(net, "fp64")
    return all(max(ratios(x, y, exact_scale(y)).values()) <= 1 for x, y in zip(one, both, strict=True))


def _change(bench: Bench, net: Any, precision: str) -> tuple[bool, bool]:
    """Return whether the function changed at these weights, and whether by less than the clean network's rounding."""
    spoiled = bench.traces(net, "fp64")
    effect, above = False, precision == "fp64"
    for j, (mine, theirs) in enumerate(zip(bench.clean("fp64"), spoiled, strict=True)):
        effect = effect or max(ratios(mine, theirs, exact_scale(theirs)).values()) > 1
        if precision != "fp64":
            scale = noise_scale(theirs, bench.clean(precision)[j], mine, precision_of(precision).unit)
            found = ratios(mine, theirs, scale)
            above = above or any(r * TIMES[item[0]] > 1 for item, r in found.items())
    return effect, effect and not above


def _random_cell(bench: Bench, planted: Sequence[Mutation], net: Any, precision: str) -> Cell:
    images = {"coloured": bench.images["coloured"].repeat(3, 1, 1, 1)}
    kept, bench.images = bench.images, images
    try:
        runs = [bench.traces(net, precision, backward=False, seed=s)[0] for s in range(1, 6)]
    finally:
        bench.images = kept
    found = name_random(runs)
    truth = tuple(t for m in planted for t in m.truth)
    right = found in truth
    text = " + ".join(m.name for m in planted)
    answer = () if found is None else ((found,),)
    seen = found is not None
    return Cell(
        bench.name, bench.weights_name, precision, text, truth, True, seen, right, seen and not right, answer, 0, 0, 5
    )


def summary(cells: Sequence[Cell]) -> Mapping[str, int]:
    """Count: planted, without effect at these weights, below rounding, missed, named, accused wrongly."""
    real = [c for c in cells if c.effect and not c.hidden]
    return {
        "planted": len(cells),
        "no effect": sum(not c.effect for c in cells),
        "hidden": sum(c.effect and c.hidden for c in cells),
        "missed": sum(not c.seen for c in real),
        "named": sum(c.named for c in real),
        "real": len(real),
        "accused": sum(c.accused for c in cells),
    }
