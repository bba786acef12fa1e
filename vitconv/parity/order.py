"""Blocks that run in another order than they are numbered: seen in the run, and put in order ahead of the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitconv.parity.cause import Cause, cause_of
from vitconv.parity.faults.error import Item, Left, Scale
from vitconv.parity.faults.rebuild import Seen
from vitconv.parity.locus import Placed
from vitconv.parity.search import Search
from vitconv.parity.trace import Trace
from vitconv.vit.config import ViTConfig


@dataclass(frozen=True)
class Order:
    """The blocks of a network of `depth`, in the order in which they ran."""

    depth: int
    ran: tuple[int, ...]

    @property
    def fault(self) -> tuple[str, str]:
        """Return the name in the catalogue, with blocks, and what it is in words."""
        straight = tuple(range(self.depth))
        missing = tuple(i for i in straight if i not in self.ran)
        if self.ran == straight[::-1]:
            named = Placed("blocks-reversed")
        elif missing and self.ran == tuple(i for i in straight if i in self.ran):
            named = Placed("block-missing", missing)
        elif (at := _exchanged(self.ran)) is not None:
            named = Placed("swapped-with-next", (at,))
        else:
            return "blocks-order", f"blocks run in the order {', '.join(map(str, self.ran))}"
        return str(named), named.title()

    def config(self, config: ViTConfig) -> ViTConfig:
        """Return the configuration of a network that has the blocks that ran, as they ran."""
        return dataclasses.replace(config, depth=len(self.ran))

    def weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return that network's canonical weights."""
        every = {n: w for n, w in weights.items() if not n.startswith("blocks.")}
        for at, block in enumerate(self.ran):
            start = f"blocks.{block}."
            every |= {f"blocks.{at}.{n[len(start) :]}": w for n, w in weights.items() if n.startswith(start)}
        return every

    def name(self, name: str) -> str | None:
        """Return the name of a value or a tensor in that network; None: it belongs to no one place there."""
        parts = name.split(".")
        if parts[0] != "blocks":
            # The embedding may be met at the input of the block that is numbered first.
            return None if name == "embed" and self.ran[:1] != (0,) else name
        places = [str(at) for at, block in enumerate(self.ran) if block == int(parts[1])]
        return ".".join(["blocks", *places, *parts[2:]]) if len(places) == 1 else None

    def _named(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {new: x for name, x in values.items() if (new := self.name(name)) is not None}

    def run(self, run: Left) -> Seen:
        """Return a trace under the names of that network, without what belongs to no one place there."""
        taps = self._named(run.taps)
        embed = {n: x for n, x in taps.items() if n == "embed"}
        # Blocks were met as they ran; the embedding was, perhaps, at the input of one of them.
        return Seen({**embed, **taps}, run.output, self._named(run.tap_grads), self._named(run.grads))

    def scale(self, scale: Scale) -> Scale:
        """Return a scale of that trace under the same names."""

        def named(values: Mapping[Item, float]) -> dict[Item, float]:
            return {(kind, new): v for (kind, name), v in values.items() if (new := self.name(name)) is not None}

        return Scale(named(scale.size), named(scale.allowed))


def order_of(runs: Sequence[Trace], depth: int) -> Order | None:
    """Return the order in which the blocks of a plain network of this depth ran, or None where it is that of numbers.

    None, too, where blocks cannot be told: no values of theirs were kept.
    """
    ran = tuple(int(i) for i in runs[0].facts.get("blocks", "").split())
    return Order(depth, ran) if ran and ran != tuple(range(depth)) else None


def _exchanged(ran: tuple[int, ...]) -> int | None:
    """Return i where blocks i and i + 1 alone are exchanged."""
    off = [at for at, block in enumerate(ran) if at != block]
    if len(off) == 2 and off[1] == off[0] + 1 and ran[off[0]] == off[1] and ran[off[1]] == off[0]:
        return off[0]
    return None


def explained_in_order(order: Order, plain: Search) -> Cause:
    """Search with the blocks in the order in which they ran; nothing is found where that does not explain the rest.

    Args:
        order: the order.
        plain: the search with the blocks in the order of their numbers.
    """
    assert isinstance(plain.config, ViTConfig)
    samples = [
        dataclasses.replace(s, seen=order.run(s.seen), scale=None if s.scale is None else order.scale(s.scale))
        for s in plain.samples
    ]
    weights = order.weights(plain.weights)
    fresh: dict[str, Any] = {"tried": {}, "runs": 0, "stretches": 0}
    search = dataclasses.replace(plain, config=order.config(plain.config), weights=weights, samples=samples, **fresh)
    unordered, (first, found) = plain.state(()), search.run()
    if unordered is None or first is None or not (first.passes or found):
        return Cause()
    cause = cause_of(search, first, found, lambda at: str(order.ran[at]))
    name, words = order.fault
    titles = (words, *cause.titles)
    return dataclasses.replace(
        cause,
        found=(name, *cause.found),
        titles=titles,
        others=tuple((name, *names) for names in cause.others),
        before=max(unordered.left.forward, unordered.left.backward),
        detail=(unordered.left, first.left if cause.detail is None else cause.detail[1]),
        rounds=cause.rounds + 1,
        reason=f"side {{B}} is side {{A}} with this: {' and '.join(titles)}",
    )
