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
    from vitconv.report import Column, Report, Row, Section, emit, save

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
    emit(document, as_json=as_json)
    if report_path is not None:
        save(document, report_path)
