"""Give a network windows of another size: tables of relative positions are resized, Swin V2 says a fact.

The windows of Swin are those of its blocks; BEiT's is the whole grid of patches, and its class token has three rows of
its own, which stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.edits.edit import Edit, Param, Values, choice, pair, show, sized
from vitconv.layout.edits.geometric import DEGREES, axis_matrix, pull_back_offsets, resize_offsets
from vitconv.layout.edits.interpolate import RULES, pull_back_grid, resize_grid
from vitconv.layout.network import Applied, Cell, Made, Network
from vitconv.layout.windows import Window, maps_of, of_offsets, per_stage, windows_of

_ASKED = "--edit resize-window"
_RULES = (*RULES, *DEGREES)
_ADJOINT = "the transpose of the interpolation"


def _window(text: str) -> Window:
    try:
        return pair(text)
    except ValueError:
        raise ValueError("a whole number above zero, or a height and a width, as 4x8") from None


def _apply(network: Network, values: Values) -> Network:
    names = network.shapes
    facts = {**network.open, **network.facts.known()}
    if any(n.endswith(".attn.scale") for n in names):
        network = _positions(network, values, facts)
        if not any(n.endswith(".attn.table") for n in names):
            return network
    if any(n.endswith("rel_pos") for n in names):
        return _grid(network, values, facts)
    if any(n.endswith(".attn.table") for n in names):
        return _tables(network, values, facts)
    if any(n.endswith(".attn.logit_scale") for n in names):
        return _coordinates(network, values, facts)
    raise UsageError(f"{_ASKED}: this network has no windows with relative positions (Swin, Swin V2, BEiT)")


def _tables(network: Network, values: Values, facts: dict[str, Any]) -> Network:
    """Resize the tables of Swin, each from the window of its own block."""
    side, told = values["to"], values.get("from")
    known = windows_of(network.shapes, facts | ({"window": (told[0],), "window_width": (told[1],)} if told else {}))
    tables = [n for n in network.shapes if n.endswith(".attn.table")]
    before: dict[str, Window] = {}
    for name in tables:
        found = known.get((int(name.split(".")[1]), int(name.split(".")[3])))
        before[name] = _of_table(network.shapes[name][0], found, name)
    old = sorted(set(before.values()))
    rule = _rule(values, old == [side])
    for name in (n for n in tables if before[n] != side):
        network = network.with_made(name, _made(network.cells[name], before[name], side, rule))
    how = "which they are already" if old == [side] else f"resized by {rule}"
    said = f"{len(tables)} tables of relative positions, windows of {', '.join(map(_side, old))}, {how}"
    return _done(network, values, said, exact=old == [side], adjoint=_ADJOINT, facts=_facts(side))


def _positions(network: Network, values: Values, facts: dict[str, Any]) -> Network:
    """Resize what focused blocks add to the keys of their windows, which are cut to the map (FLatten-Swin).

    Raises:
        Refused: their new side, the maps, or the rule are not said.
    """
    asked, maps, known = values.get("focused"), maps_of(network.shapes, facts), windows_of(network.shapes, facts)
    if asked is None or not maps:
        raise Refused(
            f"{_ASKED}: focused blocks have a position for every place of their window, which is cut to the map; say"
            " focused=SIDE and --set image_size=384, the new images'"
        )
    rule = str(values.get("rule"))
    if rule not in RULES:
        raise Refused(f"{_ASKED}: positions of focused blocks are resized by rule=bicubic, as FLatten's code does")
    tables = [n for n in network.shapes if n.endswith(".attn.pos")]
    sides = set()
    for name in tables:
        at = (int(name.split(".")[1]), int(name.split(".")[3]))
        if at not in known:
            raise Refused(f"{_ASKED}: {name} is of no square window; say its sides with --set window= window_width=")
        new = (min(asked[0], *maps[at[0]]), min(asked[1], *maps[at[0]]))
        sides.add(new)
        if new != known[at]:
            network = network.with_made(name, _places(network.cells[name], known[at], new, rule))
    said = f"positions of {len(tables)} focused blocks resized to {', '.join(map(_side, sorted(sides)))} by {rule}"
    return network.noted(Applied("resize-window", said, False, (), (), _ADJOINT))


def _places(cell: Cell, old: Window, new: Window, rule: str) -> Made:
    def compute(x: Sequence[Any]) -> Any:
        return resize_grid(x[0], old, new, rule)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (pull_back_grid(grad, old, new, rule),)

    label = f"resized {show(old)} -> {show(new)}, {rule}"
    return Made(label, (cell,), (new[0] * new[1], cell.shape[1]), cell.dtype, compute, back)


def _grid(network: Network, values: Values, facts: dict[str, Any]) -> Network:
    """Resize the tables of BEiT to another grid of patches."""
    target, grid = values["to"], values.get("from") or facts.get("grid")
    if "embed.pos" in network.cells and network.cells["embed.pos"].shape[0] != target[0] * target[1]:
        raise Refused(
            f"{_ASKED}: this network also has a table of positions, of {network.cells['embed.pos'].shape[0]} places;"
            f" put --edit resize-position:to={show(target)},rule=... ahead of this edit"
        )
    tables = [n for n in network.shapes if n.endswith("rel_pos")]
    rows = network.shapes[tables[0]][0]
    old = _of_table(rows, of_offsets(rows, grid or (None, None)), tables[0])
    rule = _rule(values, old == target)
    for name in tables if old != target else ():
        network = network.with_made(name, _made(network.cells[name], old, target, rule))
    how = f"are on the grid {show(old)} already" if old == target else f"resized from {show(old)} by {rule}"
    said = f"{len(tables)} tables of relative positions {how}; the three rows of the class token untouched"
    more: dict[str, Any] = {"grid": target}
    p, q = network.sizes.get("p"), network.sizes.get("q")
    if p and q:
        more["image_size"] = (target[0] * p, target[1] * q)
        said += f"; images are now {show(more['image_size'])} pixels"
    new = (2 * target[0] - 1) * (2 * target[1] - 1)
    return _done(network, values, said, exact=old == target, adjoint=_ADJOINT, facts=more, l=new)


def _coordinates(network: Network, values: Values, facts: dict[str, Any]) -> Network:
    """Say the window of Swin V2, and which one its tensors were trained with."""
    names, side = network.shapes, values["to"]
    stages = len(depths_of(names))
    known = windows_of(names, facts)
    if any((s, 0) not in known for s in range(stages)):
        raise Refused(f"{_ASKED}: the windows of Swin V2 are not in its weights; say them with --set window=8")
    trained = per_stage(facts.get("pretrained_window"), stages)
    if not trained:
        how = "say --set pretrained_window=0 if it was the same"
        raise Refused(f"{_ASKED}: the window of pre-training is not known; {how}")
    # A network never pre-trained at another window was so at its own.
    kept = []
    for s in range(stages):
        high, wide = known[s, 0]
        if not trained[s] and high != wide:
            raise Refused(
                f"{_ASKED}: Swin V2 was trained with windows of {show((high, wide))}, and a window of pre-training that"
                " is no square cannot be said"
            )
        kept.append(trained[s] or high)
    said = "no tensor changes: Swin V2 computes its biases from coordinates"
    more = _facts(side) | {"pretrained_window": tuple(kept)}
    return _done(network, values, said, exact=False, adjoint="the identity", facts=more)


def _rule(values: Values, same: bool) -> str:
    rule = values.get("rule")
    if rule is None and not same:
        raise Refused(
            f"{_ASKED}: tables can be resized in different ways; say rule=bicubic, as Microsoft's Swin does,"
            f" rule=geometric, as BEiT does, or another of {', '.join(_RULES)}"
        )
    return rule or "bicubic"


def _of_table(rows: int, found: Window | None, name: str) -> Window:
    if found is None or (2 * found[0] - 1) * (2 * found[1] - 1) != rows:
        side = (isqrt(rows) + 1) // 2
        why = f"a square window of {side}" if (2 * side - 1) ** 2 == rows else "no square window"
        raise Refused(f"{_ASKED}: {name} has {rows} rows, those of {why}; say the window it has, as from=4x8")
    return found


def _facts(side: Window) -> dict[str, Any]:
    # The width is said only of windows that are no squares.
    return {"window": (side[0],), "window_width": (side[1],) if side[0] != side[1] else None}


def _side(window: Window) -> str:
    return show(window) if window[0] != window[1] else str(window[0])


def _done(
    network: Network, values: Values, said: str, *, exact: bool, adjoint: str, facts: dict[str, Any], **sizes: int
) -> Network:
    what = f"windows of {_side(values['to'])}: {said}"
    out = sized(network, facts, **sizes)
    return out.noted(Applied("resize-window", what, exact, (), (), adjoint))


def _made(cell: Cell, old: Window, new: Window, rule: str) -> Made:
    source, target = ((2 * w[0] - 1, 2 * w[1] - 1) for w in (old, new))
    if rule in DEGREES:
        # What cannot be is told before anything is written.
        for a, b in zip(source, target, strict=True):
            axis_matrix(a, b, DEGREES[rule])
    resize, transposed = (resize_offsets, pull_back_offsets) if rule in DEGREES else (resize_grid, pull_back_grid)

    def compute(x: Sequence[Any]) -> Any:
        return resize(x[0], source, target, rule)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (transposed(grad, source, target, rule),)

    label = f"resized {show(source)} -> {show(target)}, {rule}"
    return Made(label, (cell,), (target[0] * target[1], cell.shape[1]), cell.dtype, compute, back)


RESIZE_WINDOW = Edit(
    name="resize-window",
    title="give a Swin windows, or a BEiT a grid, of another size, its tables of relative positions resized",
    exact="no",
    adjoint=_ADJOINT,
    params=(
        Param("to", "the new side of the windows, or height x width", _window, required=True),
        Param("rule", f"one of {', '.join(_RULES)}", choice(*_RULES), otherwise="asked for; Swin V2 needs none"),
        Param("focused", "the new side of FLatten's focused windows, cut to the map", _window, otherwise="none"),
        Param("from", "their side now, or height x width", _window, otherwise="as tensors or facts say"),
    ),
    apply=_apply,
    bare="to",
    example="resize-window:to=12,rule=bicubic",
)
