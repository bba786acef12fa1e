"""Measure speed and size as ratios to a named baseline in the same run"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from vitconv.cli._options import json_option, report_option


@click.group("bench")
def command() -> None:
    """Measure, as ratios to a named baseline in the same run; nothing here is a test."""


@command.command("convert")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.Choice(["vit_tiny", "vit_small", "vit_base", "vit_large", "vit_huge"]),
    default=("vit_base", "vit_large"),
    show_default=True,
    help="Model size; may be repeated.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds; every job runs once in each."
)
@click.option(
    "--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where to write (a few GB)."
)
@click.option("--peers/--no-peers", default=True, help="Run the usual torch scripts beside ours.")
@click.option("--pth/--no-pth", default=False, help="Convert from a .pth too (needs torch).")
@report_option
@json_option
def convert_command(
    sizes: tuple[str, ...],
    repeat: int,
    folder: Path | None,
    peers: bool,
    pth: bool,
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Convert fp32 timm checkpoints to xformers, whole process, against `cp` of the same file."""
    from vitconv.bench.convert import bench
    from vitconv.cli._output import deliver
    from vitconv.report import Column, Report, Row, Section

    columns = (
        Column("job", "job"),
        Column("best", "best", "seconds"),
        Column("median", "median", "seconds"),
        Column("ratio", "best / best of cp", "ratio"),
        Column("extra", "best - best of cp", "seconds"),
        Column("memory", "peak memory", "bytes"),
    )
    sections = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for size in sizes:
            found = bench(size, Path(scratch), repeat, peers=peers, pth=pth)
            base = found["cp"].best
            rows = tuple(
                Row((name, t.best, t.median, t.best / base, t.best - base, t.memory)) for name, t in found.items()
            )
            sections.append(Section(size, f"{size}, fp32, timm to xformers, {repeat} rounds", columns, rows))
    document = Report("vitconv.bench.convert", "Conversion against a copy of the file", sections=tuple(sections))
    deliver(document, as_json=as_json, path=report_path)


@command.command("detection")
@click.option("--quick", is_flag=True, help="A subset for continuous integration: one network, 20 faults, float64.")
@click.option(
    "--digits",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of a trained timm checkpoint with its config.json, such as fixtures/digits.",
)
@click.option(
    "--precision", "precisions", multiple=True, type=click.Choice(["fp64", "fp32"]), default=("fp64", "fp32"),
    show_default=True, help="Where faults are searched exactly; may be repeated.",
)  # fmt: skip
@click.option(
    "--half", multiple=True, type=click.Choice(["amp-bf16", "amp-fp16", "bf16", "fp16"]), default=("amp-bf16",),
    show_default=True, help="Where only regression over inputs is left; may be repeated.",
)  # fmt: skip
@click.option(
    "--network", "only", multiple=True,
    type=click.Choice(
        ["digits", "token", "average", "gated", "distilled", "res-post", "deepnorm", "eva", "dinov3", "rope", "beit"]
        + [f"{library} swin{v2}" for library in ("timm", "torchvision", "transformers") for v2 in ("", " v2")]
        + ["timm pvt v2", "transformers pvt", "transformers pvt v2"]
    ),
    help="Spoil this network only; may be repeated. Libraries are then not compared.",
)  # fmt: skip
@click.option(
    "--fault", "faults", multiple=True, metavar="PATTERN",
    help="Plant only faults of these names in the catalogue, such as 'backward-norm-*', and no pairs; may be repeated.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes at the same time.")
