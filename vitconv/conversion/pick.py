"""Which set of weights of a file is meant: the first by the rule that orders them, or the one that was named."""

from __future__ import annotations

import dataclasses

from vitconv.errors import UsageError, shown
from vitconv.io.envelope import Branch, loosen
from vitconv.io.wrappers import is_averaged


def pick(found: list[Branch], name: str | None) -> Branch:
    """Return the branch of that name, or of one in which it is a whole part; or the part of a branch of that name."""
    if name is None:
        return found[0]
    hits = [b for b in found if b.name == name]
    if not hits and name in ("ema", "raw"):
        hits = [b for b in found if is_averaged(b.name) == (name == "ema")]
    # Of several in one container the first is meant, by the rule that orders them.
    hits = hits or [b for b in found if name in b.name.split(".")] or [b for b in found if _ends(b.name, name)]
    if hits:
        return hits[0]
    parts = [(b, part) for b in found for part in loosen(b)]
    named = [part for _, part in parts if part.left and part.name == name]
    named += [part for _, part in parts if part.left and _ends(part.name, name)]
    inner = {_path(b, part): part for b, part in parts if _ends(_path(b, part), name)}
    whole = largest(list(inner.values()))
    if len(whole) > 1 and not named:
        those = ", ".join(shown(path) for path, part in inner.items() if any(part is x for x in whole))
        raise UsageError(f"several parts of this file are called {name!r}: {those}; say which in full")
    for part in [*named, *whole]:
        # Who names a part has said that the others are not meant.
        return dataclasses.replace(part, unclaimed=())
    there = ", ".join(dict.fromkeys(shown(b.name) for b in found))
    raise UsageError(f"no branch {name!r} in this file; it has: {there}")


def _path(branch: Branch, part: Branch) -> str:
    """Return the name of a branch and what was taken off its keys."""
    off = "".join(step.text for step in part.steps[len(branch.steps) :] if step.kind == "prefix")
    return f"{branch.name}.{off}".removesuffix(".")


def _ends(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def largest(found: list[Branch]) -> list[Branch]:
    """Return the first of the readings that hold the same tensors, but none that another one contains."""
    held: dict[frozenset[tuple[str, ...]], Branch] = {}
    for reading in found:
        held.setdefault(frozenset(t.path for t in reading.tensors.values()), reading)
    return [reading for paths, reading in held.items() if not any(paths < more for more in held)]
