"""Do two networks compute the same, forward and backward, at every precision? Where they part, and why"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vitconv.cli._options import command_line, json_option, report_option, seed_type


@click.command("verify")
@click.argument("a")
@click.argument("b")
@click.option("--weights", metavar="CHECKPOINT", help="Carry the weights of one checkpoint into both sides.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAME",
    help="Judge the numerics at fp32, tf32, amp-fp16, amp-bf16, fp16 or bf16; several times for several. "
    "Default: the first four. fp64 alone looks at no other.",
)
@click.option("--skip", multiple=True, metavar="STAGE", help="Leave out a stage: accounting, sanity, function, "
              "numerics, numerics-PRECISION, where or why.")  # fmt: skip
@click.option("--set-a", multiple=True, metavar="NAME=VALUE", help="State a fact about A, or an option of its host.")
@click.option("--set-b", multiple=True, metavar="NAME=VALUE", help="State a fact about B, or an option of its host.")
@click.option("--dialect-a", metavar="DIALECT", help="The dialect of A's tensors; detected otherwise.")
@click.option("--dialect-b", metavar="DIALECT", help="The dialect of B's tensors; detected otherwise.")
@click.option("--branch-a", metavar="NAME", help="Which set of weights of A's checkpoint.")
@click.option("--branch-b", metavar="NAME", help="Which set of weights of B's checkpoint.")
@click.option("--edit-a", "edits_a", multiple=True, metavar="EDIT", help="Edit B's weights on their way to A.")
@click.option("--edit-b", "edits_b", multiple=True, metavar="EDIT", help="Edit A's weights on their way to B.")
@click.option("--inputs", multiple=True, metavar="NAME", help="Run these probe images only: coloured, single, "
              "low-variance, large, resized.")  # fmt: skip
@click.option("--profile", default="default", show_default=True, help="The rules to judge by: default or strict.")
@click.option("--device", default="cpu", show_default=True, help="Where to run: cpu or cuda.")
@click.option("--seed", type=seed_type, default=0, show_default=True, help="Seed of probe weights and probe images.")
@click.option("--blockwise", is_flag=True, help="Bound the memory: keep what passes between blocks, and compute each "
              "block again in the backward pass.")  # fmt: skip
@click.option("--save", type=click.Path(path_type=Path), metavar="RUN", help="Keep the traces in this folder.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything, not only what a person needs first.")
@report_option
@json_option
def command(
    a: str,
    b: str,
    precisions: tuple[str, ...],
    report_path: Path | None,
    as_json: bool,
    verbose: bool,
    profile: str,
    **options: Any,
) -> int:
    """Verify that B computes what A, the baseline, computes.

    A and B are each a checkpoint, HOST:MODEL, HOST:MODEL@CHECKPOINT, or python:MODULE:FACTORY. When only one has
    weights, the other gets them through the layouts. Two folders of --save are compared without running anything;
    `verify judge RUN` judges one again.

    Exit codes: 0 the same, 1 they differ, 3 undecided.
    """
    from vitconv.cli._output import aside, emit
    from vitconv.cli._verify_report import brief, full, machine, save

    folder = options.pop("save")
    if a == "judge":
        from vitconv.parity.rejudge import judge_run

        result = replace(judge_run(b, profile), command=command_line())
    elif _runs(a, b):
        from vitconv.parity.rejudge import compare_runs

        result = replace(compare_runs(a, b, profile), command=command_line())
    else:
        from vitconv.parity.verify import DEFAULT_PRECISIONS, verify

        with aside(), _progress() as told:
            result = verify(
                a,
                b,
                precisions=precisions or DEFAULT_PRECISIONS,
                profile=profile,
                save=folder,
                progress=told,
                announce=lambda plan: click.echo(plan.sentence, err=True),
                command=command_line(),
                **options,
            )
    emit(machine(result) if as_json else full(result) if verbose else brief(result), as_json=as_json)
    if report_path is not None:
        save(result, report_path)
    return result.exit_code


def _runs(a: str, b: str) -> bool:
    return (Path(a) / "run.json").is_file() and (Path(b) / "run.json").is_file()


def _progress() -> Any:
    from contextlib import contextmanager

    @contextmanager
    def bar() -> Any:
        if not sys.stderr.isatty():
            yield None
            return

        def told(done: int, total: int, what: str) -> None:
            sys.stderr.write(f"\r\033[K{done + 1}/{total} {what}")
            sys.stderr.flush()

        try:
            yield told
        finally:
            sys.stderr.write("\r\033[K")

    return bar()
