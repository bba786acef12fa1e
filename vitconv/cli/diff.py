"""Compare the weights of two checkpoints bit by bit, whatever their layouts"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconv.cli._options import NamedPath, json_option, report_option

if TYPE_CHECKING:
    from vitconv.conversion.diff import Diff
    from vitconv.report import Report


@click.command("diff")
@click.argument("a", type=NamedPath())
@click.argument("b", type=NamedPath())
@click.option("--from-a", metavar="DIALECT", help="The dialect of A; detected otherwise.")
@click.option("--from-b", metavar="DIALECT", help="The dialect of B; detected otherwise.")
@click.option("--set-a", multiple=True, metavar="NAME=VALUE", help="State a fact about A.")
@click.option("--set-b", multiple=True, metavar="NAME=VALUE", help="State a fact about B.")
@click.option("--branch-a", metavar="NAME", help="Which set of weights of A.")
@click.option("--branch-b", metavar="NAME", help="Which set of weights of B.")
@click.option("--all", "everything", is_flag=True, help="List equal tensors too.")
@report_option
@json_option
def command(
    a: Path,
    b: Path,
    from_a: str | None,
    from_b: str | None,
    set_a: tuple[str, ...],
    set_b: tuple[str, ...],
    branch_a: str | None,
    branch_b: str | None,
    everything: bool,
    report_path: Path | None,
    as_json: bool,
) -> int:
    """Compare checkpoints A and B through the canonical layout: same bits? which tensors, by how much?

    Exit codes: 0 the same bits, 1 they differ, 3 undecided.
    """
    from vitconv.cli._output import deliver
    from vitconv.cli._wishes import wishes_from
    from vitconv.conversion.diff import diff
    from vitconv.conversion.recognise import recognise

    wishes_a, _ = wishes_from(from_a, set_a, (), branch_a, None, False)
    wishes_b, _ = wishes_from(from_b, set_b, (), branch_b, None, False)
    left = recognise(a, wishes_a)
    with left.checkpoint:
        right = recognise(b, wishes_b)
        with right.checkpoint:
            found = diff(left, right)
    document = report(found, (f"{a} ({left.match.dialect.name})", f"{b} ({right.match.dialect.name})"), everything)
    deliver(document, as_json=as_json, path=report_path)
    return 0 if found.same else 1


def report(found: Diff, sides: tuple[str, str], everything: bool) -> Report:
    """Return the report of a comparison."""
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    columns = (
        Column("tensor", "canonical tensor", "code"),
        Column("verdict", "verdict"),
        Column("worst", "largest difference", "number"),
        Column("relative", "relative to the largest value", "number"),
        Column("count", "elements", "count"),
    )
    shown = [p for p in found.pairs if everything or p.verdict != "same"]
    rows = tuple(
        Row((p.name, p.verdict, p.worst, p.relative, p.count), "ok" if p.verdict == "same" else "fail", p.detail)
        for p in shown
    )
    equal = sum(p.verdict == "same" for p in found.pairs)
    word, status = ("same", "ok") if found.same else ("differs", "fail")
    sentence = f"{equal} of {len(found.pairs)} canonical tensors are the same bits"
    facts = tuple(Fact(k, v) for k, v in ((k, (str(x), str(y))) for k, (x, y) in found.facts.items()))
    sections = (Section("tensors", "Tensors", columns, rows),) if rows else ()
    return Report(
        "vitconv.diff",
        "Are these the same weights?",
        verdict=Verdict(word, status, sentence),  # type: ignore[arg-type]
        sides=sides,
        facts=facts,
        sections=sections,
    )
