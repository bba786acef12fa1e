"""Mappings as tables: a dialect against the canonical layout, one dialect against another, or a file's plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order, prepare
from vitconv.conversion.recognise import recognise
from vitconv.layout.describe import describe, residue_lines
from vitconv.layout.dialect import Dialect, Item, Variant
from vitconv.layout.plan import Plan
from vitconv.layout.rule import Alias, Const, Rule
from vitconv.layout.shape import Axes, show_axes
from vitconv.registry import DIALECTS, load
from vitconv.report import Column, Fact, Report, Row, Section


def show_dialect(name: str, choices: Mapping[str, str]) -> Report:
    """Return the rules of one variant of a dialect, and the choices it has."""
    dialect: Dialect = load(DIALECTS, name)
    variant = dialect.variant(choices)
    rows = [Row(_rule_cells(item, {})) for item in variant.items]
    return Report(
        "vitconv.show",
        f"{dialect.title}: {name}",
        facts=(Fact("layout from", (dialect.source,)), Fact("opened by", (dialect.library,))),
        sections=(
            Section("rules", "Tensors and canonical parts", _RULES, tuple(rows), _tie_notes(variant)),
            *_choices(dialect, variant),
        ),
    )


_RULES = (Column("key", "key", "code"), Column("axes", "axes"), Column("parts", "canonical"), Column("when", "when"))


_LAYERS = {"all": "", "body": "all layers but the last", "last": "last layer", "first": "first layer", "early": ""}
_STAGES = {
    "all": "",
    "body": "all stages but the first",
    "early": "all stages but the last",
    "last": "last stage",
    "first": "first stage",
}


def _rule_cells(item: Item, sizes: Mapping[str, int]) -> tuple[str, str, str, str]:
    entry = item.entry
    if isinstance(entry, Alias):
        return item.key, "", f"second name of {item.parts[0]}", "if present"
    if isinstance(entry, Const):
        return item.key, _sized(entry.axes, sizes), f"constant {entry.value}", "if present" if entry.optional else ""
    parts = ", ".join(
        f"{name}: {show_axes(p.axes)}" for name, p in zip(item.parts, _parts(entry, len(item.parts)), strict=True)
    )
    layers = (_STAGES if "{s}" in "".join(item.parts) else _LAYERS)[entry.layers]
    return (
        item.key,
        _sized(entry.axes, sizes),
        parts,
        ", ".join(x for x in (layers, "if present" if item.optional else "") if x),
    )


def _parts(entry: Rule, count: int) -> list[Any]:
    return [entry.parts[min(j, len(entry.parts) - 1)] for j in range(count)]


def _sized(axes: Axes, sizes: Mapping[str, int]) -> str:
    text = show_axes(axes)
    known = [f"{a}={sizes[a]}" for a in dict.fromkeys(x for axis in axes for x in axis.atoms) if a in sizes]
    return f"{text}  [{', '.join(known)}]" if known else text


def _tie_notes(variant: Variant) -> tuple[str, ...]:
    return tuple(f"{', '.join(t.parts)} are held once, as {t.of}" for t in variant.ties)


def _choices(dialect: Dialect, variant: Variant) -> tuple[Section, ...]:
    if not dialect.choices:
        return ()
    columns = (Column("choice", "choice", "code"), Column("taken", "shown here"), Column("options", "options"))
    taken = {c.name: o.name for c, o in zip(dialect.choices, variant.options, strict=True)}
    rows = tuple(Row((c.name, taken[c.name], ", ".join(o.name for o in c.options))) for c in dialect.choices)
    note = "choose with --set NAME=OPTION; reading, the file itself decides"
    return (Section(f"choices.{dialect.name}", f"Choices of {dialect.name}", columns, rows, (note,)),)


def show_pair(name: str, to: str, wishes: Wishes, choices: Mapping[str, str]) -> Report:
    """Return, part by part, where each canonical tensor lives in the two dialects."""
    source: Dialect = load(DIALECTS, name)
    target: Dialect = load(DIALECTS, to)
    left, right = source.variant(wishes.choices), target.variant(choices)
    here, there = _homes(left), _homes(right)
    rows = []
    for part in dict.fromkeys([*here, *there]):
        status = "ok" if part in here and part in there else "warn"
        rows.append(Row((here.get(part, ""), part, there.get(part, "")), status))  # type: ignore[arg-type]
    columns = (Column("from", name, "code"), Column("part", "canonical"), Column("to", to, "code"))
    return Report(
        "vitconv.show",
        f"{name} to {to}",
        sections=(
            Section("parts", "Where each part lives", columns, tuple(rows)),
            *_choices(source, left),
            *_choices(target, right),
        ),
    )


def _homes(variant: Variant) -> dict[str, str]:
    homes: dict[str, str] = {}
    for item in variant.items:
        if isinstance(item.entry, Rule):
            for j, part in enumerate(item.parts):
                place = f" (part {j + 1} of {len(item.parts)})" if len(item.parts) > 1 else ""
                homes.setdefault(part, f"{item.key}{place}")
    for t in variant.ties:
        homes |= dict.fromkeys(t.parts, f"as {t.of}")
    return homes


def show_file(path: Path, to: str | None, wishes: Wishes, choices: Mapping[str, str]) -> Report:
    """Return the mapping of a file with its sizes solved, or with `to` the plan of its conversion."""
    if to is None:
        r = recognise(path, wishes)
        r.checkpoint.close()
        items = [i for i in r.match.variant.items if any(b.rule is i.entry for b in r.match.bound)]
        rows = tuple(Row(_rule_cells(i, r.match.sizes)) for i in items)
        return Report(
            "vitconv.show",
            f"{path}: {r.match.dialect.name}, {r.match.depth} layers",
            sections=(Section("rules", "Tensors and canonical parts", _RULES, rows, _tie_notes(r.match.variant)),),
        )
    prepared = prepare(path, Order(to, wishes, choices, residue=Path("unused")))
    prepared.close()
    return Report("vitconv.show", f"{path} to {to}", sections=plan_sections(prepared.plan))


def plan_sections(p: Plan) -> tuple[Section, ...]:
    """Return a plan as tables: what becomes of each tensor, and what would be left over."""
    columns = (
        Column("from", "from", "code"),
        Column("to", "to", "code"),
        Column("shape", "shape"),
        Column("dtype", "dtype"),
        Column("how", "how"),
    )
    rows = tuple(
        Row((r["from"], r["to"], " x ".join(map(str, r["shape"])) or "scalar", r["dtype"], r["how"]), "ok")
        for r in describe(p)
    )
    out = [Section("tensors", "What becomes of each tensor", columns, rows)]
    if p.residue:
        left = tuple(Row((line,), "warn") for line in residue_lines(p))
        out.append(Section("residue", "What the target has no place for", (Column("tensor", "left over"),), left))
    return tuple(out)
