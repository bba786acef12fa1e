"""Give a Swin windows of another size: its tables of relative positions are interpolated, Swin V2 says a fact."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.edits.edit import Edit, Param, Values, choice, count, sized
from vitconv.layout.edits.interpolate import RULES, pull_back_grid, resize_grid
from vitconv.layout.network import Applied, Cell, Made, Network
from vitconv.layout.stages import windows_of

_ASKED = "--edit resize-window"


def _apply(network: Network, values: Values) -> Network:
    side, names = values["to"], network.shapes
    facts = {**network.open, **network.facts.known()}
    tables = [n for n in names if n.endswith(".attn.table")]
    if any(n.endswith(".attn.scale") for n in names):
        raise Refused(f"{_ASKED}: focused blocks have a position for every place of their window; nothing says the new")
    if tables:
        rule = values.get("rule")
        old = sorted({(isqrt(names[n][0]) + 1) // 2 for n in tables})
        if rule is None and old != [side]:
            raise Refused(
                f"{_ASKED}: tables can be interpolated in different ways; say rule=bicubic, as Microsoft's code does,"
                f" or another of {', '.join(RULES)}"
            )
        for name in tables:
            network = network.with_made(name, _made(network.cells[name], 2 * side - 1, rule or "bicubic"))
        said = f"{len(tables)} tables of relative positions, windows of {', '.join(map(str, old))}, resized by {rule}"
        exact, adjoint = old == [side], "the transpose of the interpolation"
        more: dict[str, Any] = {"window": (side,)}
    elif any(n.endswith(".attn.logit_scale") for n in names):
        known = windows_of(names, facts)
        stages = range(len(depths_of(names)))
        if any((s, 0) not in known for s in stages):
            raise Refused(f"{_ASKED}: the windows of Swin V2 are not in its weights; say them with --set window=8")
        trained = facts.get("pretrained_window")
        if trained is None:
            how = "say --set pretrained_window=0 if it was the same"
            raise Refused(f"{_ASKED}: the window of pre-training is not known; {how}")
        # A network never pre-trained at another window was so at its own.
        before = [trained[s] if len(trained) > 1 else trained[0] for s in stages]
        kept = tuple(p or known[s, 0] for s, p in zip(stages, before, strict=True))
        more = {"window": (side,), "pretrained_window": kept}
        said, exact, adjoint = "no tensor changes: Swin V2 computes its biases from coordinates", False, "the identity"
    else:
        raise UsageError(f"{_ASKED}: this network has no windows with relative positions (Swin, Swin V2)")
    what = f"windows of {side}: {said}"
    return sized(network, more).noted(Applied("resize-window", what, exact, (), (), adjoint))


def _made(cell: Cell, side: int, rule: str) -> Made:
    old = isqrt(cell.shape[0])
    source, target = (old, old), (side, side)

    def compute(x: Sequence[Any]) -> Any:
        return resize_grid(x[0], source, target, rule)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (pull_back_grid(grad, source, target, rule),)

    label = f"resized {old}x{old} -> {side}x{side}, {rule}"
    return Made(label, (cell,), (side * side, cell.shape[1]), cell.dtype, compute, back)


RESIZE_WINDOW = Edit(
    name="resize-window",
    title="give a Swin windows of another size, its tables of relative positions interpolated",
    exact="no",
    adjoint="the transpose of the interpolation",
    params=(
        Param("to", "the new side of the windows", count, required=True),
        Param("rule", f"one of {', '.join(RULES)}", choice(*RULES), otherwise="asked for; Swin V2 needs none"),
    ),
    apply=_apply,
    bare="to",
    example="resize-window:to=12,rule=bicubic",
)
