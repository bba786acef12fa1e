"""Say what a checkpoint is: dialect, size, dtype, branches, and what its weights do not say"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconv.cli._options import NamedPath, json_option
from vitconv.cli._wishes import check_target_choices, source_options, wishes_from

if TYPE_CHECKING:
    from vitconv.conversion.inspect import Inspection
    from vitconv.report import Report


@click.command("inspect")
@click.argument("checkpoint", type=NamedPath())
@click.option(
    "--health", is_flag=True, help="Read every element: NaN, Inf, zeros, distance of branches, a hash of the backbone."
)
@click.option(
    "--audit", is_flag=True, help="Which init scheme the weights are of, whether they were trained, what is wrong."
)
@click.option("--against", metavar="SCHEME", help="Audit against this init scheme, and name what deviates.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--groups", is_flag=True, help="Parameter groups by role: who decays, and the layer of each.")
@click.option(
    "--preset", default="role", show_default=True, help="Whose rule: role, timm, timm-early, deit, mae, dino, trainer."
)
@click.option(
    "--no-decay",
    multiple=True,
    metavar="PATTERN",
    help="A name, or part of one, that your optimizer does not decay (may be repeated): what it takes in and misses.",
)
@click.option("--layer-decay", type=float, metavar="FACTOR", help="Also the learning rate's scale by layer.")
@source_options
@json_option
def command(
    checkpoint: Path,
    health: bool,
    audit: bool,
    against: str | None,
    tensors: bool,
    groups: bool,
    preset: str,
    layer_decay: float | None,
    no_decay: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Say what CHECKPOINT is: a file, a sharded index or a folder. Nothing in it is run.

    Only headers are read, unless --health or --audit ask for more.

    Exit codes: 0 recognised, 1 not recognised, 3 ambiguous or refused.
    """
    from vitconv.cli._output import emit
    from vitconv.conversion.inspect import inspect

    wishes, target = wishes_from(**options)
    check_target_choices(target, None)
    found = inspect(checkpoint, wishes, health=health)
    made = report(found, tensors=tensors)
    if (audit or against) and found.problem is None:
        # Needs torch, which nothing else here does.
        from vitconv.cli._audit import sections
        from vitconv.initialise.audit import audit_file

        audited = audit_file(checkpoint, wishes, against)
        made = replace(made, sections=(*made.sections, *sections(audited)))
    if groups or layer_decay is not None or no_decay:
        from vitconv.cli._groups import group_sections

        made = replace(made, sections=(*made.sections, *group_sections(found, preset, layer_decay, no_decay)))
    emit(made, as_json=as_json)
    return found.exit_code


def report(found: Inspection, *, tensors: bool) -> Report:
    """Return the report of an inspection."""
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    r = found.recognised
    facts = [
        Fact("format", (found.format,)),
        Fact("tensors", (sum(found.dtypes.values()),), "count"),
        Fact("parameters", (found.elements,), "count"),
        Fact("data", (found.nbytes,), "bytes"),
        Fact("dtypes", (", ".join(f"{n} x {d}" for d, n in found.dtypes.items()) or "none",)),
    ]
    if found.backbone:
        facts.append(Fact("backbone sha256", (found.backbone,)))
    sections = []
    if r is not None:
        facts += [Fact("dialect", (r.match.dialect.name,))]
        facts += [Fact(name, (option,)) for name, option in r.match.variant.names.items()]
        facts += [Fact("depth", (r.match.depth,), "count"), Fact("heads on it", (found.heads,))]
        facts += [Fact(_AXES.get(a, f"axis {a}"), (n,), "count") for a, n in r.match.sizes.items() if a != "i"]
        implied = {k: v for k, v in r.match.variant.implies.items() if k not in r.facts.known()}
        rows = [Row((k, _text(v), r.sources.get(k, "")), "ok") for k, v in r.facts.known().items()]
        rows += [Row((k, _text(v), "follows from the layout"), "ok") for k, v in implied.items()]
        rows += [
            Row((k, "unknown", f"state it with --set {k}=..."), "warn") for k in found.unknown_facts if k not in implied
        ]
        columns = (Column("fact", "fact", "code"), Column("value", "value"), Column("source", "from"))
        sections.append(Section("facts", "What the weights do not say", columns, tuple(rows)))
    if len(found.branches) > 1 or any(b.steps for b in found.branches):
        sections.append(_branches(found))
    if found.notes or found.foreign or found.metadata:
        sections.append(_noticed(found))
    if found.health is not None:
        sections.append(_health(found))
    if tensors:
        sections.append(_tensors(found))
    if found.problem is not None:
        sentence, *more = str(found.problem).split("\n")
        verdict = Verdict("not recognised" if found.exit_code == 1 else "undecided", "fail", sentence)
        if more:
            sections.insert(0, Section("problem", "Why", (), (), tuple(line.strip() for line in more)))
    else:
        assert r is not None
        verdict = Verdict(r.match.dialect.name, "ok", f"{r.match.dialect.title}, every tensor explained")
    return Report("vitconv.inspect", str(found.path), verdict=verdict, facts=tuple(facts), sections=tuple(sections))


