"""What a configuration file says, as one value, and how several files are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass


@dataclass(frozen=True)
class Found:
    """Facts that configuration files state.

    Attributes:
        facts: what the weights do not say.
        sizes: {axis letter: size} as the file states them (`i` is the depth), to be held against the tensors.
        extra: what is neither, such as labels, crop, interpolation, the architecture's name.
        sources: file and kind of each file that was read.
        notes: remarks for the reader.
        refusals: reasons why the network that the file describes cannot be carried.
        choices: options of a layout that no shape tells, {choice: option}.
        dialect: the layout, where the keys are those of a more general one too.
        parts: what each file says, where there are several.
    """

    facts: Semantics = field(default_factory=Semantics)
    sizes: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    dialect: str = ""
    parts: tuple[Found, ...] = ()

    @property
    def source(self) -> str:
        """Return the files and their kinds in words, empty when nothing was found."""
        return ", ".join(self.sources)

    def disagreements(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Say where the file and the tensors state different sizes: then the file belongs to another network.

        `sizes`: {axis letter: size} solved from the tensors, with `i` for the depth.
        """
        wrong = [
            f"{_TITLES.get(axis, axis)}: {said} in {self.source}, {sizes[axis]} in the tensors"
            for axis, said in self.sizes.items()
            if axis in sizes and sizes[axis] != said
        ]
        grid, n = self.facts.grid, sizes.get("n")
        if grid is not None and n is not None and "n" not in self.sizes and grid[0] * grid[1] != n:
            wrong.append(f"grid: {grid[0]}x{grid[1]} in {self.source}, {n} positions in the tensors")
        return tuple(wrong)


def headless(found: Found, sizes: Mapping[str, int]) -> list[str]:
    """Say that a file promises classes and the tensors have no classifier."""
    classes = found.sizes.get("o")
    if not classes or "o" in sizes:
        return []
    return [f"{found.source} says {classes} classes, and the weights have no classifier"]


_TITLES = {
    "d": "width (d)",
    "a": "attention width (a)",
    "m": "MLP width (m)",
    "n": "patches (n)",
    "p": "patch height (p)",
    "q": "patch width (q)",
    "c": "channels (c)",
    "o": "classes (o)",
    "r": "registers (r)",
    "i": "depth",
}


def joined(parts: Iterable[Found]) -> Found:
    """Join what several files say; what they contradict each other on is unknown again, and said."""
    parts = tuple(parts)
    facts: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    extra: dict[str, Any] = {}
    notes: list[str] = []
    by: dict[str, str] = {}
    disputed: set[str] = set()
    unsure: set[str] = set()
    for part in parts:
        for name, value in part.facts.known().items():
            if name in facts and facts[name] != value:
                disputed.add(name)
                notes.append(
                    f"{name} is {facts[name]} in {by[name]} and {value} in {part.source}: taken as unknown; "
                    f"say --set {name}=..."
                )
                continue
            facts.setdefault(name, value)
            by.setdefault(name, part.source)
        for axis, size in part.sizes.items():
            if sizes.setdefault(axis, size) != size:
                notes.append(
                    f"{_TITLES.get(axis, axis)}: {sizes[axis]} and {size} in different files; neither is taken"
                )
                unsure.add(axis)
        extra = {**part.extra, **extra}
    for name in disputed:
        del facts[name]
    if "norm_placement" in disputed:
        # The scale of one of the networks only.
        facts.pop("residual_alpha", None)
    return Found(
        dataclasses.replace(Semantics(), **facts),
        {axis: size for axis, size in sizes.items() if axis not in unsure},
        extra,
        tuple(s for p in parts for s in p.sources),
        tuple(n for p in parts for n in p.notes) + tuple(notes),
        tuple(r for p in parts for r in p.refusals),
        {name: option for p in reversed(parts) for name, option in p.choices.items()},
        next((p.dialect for p in parts if p.dialect), ""),
        parts if len(parts) > 1 else (),
    )
