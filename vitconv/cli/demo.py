"""Convert a really trained network through three layouts and back, prove it, and run it in each library"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconv.cli._options import json_option, report_option

if TYPE_CHECKING:
    from vitconv.demo import Demo
    from vitconv.report import Report


@click.command("demo")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@report_option
@json_option
def command(folder: Path | None, report_path: Path | None, as_json: bool) -> int:
    """Convert a small ViT that was trained on handwritten digits: timm to xformers to transformers and back to timm.

    Every step is proved bit by bit; each file is loaded strictly by its own library where that is installed, and run
    on images that were held out. The files stay in FOLDER when it is given.
    """
    from vitconv.cli._output import deliver
    from vitconv.demo import demo

    def told(line: str) -> None:
        click.echo(f"... {line}", err=True)

    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            done = demo(Path(scratch), told=told)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        done = demo(folder, told=told)
    document = report(done)
    deliver(document, as_json=as_json, path=report_path)
    return 0 if done.good else 1


def report(done: Demo) -> Report:
    """Return the report of a demo."""
    from vitconv.report import Column, Fact, Report, Row, Section, Verdict

    steps = tuple(
        Row(
            (s.to, s.tensors, "the same bits" if s.same_bits else "DIFFERENT", s.seconds),
            "ok" if s.same_bits else "fail",
        )
        for s in done.steps
    )
    ran = tuple(
        Row(
            (x.library, "strictly" if x.loaded else "no", x.accuracy, x.worst),
            "skip" if x.loaded is None else "ok",
            x.why,
        )
        for x in done.loaded
    )
    sections = (
        Section(
            "steps",
            "Conversions, each from the one before",
            (
                Column("to", "to", "code"),
                Column("tensors", "tensors", "count"),
                Column("bits", "weights, against the original"),
                Column("seconds", "took", "seconds"),
            ),
            steps,
        ),
        Section(
            "libraries",
            "In the target's own library, on 360 held-out images",
            (
                Column("library", "library"),
                Column("loaded", "loaded"),
                Column("accuracy", "accuracy", "percent"),
                Column("worst", "largest difference of a logit", "number"),
            ),
            ran,
        ),
    )
    word = "all of it holds" if done.good else "something differs"
    sentence = (
        "timm, xformers, transformers and back: the last file equals the first byte for byte"
        if done.same_file
        else "the last file is not the first"
    )
    return Report(
        "vitconv.demo",
        "A Vision Transformer trained on handwritten digits, through three layouts and back",
        verdict=Verdict(word, "ok" if done.good else "fail", sentence),
        facts=(Fact("network", ("width 64, depth 4, 4 heads, patch 2, 202 186 parameters, trained by timm",)),),
        sections=sections,
    )
