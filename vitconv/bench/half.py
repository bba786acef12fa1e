"""Planted faults that are only to be seen in half precision: by regression over many inputs, with a detection limit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from vitconv.bench.detection import Bench, Cell
from vitconv.bench.mutate import Mutation
from vitconv.hosts.base.host import Spec
from vitconv.hosts.timm import HOST as TIMM
from vitconv.parity.precision import precision_of
from vitconv.parity.probe import probe_images
from vitconv.parity.regress import Predictions, Regression, predict, regress_deeper
from vitconv.parity.trace import Trace, trace


class HalfBench:
    """One clean network in half precision, and what every fault of the catalogue would change about it."""

    def __init__(self, bench: Bench, precision: str, count: int = 12) -> None:
        self.bench, self.precision = bench, precision
        inputs = TIMM.describe(bench.net, Spec()).inputs
        self.images = [probe_images(inputs, seed)["coloured"] for seed in range(count)]
        self.predictions: Predictions = predict(bench.config, bench.weights, self.images)
        self.right = self.traces(bench.net)

    def traces(self, net: Any) -> list[Trace]:
        """Run a network of this kind, forward only."""
        net = copy.deepcopy(net).to(precision_of(self.precision).dtype)
        built = TIMM.describe(net, Spec())
        return [trace(built, x, 0, self.precision, bridge=self.bench.bridge, backward=False) for x in self.images]

    def ask(self, net: Any) -> Regression:
        """Look for faults in what a network did."""
        return regress_deeper(
            self.bench.config, self.bench.weights, self.images, self.right, self.traces(net), self.predictions
        )

    def cell(self, planted: Sequence[Mutation]) -> Cell:
        """Plant and ask: `seen` when the difference is more than rounding, or named."""
        found = self.ask(self.bench.spoiled(*planted))
        truth = {t for m in planted for t in m.truth}
        accused = {name.partition("@")[0] for name in found.accused}
        named = bool(truth & accused)
        answer = tuple((name,) for name in found.accused)
        effect = not truth <= {e.name for e in found.estimates if e.size == 0}
        return Cell(
            self.bench.name,
            self.bench.weights_name,
            self.precision,
            " + ".join(m.name for m in planted),
            tuple("|".join(m.truth) for m in planted),
            effect,
            named or not truth & set(found.undetectable),
            named,
            bool(found.accused) and not named,
            answer,
            found.ratio,
            found.cause().after,
            0,
        )


def forward_only(mutations: Sequence[Mutation], net: Any) -> list[Mutation]:
    """Return those that fit a network, change values and are not random."""
    return [
        m
        for m in mutations
        if m.fits(net) and not m.random and "" not in m.truth and not m.truth[0].startswith("backward-")
    ]