_AXES = {
    "d": "width",
    "a": "attention width",
    "h": "heads",
    "e": "head width",
    "m": "MLP width",
    "c": "channels",
    "p": "patch height",
    "q": "patch width",
    "n": "patches",
    "r": "registers",
    "o": "classes",
}


def _text(value: Any) -> str:
    return (
        " or ".join(map(str, value)) if isinstance(value, tuple) and value and isinstance(value[0], str) else str(value)
    )


def _branches(found: Inspection) -> Any:
    from vitconv.report import Column, Row, Section

    columns = [
        Column("name", "branch", "code"),
        Column("tensors", "tensors", "count"),
        Column("elements", "elements", "count"),
    ]
    columns += [Column("envelope", "taken off")]
    measured = any(b.distance is not None for b in found.branches)
    if measured:
        columns.append(Column("distance", "relative distance", "number"))
    rows = []
    for b in found.branches:
        cells: list[Any] = [b.name, b.tensors, b.elements, ", ".join(b.steps)]
        rows.append(Row((*cells, *([b.distance] if measured else [])), "ok" if b.taken else "info"))
    notes = () if measured or len(found.branches) < 2 else ("distances between branches: --health",)
    return Section("branches", "Sets of weights (the first is taken)", tuple(columns), tuple(rows), notes)


def _noticed(found: Inspection) -> Any:
    from vitconv.report import Column, Row, Section

    rows = [Row((note,)) for note in found.notes]
    if found.foreign:
        rows.append(Row((f"named by the pickle and not run: {', '.join(found.foreign)}",), "warn"))
    rows += [Row((f"metadata {k}: {v if len(v) < 200 else v[:197] + '...'}",)) for k, v in found.metadata.items()]
    return Section("notes", "Noticed", (Column("note", "note"),), tuple(rows))


def _health(found: Inspection) -> Any:
    from vitconv.layout.match import collapse
    from vitconv.report import Column, Row, Section

    h = found.health
    assert h is not None
    rows = [Row(("NaN", sum(h.nan.values()), tuple(collapse(h.nan))), "fail" if h.nan else "ok")]
    rows.append(Row(("Inf", sum(h.inf.values()), tuple(collapse(h.inf))), "fail" if h.inf else "ok"))
    rows.append(Row(("all-zero tensors", len(h.zero), tuple(collapse(h.zero))), "warn" if h.zero else "ok"))
    rows.append(Row(("constant tensors", len(h.constant), tuple(collapse(h.constant)))))
    columns = (Column("what", "what"), Column("count", "count", "count"), Column("where", "where"))
    return Section("health", "Health", columns, tuple(rows), (h.fresh,) if h.fresh else ())


def _tensors(found: Inspection) -> Any:
    from vitconv.report import Column, Row, Section

    columns = (Column("key", "key", "code"), Column("dtype", "dtype"), Column("shape", "shape"))
    stored = found.recognised.stored if found.recognised else {}
    rows = tuple(Row((k, t.dtype, " x ".join(map(str, t.shape)) or "scalar")) for k, t in stored.items())
    return Section("tensors", "Tensors", columns, rows)
