"""`vitconv bench kernels`: runs on a CPU and claims nothing there, says so, and fails when a kernel is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from vitconv.cli.main import cli
from vitconv.errors import UsageError
from vitconv.kernels import bench


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    figures = tmp_path_factory.mktemp("bench") / "figures.json"
    done = CliRunner().invoke(
        cli, ["bench", "kernels", "--device", "cpu", "--no-compile", "--figures", str(figures), "--json"]
    )
    assert done.exit_code == 0, done.output
    return done.stdout, json.loads(figures.read_text(encoding="utf-8"))


def test_correctness_comes_first_and_no_speed_is_claimed(run: tuple[str, dict]) -> None:
    said, figures = run
    document = json.loads(said)
    assert [s["key"] for s in document["sections"]][:2] == ["checks", "times"]
    assert "none: run on a CPU, on tiny shapes" in said
    assert figures["correct"] is True
    assert {row["provider"] for row in figures["rows"]} >= {"eager", "own"}


def test_without_a_card_the_full_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(cli, ["bench", "kernels"])
    assert isinstance(done.exception, UsageError)
    assert "'cuda' with a GPU, or 'cpu'" in str(done.exception)


def test_a_wrong_kernel_is_a_no(monkeypatch: pytest.MonkeyPatch, run: tuple[str, dict]) -> None:
    wrong = {**run[1], "correct": False, "checks": [{**c, "passed": False} for c in run[1]["checks"][:1]]}
    monkeypatch.setattr(bench, "run", lambda *_args, **_options: wrong)
    done = CliRunner().invoke(cli, ["bench", "kernels", "--device", "cpu"])
    assert done.exit_code == 1
    assert "no speed is claimed" in done.output


def test_the_page_holds_no_figure_without_a_card() -> None:
    """Its table of speeds is empty and says so, until a card's name stands over it."""
    page = (Path(__file__).parents[2] / "docs" / "focused-linear-attention.md").read_text(encoding="utf-8")
    table = page.partition("## Speed")[2].partition("\n## ")[0]
    assert "There are no figures" in table
