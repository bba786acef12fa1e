"""Spoil the order in which a timm network runs its blocks. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from vitconv.bench.mutate import Mutation, override


def _ran(order: Callable[[int], Sequence[int]]) -> Callable[[Any], None]:
    """Let the blocks run so; `order` is given how many there are."""

    def plant(net: Any) -> None:
        def features(self: Any, x: Tensor, **_: Any) -> Tensor:
            x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
            for i in order(len(self.blocks)):
                x = self.blocks[i](x)
            return self.norm(x)

        override(net, forward_features=features)

    return plant


def _watched(name: str, truth: tuple[str, ...], plant: Callable[[Any], None]) -> Mutation:
    return Mutation(name, truth, plant, watched=True)


def orders() -> Iterator[Mutation]:
    """Yield them."""
    yield _watched("blocks backwards", ("blocks-reversed",), _ran(lambda n: range(n)[::-1]))
    yield _watched("blocks 0, 1 run exchanged", ("swapped-with-next",), _ran(lambda n: (1, 0, *range(2, n))))
    yield _watched("a block that never runs", ("block-missing",), _ran(lambda n: (0, *range(2, n))))
    yield _watched("last block that never runs", ("block-missing",), _ran(lambda n: range(n - 1)))
    yield _watched("a block that runs twice", ("blocks-order",), _ran(lambda n: (0, 1, 1, *range(2, n))))
    yield _watched("blocks turned", ("blocks-order",), _ran(lambda n: (*range(1, n), 0)))
