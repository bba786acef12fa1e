"""Where a network parts from the rebuilt one, and which faults could be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import FORWARD, Item, Left
from vitconv.parity.faults.fault import KINDS, Fault


@dataclass(frozen=True, order=True)
class Placed:
    """A fault, and the blocks it is in (None: everywhere). Its text is `name` or `name@3` or `name@2,3`.

    `number`: that of a fault that has one.
    """

    name: str
    layers: tuple[int, ...] | None = None
    number: float | None = None

    def __str__(self) -> str:
        return self.told()

    @property
    def fault(self) -> Fault:
        """Return the entry of the catalogue."""
        fault = FAULTS[self.name]
        return fault if self.number is None else fault.of(self.number)

    def told(self, block: Callable[[int], str] = str) -> str:
        """Return `name` or `name@3`, blocks named by `block`."""
        return self.name if self.layers is None else f"{self.name}@{','.join(map(block, self.layers))}"

    def title(self, block: Callable[[int], str] = str) -> str:
        """Return in words what it is and where."""
        if self.layers is None:
            return self.fault.title
        return f"{self.fault.title}, in block{'s' * (len(self.layers) > 1)} {', '.join(map(block, self.layers))}"


Combination = tuple[Placed, ...]


@dataclass(frozen=True)
class Locus:
    """Where values part first.

    Attributes:
        phase: forward or backward.
        tap: the first tap that differs (output: none of them), or the block or embed that spoils gradients first.
        start: the last tap ahead of it whose value is that of the stream, or None.
        kinds: the kinds of places between the two.
        order: how far it is on the way, forward and then backward; the larger, the better.
        sample: the input with which it was found.
    """

    phase: str
    tap: str
    start: str | None
    kinds: frozenset[str]
    order: int
    sample: int = 0

    @property
    def layer(self) -> int | None:
        """Return the block, if it is in one."""
        return int(self.tap.split(".")[1]) if self.tap.startswith("blocks.") else None


def locate(found: Mapping[Item, float], seen: Left, depth: int) -> Locus | None:
    """Return where values part first, or None when they do not: `found` are ratios, above 1 it differs."""
    taps = [name for name in seen.taps if ("tap", name) in found]
    start: str | None = None
    passed: list[str] = []
    for at, name in enumerate(taps):
        if found["tap", name] > 1:
            return Locus("forward", name, start, _between(passed, name), at)
        passed.append(name)
        if name == "embed" or (name.startswith("blocks.") and name.count(".") == 1):
            start, passed = name, []
    if found.get(("output", "output"), 0.0) > 1:
        return Locus("forward", "output", start, _between(passed, "output"), len(taps))
    wrong = [item for item, r in found.items() if item[0] not in FORWARD and r > 1]
    if not wrong:
        return None
    # Backward it is the last block that has a wrong gradient; what is ahead of it has got wrong ones from it. A
    # gradient at a block's own end comes from behind it.
    late = [name for kind, name in wrong if kind == "grad" and name.startswith(("norm.", "pool.", "head", "trunk"))]
    ends = [layer_in(name) for kind, name in wrong if kind == "tap-grad" and _is_stream(name)]
    inside = [layer_in(name) for kind, name in wrong if not (kind == "tap-grad" and _is_stream(name))]
    layer = max([i for i in inside if i is not None] + [i + 1 for i in ends if i is not None], default=-1)
    if late or layer >= depth:
        return Locus("backward", "output", f"blocks.{depth - 1}", frozenset(("norm", "pool", "head")), 1000)
    if layer >= 0:
        start = "embed" if layer == 0 else f"blocks.{layer - 1}"
        kinds = frozenset(("attn", "mlp", "block", "norm"))
        return Locus("backward", f"blocks.{layer}", start, kinds, 1000 + depth - layer)
    if ("tap-grad", "embed") in found and found["tap-grad", "embed"] > 1:
        return Locus("backward", "blocks.0", "embed", frozenset(("attn", "mlp", "block", "norm")), 1000 + depth)
    return Locus("backward", "embed", None, frozenset(("embed", "norm")), 1001 + depth)


def layer_in(name: str) -> int | None:
    """Return the block in a tap's or a parameter's name, or None."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" and len(parts) > 1 else None


def _is_stream(name: str) -> bool:
    return name == "embed" or (name.startswith("blocks.") and name.count(".") == 1)


def _kind(name: str) -> str:
    if not name.startswith("blocks."):
        return "head" if name == "output" else name
    return name.split(".")[2] if name.count(".") == 2 else "block"


def _between(passed: Sequence[str], name: str) -> frozenset[str]:
    """Return the kinds of places behind the taps that passed, up to this one: a tap that is not there hides nothing."""
    kinds = [k for k in KINDS if KINDS.index(k) <= KINDS.index(_kind(name))]
    known = {_kind(p) for p in passed}
    if name == "output":
        # Two heads are joined behind the tap of the first.
        known.discard("head")
    if name != "embed" and not name.startswith("blocks."):
        # The stream behind the last block passed.
        kinds = [k for k in kinds if k in ("norm", "pool", "head")]
    elif name.startswith("blocks."):
        kinds = [k for k in kinds if k != "embed"]
    return frozenset(k for k in kinds if k not in known)
