"""Can this start training? Init, signals by depth, half precision, loss, optimiser, before an hour is spent"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconv.cli._options import json_option, report_option, seed_type

if TYPE_CHECKING:
    from vitconv.checks.base.context import Context
    from vitconv.checks.base.run import Outcome
    from vitconv.report import Report, Section


@click.command("check")
@click.argument("target", metavar="CKPT|SIZE|HOST:MODEL|RECIPE.yaml")
@click.option("--only", multiple=True, metavar="CHECK", help="Run these checks; `vitconv list checks` names them.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave out these checks.")
@click.option("--all", "trainings", is_flag=True, help="Also run what trains: minutes, not seconds.")
@click.option("--init", "scheme", default="", metavar="SCHEME", help="Draw the weights by this init scheme.")
@click.option(
    "--init-fn", metavar="python:MODULE:FN", help="Tell which parameters this init function misses, and stop."
)
@click.option("--precision", metavar="NAME", help="The training's: fp32, amp-fp16 (default) or amp-bf16.")
@click.option("--lr", type=float, help="Peak learning rate of the training; 1e-3 otherwise.")
@click.option("--batch", type=click.IntRange(min=1), help="Images in the batch that is looked at; 4 otherwise.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of the trainings; 300 otherwise.")
@click.option(
    "--data", metavar="PATH", help="Images: digits, a .npz with images and labels, or a folder of class folders."
)
@click.option("--beside", metavar="TARGET", help="A second network, for step-parity.")
@click.option("--training", metavar="NAME", help="A training by name: first-report, with mixup and cutmix.")
@click.option(
    "--vary", multiple=True, metavar="AXIS=V,V", help="Train variants: norm, init, eps, release, precision, depth, lr, "
    "warmup, kv_normalised. Runs training-probe."
)  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A fact, a size, a change (norm=deepnorm), or "
              "an option of the host.")  # fmt: skip
@click.option("--seed", type=seed_type, default=0, show_default=True, help="Of weights and images.")
@report_option
@json_option
def command(target: str, init_fn: str | None, report_path: Path | None, as_json: bool, **options: Any) -> int:
    """Check a network before it is trained.

    A checkpoint is checked as it is; a SIZE (`vitconv list sizes`) is drawn by --init, timm unless given; HOST:MODEL is
    built by its library. RECIPE.yaml scripts all of it, or is a configuration of xformers' factory as it stands.

    Exit codes: 0 ready or only warnings, 1 a finding of level error, 3 undecided: a check could not be run.
    """
    from vitconv.cli._output import aside, emit, save

    charts: tuple[Section, ...] = ()
    with aside():
        if init_fn is not None:
            document, code = _coverage(target, init_fn, options)
        else:
            document, charts, code = _checked(target, options)
    emit(document, as_json=as_json)
    if report_path is not None:
        save(replace(document, sections=(*document.sections, *charts)), report_path)
    return code


def _checked(target: str, options: dict[str, Any]) -> tuple[Report, tuple[Section, ...], int]:
    from vitconv.checks.base.run import chosen, run_checks, verdict

    context, only, skip, thresholds = _context(target, options)
    checks = chosen(only, skip, trainings=options["trainings"])

    def told(name: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{name}")
            sys.stderr.flush()

    outcomes = run_checks(context, checks, limits=thresholds, progress=told)
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    word, code = verdict(outcomes)
    return report(context, outcomes, word, code), charts_of(outcomes), code


def _context(
    target: str, options: dict[str, Any], *, drawn: bool = True
) -> tuple[Context, tuple[str, ...], tuple[str, ...], Any]:
    from vitconv.checks.base.data import digits, read_data
    from vitconv.checks.base.plan import PLANS, Plan
    from vitconv.checks.base.recipe import is_recipe, read_recipe
    from vitconv.checks.base.target import Wanted, context_of
    from vitconv.checks.base.variants import parse
    from vitconv.errors import UsageError
    from vitconv.parity.precision import precision_of
    from vitconv.registry import unknown

    for name in ("data", "beside"):
        if options[name] == "":
            raise UsageError(f"--{name}: the name is empty")
    variants = parse(options["vary"])
    if variants and not options["only"]:
        options = {**options, "only": ("training-probe",)}
    changes: dict[str, Any] = {k: options[k] for k in ("precision", "lr", "batch", "steps") if options[k] is not None}
    if "precision" in changes:
        precision_of(changes["precision"])
    named = Plan()
    if options["training"]:
        if options["training"] not in PLANS:
            raise unknown("training", options["training"], list(PLANS))
        named = PLANS[options["training"]]
    wanted = Wanted(tuple(options["sets"]), scheme=options["scheme"], plan=named, seed=options["seed"])
    if is_recipe(target):
        recipe = read_recipe(target, wanted)
        plan = replace(recipe.wanted.plan, **changes)
        scheme = recipe.wanted.scheme if drawn else ""
        recipe = replace(
            recipe,
            wanted=replace(recipe.wanted, plan=plan, scheme=scheme),
            data=options["data"] or recipe.data,
            beside=options["beside"] or recipe.beside,
        )
        context = recipe.context()
        only = tuple(options["only"]) or recipe.only
        if variants:
            context = replace(context, vary=variants)
        elif recipe.vary and "training-probe" not in (only or ("training-probe",)):
            raise UsageError(f"{target}: vary trains variants in training-probe, which is not among the checks to run")
        elif recipe.vary:
            only = only or ("training-probe",)
        return context, only, (*recipe.skip, *options["skip"]), recipe.thresholds
    data = None
    if options["data"]:
        data = digits()[0] if options["data"] == "digits" else read_data(options["data"])
    wanted = replace(wanted, data=data, plan=replace(named, **changes))
    context = context_of(target, wanted)
    if options["beside"]:
        beside = context_of(options["beside"], Wanted(data=data, plan=wanted.plan, seed=wanted.seed))
        context = replace(context, other=beside)
    context = replace(context, vary=variants)
    return context, options["only"], options["skip"], {}


_STATUS = {"ok": "ok", "info": "info", "warn": "warn", "error": "fail"}


def report(context: Context, outcomes: tuple[Outcome, ...], word: str, code: int) -> Report:
    """Return the report of the checks."""
    from vitconv.layout.match import collapse
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    columns = (Column("check", "check", "code"), Column("level", "level"), Column("finding", "finding"))
    rows = []
    # One reason often keeps many checks from running: it is said once.
    alike: dict[tuple[bool, str], list[str]] = {}
    for o in outcomes:
        if o.skipped:
            alike.setdefault((o.undecided, o.skipped), []).append(o.check.id)
    for o in outcomes:
        if o.skipped and (names := alike.pop((o.undecided, o.skipped), None)):
            status: Any = "warn" if o.undecided else "skip"
            reason = " ".join(line.strip() for line in o.skipped.splitlines())
            called = ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"
            rows.append(Row((called, "undecided" if o.undecided else "skipped", reason), status))
        for f in o.findings:
            advice = (f.advice or o.check.advice) if f.level in ("warn", "error") else ""
            where = f"in {', '.join(collapse(f.where))}" if f.where and f.level in ("warn", "error") else ""
            detail = "; ".join(part for part in (where, advice and f"what to do: {advice}") if part)
            rows.append(Row((o.check.id, f.level, f.text), _STATUS[f.level], detail))  # type: ignore[arg-type]
    # What is wrong comes first, and what only warns after it; the others stay cheap to dear.
    rows.sort(key=lambda row: {"fail": 0, "warn": 1}.get(row.status, 2))
    counts = {level: sum(f.level == level for o in outcomes for f in o.findings) for level in _STATUS}
    open_ = sum(o.undecided for o in outcomes)
    left = f", {open_} undecided" if open_ else ""
    left += f", {idle} not applicable" if (idle := sum(bool(o.skipped) and not o.undecided for o in outcomes)) else ""
    sentence = ", ".join(
        f"{n} {word}{'' if n == 1 else 's'}"
        for n, word in ((counts["error"], "error"), (counts["warn"], "warning"), (len(outcomes), "check"))
    )
    sections = [Section("checks", "What was found", columns, tuple(rows))]
    if context.notes:
        notes = tuple(Row((text,), "info") for text in context.notes)
        sections.append(Section("notes", "Noticed", (Column("note", "note"),), notes))
    facts = [Fact("network", (context.name,)), Fact("init", (context.scheme or "its own weights",))]
    facts += [Fact(k, (str(v),)) for k, v in context.facts.known().items()]
    facts += [Fact("images", (context.data.origin,)), Fact("precision", (context.plan.precision,))]
    return Report(
        "vitconv.check",
        f"Can {context.name} start training?",
        verdict=Verdict(word, "fail" if code == 1 else "warn" if code or counts["warn"] else "ok", sentence + left),
        facts=tuple(facts),
        sections=tuple(sections),
        data={"checks": [_plain(o) for o in outcomes]},
    )


def charts_of(outcomes: tuple[Outcome, ...]) -> tuple[Section, ...]:
    """Return one section of charts per check that has curves, with what is wrong; checks that found something first."""
    from vitconv.report import Chart, Column, Row, Section, Series

    sections = []
    found = (Column("finding", "finding"),)
    for o in sorted(outcomes, key=lambda o: {"error": 0, "warn": 1}.get(o.level, 2)):
        charts = []
        for f in o.findings:
            series = tuple(Series(name, points) for name, points in f.curves.items() if points)
            if series:
                # The names of many stand below the chart already.
                title = (
                    ", ".join(s.name for s in series) if len(series) < 3 else f"{f.axes[1] or 'value'} by {f.axes[0]}"
                )
                charts.append(Chart(title, *f.axes, series, log=not f.linear and _wide(series)))
        if charts:
            bad = tuple(Row((f.text,), _STATUS[f.level]) for f in o.findings if f.level in ("warn", "error"))  # type: ignore[arg-type]
            notes = (o.check.threshold,)
            sections.append(
                Section(o.check.id, o.check.title, found if bad else (), bad, notes=notes, charts=tuple(charts))
            )
    return tuple(sections)


def _wide(series: Any) -> bool:
    values = [y for s in series for _, y in s.points if y > 0]
    return bool(values) and max(values) > 20 * min(values)


def _plain(o: Outcome) -> dict[str, Any]:
    findings = [
        {
            "level": f.level,
            "text": f.text,
            "figures": dict(f.figures),
            "where": list(f.where),
            "advice": f.advice or o.check.advice,
            "curves": {name: [list(p) for p in points] for name, points in f.curves.items()},
        }
        for f in o.findings
    ]
    return {
        "check": o.check.id,
        "level": o.level,
        "skipped": o.skipped,
        "undecided": o.undecided,
        "seconds": round(o.seconds, 3),
        "findings": findings,
    }


def _coverage(target: str, init_fn: str, options: dict[str, Any]) -> tuple[Report, int]:
    """Tell which parameters an init function misses: fill with NaN, run it, and look what is left."""
    from vitconv.checks.base.init_fn import missed
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    context, _, _, _ = _context(target, options, drawn=False)
    rows = missed(context.network.module, init_fn)
    bad = [r for r in rows if r.level != "ok"]
    columns = (
        Column("parameter", "parameter", "code"),
        Column("count", "tensors", "count"),
        Column("module", "held by"),
        Column("state", "state"),
        Column("before", "what the constructor left"),
        Column("meaning", "meaning"),
    )
    cells = tuple(Row((r.names, r.count, r.module, r.state, r.before, r.meaning), _STATUS[r.level]) for r in rows)  # type: ignore[arg-type]
    errors = sum(r.count for r in rows if r.level == "error")
    word = "misses parameters" if errors else "sets all that matters"
    document = Report(
        "vitconv.check.init-fn",
        f"What does {init_fn} set in {context.name}?",
        verdict=Verdict(
            word, "fail" if errors else "ok", f"{errors} parameters are missed; {len(bad)} kinds to look at"
        ),
        facts=(Fact("network", (context.name,)), Fact("function", (init_fn,))),
        sections=(Section("coverage", "Parameters by what became of them", columns, cells),),
    )
    return document, 1 if errors else 0