@click.option("--pairs", type=click.IntRange(1), default=24, show_default=True, help="Crossed pairs per network.")
@click.option(
    "--seeds", type=click.IntRange(1), default=4, show_default=True, help="Weights to compare libraries with."
)
@report_option
@json_option
def detection_command(
    quick: bool,
    digits: Path | None,
    precisions: tuple[str, ...],
    half: tuple[str, ...],
    only: tuple[str, ...],
    faults: tuple[str, ...],
    jobs: int,
    pairs: int,
    seeds: int,
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Plant every fault in networks of libraries and print which are seen and named; exit 1 when a target is missed."""
    from vitconv.bench.matrix import measure, plan, report
    from vitconv.cli._output import deliver

    pieces = plan(
        quick=quick,
        digits=digits,
        only=only,
        precisions=precisions,
        half=half,
        pair_count=pairs,
        seeds=seeds,
        faults=faults,
    )
    matrix = measure(pieces, jobs=jobs, tell=lambda text: click.echo(text, err=True))
    document = report(matrix)
    deliver(document, as_json=as_json, path=report_path)
    if not matrix.good:
        click.get_current_context().exit(1)


@command.command("verify")
@click.option("--model", default="vit_tiny_patch16_224", show_default=True, help="A model of timm's.")
@click.option(
    "--set", "options", multiple=True, metavar="NAME=VALUE", default=("img_size=64", "depth=4"), show_default=True,
    help="An argument of the model.",
)  # fmt: skip
@click.option("--eps", default=1e-5, show_default=True, help="The fault: eps of the candidate's norms in the blocks.")
@click.option(
    "--precision", "precisions", multiple=True, default=("fp32", "tf32", "amp-bf16"), show_default=True,
    help="Of the stage of numerics; may be repeated.",
)  # fmt: skip
@report_option
@json_option
def verify_command(
    model: str,
    options: tuple[str, ...],
    eps: float,
    precisions: tuple[str, ...],
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Time each stage of a verification against the bare passes it makes, and the search for one fault."""
    from vitconv.bench.verify import bench
    from vitconv.cli._output import deliver
    from vitconv.report import Column, Fact, Report, Row, Section

    found = bench(model, options, eps, precisions)
    columns = (
        Column("stage", "stage"),
        Column("passes", "passes", "count"),
        Column("wall", "wall", "seconds"),
        Column("bare", "the same passes, bare", "seconds"),
        Column("ratio", "wall / bare", "ratio"),
    )
    rows = [Row((c.stage, c.passes, c.wall, c.bare, c.wall / c.bare if c.bare else None)) for c in found.costs]
    facts = (
        Fact("network", (f"timm {model} {' '.join(options)}",)),
        Fact("verdict", (f"{found.verdict}: {', '.join(found.found) or 'no cause found'}",)),
        Fact("one verification", (found.verify,), "seconds"),
        Fact("search for the cause", (found.search,), "seconds"),
        Fact("search / verification", (found.search / found.verify,), "ratio"),
        Fact("memory, stated", (found.stated,), "bytes"),
        Fact("memory, measured", (found.peak,), "bytes"),
    )
    document = Report(
        "vitconv.bench.verify",
        "Verification against its bare passes",
        facts=facts,
        sections=(Section("stages", "Stages", columns, tuple(rows)),),
    )
    deliver(document, as_json=as_json, path=report_path)


@command.command("check")
@click.option("--size", default="vit_base", show_default=True, help="The network whose static checks are run.")
@click.option("--file", "file_size", default="vit_large", show_default=True, help="The network whose file is audited.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Rounds.")
@click.option(
    "--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where to write the file (1.2 GB)."
)
@report_option
@json_option
def check_command(
    size: str, file_size: str, repeat: int, folder: Path | None, report_path: Path | None, as_json: bool
) -> None:
    """Time the static checks against one forward and backward pass, and an audit against reading the file."""
    from vitconv.bench.check import bench, typical
    from vitconv.cli._output import deliver
    from vitconv.report import Column, Fact, Report, Row, Section

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found = bench(size, file_size, Path(scratch), repeat)
    columns = (Column("check", "check", "code"), Column("seconds", "processor time", "seconds"))
    rows = tuple(Row((name, seconds)) for name, seconds in found.checks.items())
    middle = sorted(found.statics, key=lambda s: s.ratio)[len(found.statics) // 2]
    facts = (
        Fact(f"static checks of {size}", (middle.own,), "seconds"),
        Fact("one forward and backward pass", (middle.base,), "seconds"),
        Fact("checks / pass", (typical(found.statics),), "ratio"),
        Fact(f"audit of a {file_size} file", (min(a.own for a in found.audits),), "seconds"),
        Fact("reading it into memory", (min(a.base for a in found.whole),), "seconds"),
        Fact("audit / reading into memory", (typical(found.whole),), "ratio"),
        Fact("reading it tensor by tensor, memory used again", (min(a.base for a in found.audits),), "seconds"),
        Fact("audit / reading tensor by tensor", (typical(found.audits),), "ratio"),
    )
    document = Report(
        "vitconv.bench.check",
        "Static checks against a pass, an audit against reading",
        facts=facts,
        sections=(Section("checks", f"Static checks of {size}; the first pays for the shared pass", columns, rows),),
    )
    deliver(document, as_json=as_json, path=report_path)


@command.command("kernels")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
    help="A card, or the CPU on tiny shapes, which shows that everything runs and claims nothing.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(1), default=420.0, show_default=True, help="Budget; the rest is left out."
)
@click.option("--compile/--no-compile", "compiled", default=None, help="torch.compile as a peer  [default: on a card]")
@click.option("--figures", type=click.Path(dir_okay=False, path_type=Path), help="Write the plain figures as JSON.")
@report_option
@json_option
def kernels_command(
    device: str,
    seconds: float,
    compiled: bool | None,
    figures: Path | None,
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Time the Triton kernels beside eager, torch.compile and Liger, correctness first; exit 1 when one is wrong."""
    from vitconv.bench.kernels import report, write
    from vitconv.cli._output import deliver
    from vitconv.kernels.bench import run

    found = run(device, seconds=seconds, compiled=compiled)
    document = report(found)
    deliver(document, as_json=as_json, path=report_path)
    if figures is not None:
        write(found, figures)
    if not found["correct"]:
        click.get_current_context().exit(1)


@command.command("dialects")
@click.option(
    "--size",
    type=click.Choice(["vit_tiny", "vit_small", "vit_base", "vit_large"]),
    default="vit_base",
    show_default=True,
    help="Model size.",
)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Rounds; every job runs in each.")
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where to write (a GB).")
@click.option("--peers/--no-peers", default=True, help="Run the owning library's own loader beside ours.")
@report_option
@json_option
def dialects_command(
    size: str, repeat: int, folder: Path | None, peers: bool, report_path: Path | None, as_json: bool
) -> None:
    """Convert between layouts, whole process, against `cp` and the owning library's own loader."""
    from vitconv.bench.dialects import PATHS, bench
    from vitconv.cli._output import deliver
    from vitconv.report import Column, Report, Row, Section

    columns = (
        Column("job", "job"),
        Column("best", "best", "seconds"),
        Column("median", "median", "seconds"),
        Column("ratio", "best / best of cp", "ratio"),
        Column("library", "best of the library / best", "ratio"),
        Column("memory", "peak memory", "bytes"),
    )
    sections = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for path in PATHS:
            found = bench(path, size, Path(scratch), repeat, peers=peers)
            base, library = found["cp"].best, found.get("timm's own loader")
            rows = tuple(
                Row((name, t.best, t.median, t.best / base, library.best / t.best if library else None, t.memory))
                for name, t in found.items()
            )
            sections.append(Section(path.replace(" ", "-"), f"{path}, {size}, fp32, {repeat} rounds", columns, rows))
    document = Report("vitconv.bench.dialects", "Layouts against the libraries that own them", sections=tuple(sections))
    deliver(document, as_json=as_json, path=report_path)
