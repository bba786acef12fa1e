"""A plan in words: what becomes of every tensor, and what would be lost."""

from __future__ import annotations

from typing import Any

from vitconv.layout.canonical import kind_of
from vitconv.layout.encode import explain_residue
from vitconv.layout.match import collapse
from vitconv.layout.plan import Plan, Target


def residue_lines(p: Plan) -> list[str]:
    """Return what would be lost, one line per kind."""
    return explain_residue(p.target.variant.dialect, tuple(c.name for c in p.residue), p.network.facts.known())


def describe(p: Plan) -> list[dict[str, Any]]:
    """Return one row per kind of target tensor, layers collapsed: source keys, what happens, target key, shape."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for t in p.targets:
        sources = list(dict.fromkeys(_origin(p, x.source) for x in t.pieces)) or ["(constant)"]
        tag = (kind_of(t.parts[0]) if t.parts else t.key, str(t.shape))
        row = rows.setdefault(
            tag, {"from": [], "to": [], "shape": t.shape, "dtype": t.dtype, "how": _how(p, t), "n": 0}
        )
        row["from"] += sources
        row["to"].append(t.key)
        row["n"] += 1
    return [
        {**r, "from": ", ".join(collapse(dict.fromkeys(r["from"]))), "to": ", ".join(collapse(r["to"]))}
        for r in rows.values()
    ]


def _origin(p: Plan, tag: str) -> str:
    if not tag.startswith("="):
        return tag
    made = p.network.made[tag]
    return ", ".join(dict.fromkeys(_origin(p, c.view.tensor) for c in made.inputs)) or f"({made.label})"


def _how(p: Plan, t: Target) -> str:
    if t.const is not None:
        return "constant"
    if any(x.source.startswith("=") for x in t.pieces):
        return "; ".join(dict.fromkeys(p.network.made[x.source].label for x in t.pieces if x.source.startswith("=")))
    if any(len(x.dims) > 1 for x in t.pieces):
        return "transposed" if any(x.run == 1 for x in t.pieces) else "rows moved"
    sources = {x.source for x in t.pieces}
    if len(sources) > 1:
        return f"joined from {len(sources)}"
    whole = next((b for b in p.source.bound if b.key == t.pieces[0].source), None) if t.pieces else None
    return "cut out" if whole and len(whole.parts) > 1 and len(t.parts) < len(whole.parts) else "copied"
