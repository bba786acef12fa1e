"""Planted faults that are only to be seen in half precision: by regression over many inputs, with a detection limit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from vitconv.bench.clean import Clean, variants
from vitconv.bench.detection import Bench, Cell
from vitconv.bench.mutate import Mutation
from vitconv.hosts.base.host import Spec
from vitconv.parity.precision import precision_of
from vitconv.parity.probe import probe_images
from vitconv.parity.regress import FLOOR, Predictions, Regression, predict, regress_deeper
from vitconv.parity.trace import Trace, trace
from vitconv.vit.config import ViTConfig


class HalfBench:
    """One clean network in half precision, and what every fault of the catalogue would change about it."""

    def __init__(self, bench: Bench, precision: str, count: int = 12) -> None:
        self.bench, self.precision = bench, precision
        # Regression knows plain networks alone.
        assert isinstance(bench.config, ViTConfig)
        self.config = bench.config
        inputs = bench.host.describe(bench.net, Spec()).inputs
        self.images = [probe_images(inputs, seed)["coloured"] for seed in range(count)]
        self.predictions: Predictions = predict(self.config, bench.weights, self.images)
        self.local: dict[int, Predictions] = {}
        self.right = self.traces(bench.net)

    def traces(self, net: Any) -> list[Trace]:
        """Run a network of this kind, forward only."""
        net = copy.deepcopy(net).to(precision_of(self.precision).dtype)
        built = self.bench.host.describe(net, Spec())
        return [trace(built, x, 0, self.precision, bridge=self.bench.bridge, backward=False) for x in self.images]

    def ask(self, net: Any) -> Regression:
        """Look for faults in what a network did."""
        bench = self.bench
        return regress_deeper(
            self.config, bench.weights, self.images, self.right, self.traces(net), self.predictions, self.local
        )

    def cell(self, planted: Sequence[Mutation], net: Any = None) -> Cell:
        """Plant and ask: `seen` when it is named or at least excluded by none, `hidden` when it is said to be open."""
        found = self.ask(self.bench.spoiled(*planted) if net is None else net)
        truth = {t for m in planted for t in m.truth}
        accused = {name.partition("@")[0] for name in found.accused}
        named = bool(truth & accused)
        hidden = not named and bool(truth & set(found.undetectable))
        return Cell(
            network=self.bench.name,
            weights=self.bench.weights_name,
            precision=self.precision,
            mutation=" + ".join(m.name for m in planted),
            truth=tuple("|".join(m.truth) for m in planted),
            effect=not truth <= {e.name for e in found.estimates if e.size == 0},
            seen=named or found.ratio > FLOOR,
            named=named,
            accused=bool(found.accused) and not named,
            answer=tuple((name,) for name in found.accused),
            before=found.ratio,
            after=found.cause().after,
            runs=0,
            hidden=hidden,
        )

    def clean(self) -> Iterator[Clean]:
        """Yield the verdicts on equivalent forms of the network, none of which may be accused."""
        for name, (change, context) in variants().items():
            net = copy.deepcopy(self.bench.net)
            change(net)
            with context():
                found = self.ask(net)
            where = f"{self.bench.name}, {self.bench.weights_name}: {name}, by regression"
            yield Clean(where, self.precision, found.ratio > FLOOR, found.accused)


def forward_only(mutations: Sequence[Mutation], net: Any) -> list[Mutation]:
    """Return those that fit a network, change values, are not random, and that a regression can find."""
    seen = [m for m in mutations if not (m.random or m.watched or m.exact) and not m.truth[0].startswith("backward-")]
    return [m for m in seen if "" not in m.truth and m.fits(net)]
