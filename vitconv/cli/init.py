"""Draw an initialised network by role, the same one in every dialect"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconv.cli._options import NamedPath, json_option, report_option, seed_type
from vitconv.cli._wishes import source_options

if TYPE_CHECKING:
    from vitconv.initialise.write import Initialised
    from vitconv.inits.base.scheme import Scheme
    from vitconv.report import Report, Section


@click.command("init")
@click.argument("what", metavar="SIZE|CKPT")
@click.argument("out", type=NamedPath())
@click.option("--scheme", required=True, metavar="SCHEME", help="The init scheme; `vitconv list inits` names them.")
@click.option("--beside", metavar="SCHEME", help="Also tell where this other scheme would draw something else.")
@click.option("--to", metavar="DIALECT", help="The dialect to write; a checkpoint's own, or canonical, otherwise.")
@click.option("--seed", type=seed_type, default=0, show_default=True, help="The seed of the network.")
@click.option(
    "--dtype", type=click.Choice(["F64", "F32", "F16", "BF16"]), help="Round to this float dtype; F32 otherwise."
)
@source_options
@report_option
@json_option
def command(
    what: str,
    out: Path,
    scheme: str,
    beside: str | None,
    to: str | None,
    seed: int,
    dtype: str | None,
    sets: tuple[str, ...],
    report_path: Path | None,
    as_json: bool,
    **source: Any,
) -> int:
    """Draw a network and write it to OUT: a .safetensors file, or a folder that the target's library opens.

    SIZE is a name from `vitconv list sizes`, such as vit_base or any model name of timm's VisionTransformer (of its
    Swin, Swin-v2, Beit and Eva too, where timm is installed), changed by
    --set depth=, dim=, heads=, mlp_ratio=, patch=, image=, classes=, channels=, registers=, class_token=, qk_norm=,
    mlp=, pool=, final_norm=. CKPT is a checkpoint whose architecture is taken. Both are changed by --set norm=,
    layer_scale=, sub_norm=, which is said in the report. Tensors are drawn by role and then converted, so the same seed
    gives the same network in every dialect.

    Exit codes: 0 done, 1 checkpoint not recognised, 3 refused: the scheme does not fit the architecture.
    """
    from vitconv.cli._output import deliver
    from vitconv.cli._wishes import check_target_choices, wishes_from
    from vitconv.initialise.network import Job, options
    from vitconv.initialise.write import initialise
    from vitconv.registry import INITS, load
    from vitconv.report import progress_bar

    # An unknown name is told before anything is written.
    other = load(INITS, beside) if beside else None
    size, changes, left = options(sets)
    wishes, choices = wishes_from(sets=left, **source)
    check_target_choices(choices, to or ("canonical" if not Path(what).exists() else None))
    if "heads" in size and Path(what).exists():
        # Of a checkpoint the head count is a fact.
        wishes, choices = wishes_from(sets=[*left, f"heads={size.pop('heads')}"], **source)
    job = Job(scheme, to, seed, changes, size, wishes.facts, choices, dtype, wishes)
    with progress_bar(f"{what} by {scheme}") as progress:
        made = initialise(what, out, job, progress=progress)
    document = report(made, seed)
    if other is not None:
        document = replace(document, sections=(*document.sections, _beside(made, other)))
    deliver(document, as_json=as_json, path=report_path)
    return 0


def report(made: Initialised, seed: int) -> Report:
    """Return the report of an initialised network."""
    from vitconv.inits.base.deepnet import HIGH, LOW
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    arch = made.arch
    facts = [
        Fact("scheme", (f"{made.scheme.name}: {made.scheme.title}",)),
        Fact("source", (made.scheme.source,)),
        Fact("seed", (seed,)),
        Fact("norms", (arch.placement or "unknown",)),
        Fact("parameters", (made.prepared.elements,), "count"),
        Fact("wrote", (", ".join(str(f) for f in (*made.done.files, *made.done.configs)),)),
    ]
    if made.bound is not None:
        fits = "in" if LOW <= made.bound <= HIGH else "outside"
        facts.append(
            Fact("DeepNet's bound", (f"{made.bound:.3g}, {fits} {LOW:g} to {HIGH:g} (1 for alpha with beta)",))
        )
        facts.append(Fact("alpha", (arch.alpha,), "number"))
    columns = (
        Column("tensor", "canonical tensor", "code"),
        Column("distribution", "distribution"),
        Column("std", "true std", "number"),
        Column("drawn", "std drawn", "number"),
        Column("count", "tensors", "count"),
    )
    notes = [*(f"changed: {text}" for text in made.changes), *made.notes, *made.done.notes]
    sections = [Section("tensors", "What each tensor got", columns, tuple(Row(cells) for cells in _rows(made)))]
    if notes:
        rows = tuple(Row((text,), "warn" if text.startswith("norms ") else "info") for text in notes)
        sections.append(Section("notes", "Noticed", (Column("note", "note"),), rows))
    outside = made.bound is not None and not LOW <= made.bound <= HIGH
    word = "initialised, outside DeepNet's bound" if outside else "initialised"
    return Report(
        "vitconv.init",
        f"{made.scheme.name} in {made.prepared.order.to}",
        verdict=Verdict(word, "warn" if outside else "ok"),
        facts=tuple(facts),
        sections=tuple(sections),
    )


def _beside(made: Initialised, other: Scheme) -> Section:
    """Return the kinds of tensors that another scheme draws otherwise."""
    from vitconv.layout.blocks import labelled
    from vitconv.layout.canonical import kind_of
    from vitconv.report import Column, Row, Section

    theirs = other.declared(made.arch)
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, own in made.declared.items():
        if own != theirs[name]:
            groups.setdefault((kind_of(name), own.text, theirs[name].text), []).append(name)
    columns = (
        Column("tensor", "canonical tensor", "code"),
        Column("own", made.scheme.name),
        Column("std", "true std", "number"),
        Column("other", other.name),
        Column("other_std", "its true std", "number"),
    )
    rows = tuple(
        Row((labelled(kind, names), own, made.declared[names[0]].std, text, theirs[names[0]].std))
        for (kind, own, text), names in groups.items()
    )
    title = f"Where {other.name} draws something else"
    return Section("beside", title, columns, rows, () if rows else ("nowhere",))


def _rows(made: Initialised) -> list[tuple[Any, ...]]:
    """Return one row per kind of tensor with one distribution, layers collapsed."""
    from vitconv.layout.blocks import labelled
    from vitconv.layout.canonical import kind_of

    groups: dict[tuple[str, str], list[str]] = {}
    for name, distribution in made.declared.items():
        groups.setdefault((kind_of(name), distribution.text), []).append(name)
    rows = []
    for (kind, text), names in groups.items():
        stds = [made.stds[name] for name in names]
        rows.append((labelled(kind, names), text, made.declared[names[0]].std, sum(stds) / len(stds), len(names)))
    return rows
