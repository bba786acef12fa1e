"""Another float dtype: rounded to nearest even, and what is past its largest value refused unless told otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.arith import FLOATS, LARGEST, require_float
from vitconv.layout.edits.drop import matches
from vitconv.layout.edits.edit import Edit, Param, Values, choice
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Cell, Made, Network

PERIODS = "rope.periods"
OVERFLOW = ("refuse", "inf", "clamp")
# What a dtype represents besides itself.
HOLDS = {"F64": FLOATS, "F32": ("F32", "F16", "BF16"), "F16": ("F16",), "BF16": ("BF16",)}


def _apply(network: Network, values: Values) -> Network:
    dtype: str = values["dtype"]
    only: str = values.get("only", "*")
    overflow: str = values.get("overflow", "refuse")
    # Rounded periods turn every angle, and no library computes in them: they are cast only when named.
    kept = [PERIODS] if "only" not in values and PERIODS in network.cells and dtype in ("F16", "BF16") else []
    chosen = [c for n, c in network.cells.items() if matches(only, n) and n not in kept]
    if not chosen:
        raise UsageError(f"--edit cast: only={only} matches no tensor; there are: {', '.join(collapse(network.cells))}")
    change = [c for c in chosen if c.dtype != dtype]
    for c in change:
        require_float(c.dtype, c.name)
    before = dtypes(network)
    for c in change:
        network = network.with_made(c.name, _made(c, dtype, overflow))
    exact = all(c.dtype in HOLDS[dtype] for c in change)
    what = f"{len(change)} of {len(network.cells)} tensors cast to {dtype}: {before} becomes {dtypes(network)}"
    if not exact:
        what += f"; rounded to nearest even, overflow: {overflow}"
    if kept and network.cells[PERIODS].dtype != dtype:
        what += f"; {PERIODS} stays {network.cells[PERIODS].dtype}, since rounding would turn every rotary angle"
        what += f" (--edit cast:dtype={dtype},only={PERIODS} rounds it too)"
    adjoint = "the identity" if exact else "the identity, the rounding left out"
    return network.noted(Applied("cast", what, exact, (), (), adjoint))


def dtypes(network: Network) -> str:
    """Return how many tensors have which dtype: `148 F32, 2 BF16`."""
    counts = Counter(c.dtype for c in network.cells.values())
    return ", ".join(f"{n} {dtype}" for dtype, n in counts.most_common())


def _made(cell: Cell, dtype: str, overflow: str) -> Made:
    largest = LARGEST[dtype]

    def compute(x: Sequence[Any]) -> Any:
        import numpy as np

        if overflow != "clamp" or cell.dtype in HOLDS[dtype]:
            return x[0]
        return np.where(np.isinf(x[0]), x[0], np.clip(x[0], -largest, largest))

    def back(x: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (grad * (abs(x[0]) <= largest) if overflow == "clamp" else grad,)

    policy = "refuse" if overflow == "refuse" else "inf"
    label = f"cast {cell.dtype} -> {dtype}"
    return Made(label, (cell,), cell.shape, dtype, compute, back, policy)


CAST = Edit(
    name="cast",
    title="round to another float dtype, to nearest even",
    exact="yes to a wider dtype, else no; overflow and underflow are counted before anything is written",
    adjoint="the identity, the rounding left out",
    params=(
        Param("dtype", f"one of {', '.join(FLOATS)}", choice(*FLOATS), required=True),
        Param(
            "overflow",
            "what becomes of finite values past the largest: refuse, inf, or clamp to the largest",
            choice(*OVERFLOW),
            otherwise="refuse",
        ),
        Param(
            "only",
            "canonical names: * and ? as in file names, {i} any layer, {q,k}, {0..3}",
            str.strip,
            otherwise="all",
        ),
    ),
    apply=_apply,
    bare="dtype",
    example="cast:dtype=BF16,only=*.weight",
)
