"""The table of `inspect --groups`: every parameter, its role, whether it decays, and its layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitconv.layout.groups import Grouped, Listed, Preset, grouped, learned, listed, preset
from vitconv.layout.match import collapse

if TYPE_CHECKING:
    from vitconv.conversion.inspect import Inspection


def group_sections(found: Inspection, rule: str, layer_decay: float | None, no_decay: Sequence[str] = ()) -> list[Any]:
    """Return two tables: the groups in short, and every parameter in its group; ahead of them what patterns do."""
    from vitconv.report import Column, Row, Section

    r = found.recognised
    if r is None:
        return []
    chosen = preset(rule)
    parts = {b.key: b.parts for b in r.match.bound}
    rows = [
        (key, parts.get(key, ()), t.shape)
        for key, t in r.stored.items()
        if key not in r.match.consts and key not in r.match.copies and learned(parts.get(key, ()))
    ]
    sorted_ = grouped(rows, r.match.depth, rule=chosen, layer_decay=layer_decay)
    columns = [Column("key", "parameter", "code"), Column("role", "role"), Column("decay", "decay")]
    columns += [Column("layer", "layer", "number"), Column("scale", "lr scale", "number")]
    each = tuple(Row((g.key, g.role, "decay" if g.decays else "no decay", g.layer, g.scale)) for g in sorted_)
    short = _short(sorted_, chosen, layered=layer_decay is not None)
    made = [short, Section("parameters", "Parameters", tuple(columns), each)]
    if not no_decay:
        return made
    return [_patterns(listed(sorted_, {key: shape for key, _, shape in rows}, no_decay), chosen), *made]


def _patterns(found: Listed, rule: Preset) -> Any:
    """Return what a list of no-decay names does, one row a pattern, and what it misses."""
    from vitconv.report import Column, Row, Section

    columns = (Column("pattern", "pattern", "code"), Column("count", "tensors", "count"), Column("which", "which"))
    rows = []
    for pattern, keys in found.matches.items():
        near = "" if keys else found.near(pattern)
        nothing = f"nothing: it is in no name{f'; did you mean {near}?' if near else ''}"
        rows.append(Row((pattern, len(keys), ", ".join(collapse(keys)) or nothing), "ok" if keys else "warn"))
    missed = {"missed, of several axes": found.lacking, "missed, vectors": found.vectors}
    rows += [Row((title, len(keys), ", ".join(collapse(keys))), "warn") for title, keys in missed.items() if keys]
    if found.beyond:
        rows.append(Row(("beyond the rule", len(found.beyond), ", ".join(collapse(found.beyond)))))
    notes = [f"missed: without decay by {rule.name} ({rule.title}), and in no pattern"] if any(missed.values()) else []
    if found.vectors:
        notes.append("a rule by the number of axes, as timm's and DINO's, frees vectors without a pattern")
    return Section("patterns", "What the no-decay patterns take in", columns, tuple(rows), tuple(notes))


def _short(found: list[Grouped], rule: Preset, *, layered: bool) -> Any:
    from vitconv.report import Column, Row, Section

    groups: dict[tuple[int, bool], list[Grouped]] = {}
    for g in found:
        groups.setdefault((g.layer if layered else 0, g.decays), []).append(g)
    columns = [Column("group", "group"), Column("count", "tensors", "count"), Column("scale", "lr scale", "number")]
    columns.append(Column("which", "which"))
    rows = []
    for (layer, decays), held in sorted(groups.items()):
        name = f"{f'layer {layer}, ' if layered else ''}{'decay' if decays else 'no decay'}"
        rows.append(Row((name, len(held), held[0].scale, ", ".join(collapse(g.key for g in held)))))
    notes = [f"by {rule.name}: {rule.title} ({rule.source})"]
    if not any(not g.decays for g in found):
        notes.append("no parameter is free of decay: nothing here was recognised as a norm, a bias or a token")
    return Section("groups", "Parameter groups", tuple(columns), tuple(rows), tuple(notes))
