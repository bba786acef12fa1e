"""Solving axis sizes: the symbolic axes of all rules against the real shapes of all headers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from vitconv.errors import LayoutError
from vitconv.layout.rule import Rule
from vitconv.layout.shape import Axes, Axis, show_axes, size
from vitconv.record import dataclass


@dataclass(frozen=True)
class Bound:
    """A rule at one place: the key in the file, the layer, and the concrete names of the parts."""

    key: str
    rule: Rule
    layer: int | None
    parts: tuple[str, ...]

    def env(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return `sizes` with `*` set to the number of parts."""
        return {**sizes, "*": len(self.parts)}


@dataclass(frozen=True)
class Equation:
    """One axis of one tensor and its size; `star` is the number of stacked parts, None when they are the layers."""

    tensor: str
    axis: Axis
    n: int
    star: int | None


def unify(
    bound: Iterable[Bound], shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return {axis: size}; `given` are sizes told by the user.

    A rule that stacks the layers solves `*` as axis `i`, the depth.

    Raises:
        LayoutError: two shapes disagree (both are named), a size is not divisible, or a rank is wrong.
    """
    todo = []
    for b in bound:
        todo += _equations(b.key, b.rule.axes, shapes[b.key], None if b.rule.scanned else len(b.parts))
    return _solve(todo, given)


def unify_parts(
    bound: Iterable[Bound], shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return {axis: size} from the shapes of the canonical tensors that `bound` is to write.

    Parts that are not in `shapes` are passed over. Raises as `unify`.
    """
    todo = []
    for b in bound:
        for j, name in enumerate(b.parts):
            if name in shapes:
                axes = b.rule.parts[0 if b.rule.scanned else j].axes
                todo += _equations(name, axes, shapes[name], len(b.parts))
    return _solve(todo, given)


def _equations(tensor: str, axes: Axes, shape: tuple[int, ...], star: int | None) -> list[Equation]:
    if len(shape) != len(axes):
        needs = f"{len(axes)} axes" if axes else "no axis"
        raise LayoutError(f"{tensor} has shape {_show(shape)}, but {show_axes(axes)} needs {needs}")
    return [Equation(tensor, a, n, star) for a, n in zip(axes, shape, strict=True)]


def _solve(todo: list[Equation], given: Mapping[str, int] | None) -> dict[str, int]:
    env: dict[str, int] = dict(given or {})
    why: dict[str, str] = dict.fromkeys(env, "given by the user")
    # The layers are alike: of equations that say the same, the first speaks for all.
    first: dict[tuple[tuple[str, ...], bool, int, int | None], Equation] = {}
    for eq in todo:
        first.setdefault((eq.axis.atoms, eq.axis.joined, eq.n, eq.star), eq)
    todo = list(first.values())
    while todo:
        rest = [t for t in todo if not _step(t, env, why)]
        if len(rest) == len(todo):
            _undetermined(todo[0], env)
        todo = rest
    return env


def _step(eq: Equation, env: dict[str, int], why: dict[str, str]) -> bool:
    """Use one equation; True when it is settled, False when too much is unknown yet."""
    names = ["i" if x == "*" and eq.star is None else x for x in eq.axis.atoms]
    local = env if eq.star is None else {**env, "*": eq.star}
    unknown = [x for x in names if not x.isdigit() and x not in local]
    if len(unknown) > 1:
        return False
    known = [size(x, local) for x in names if x not in unknown]
    have = (sum if eq.axis.joined else math.prod)(known)
    if not unknown:
        if have != eq.n:
            raise LayoutError(_conflict(eq, names, have, env, why))
        return True
    x = unknown[0]
    value = eq.n - have if eq.axis.joined else (eq.n // have if have else 0)
    if not eq.axis.joined and value * have != eq.n:
        raise LayoutError(f"{eq.tensor}: axis {eq.axis} has {eq.n}, which {have} does not divide (axis {x})")
    if eq.axis.joined and value <= 0:
        raise LayoutError(f"{eq.tensor}: axis {eq.axis} has {eq.n}, which leaves nothing for {x}")
    env[x], why[x] = value, eq.tensor
    return True


def _conflict(eq: Equation, names: list[str], have: int, env: Mapping[str, int], why: Mapping[str, str]) -> str:
    x = next((x for x in reversed(names) if x in why), None)
    if x is None:
        return f"{eq.tensor}: {eq.n} where the layout has {have}"
    witness = "was given" if why[x] == "given by the user" else f"(from {why[x]})"
    return f"axis {x}={env[x]} {witness}, but {eq.tensor} has {eq.n} where that gives {have}"


def _undetermined(eq: Equation, env: Mapping[str, int]) -> None:
    free = [x for x in eq.axis.atoms if not x.isdigit() and x not in env and x != "*"]
    raise LayoutError(
        f"{eq.tensor}: axis {eq.axis} has {eq.n}, but the sizes of {' and '.join(free)} are not in the file;"
        f" say one with --axis {free[0]}=..."
    )


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
