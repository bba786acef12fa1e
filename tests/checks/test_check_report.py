"""The page of `vitconv check`: what is wrong stands first, in the table and among the charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitconv.checks.base.check import Finding
from vitconv.checks.base.recipe import read_recipe
from vitconv.checks.base.run import Outcome, run_checks, verdict
from vitconv.cli.check import charts_of, report
from vitconv.registry import CHECKS, load
from vitconv.report.html import as_html

CHECKED = ("facts", "attention", "gradient-profile", "stream-growth")


def made(context: Any) -> tuple[Any, tuple[Any, ...]]:
    outcomes = run_checks(context, [load(CHECKS, name) for name in CHECKED])
    return report(context, outcomes, *verdict(outcomes)), charts_of(outcomes)


def test_what_is_wrong_comes_first(network: Any) -> None:
    document, charts = made(network("kv_normalised=false", "depth=3"))
    rows = document.sections[0].rows
    bad = [row.status == "fail" for row in rows]
    assert sum(bad) == 2
    assert bad == sorted(bad, reverse=True)
    assert document.verdict.sentence.startswith("2 errors, 0 warnings, 4 checks")
    # Of what else holds the order is the checks' own.
    names = [row.cells[0] for row, wrong in zip(rows, bad, strict=True) if not wrong]
    assert names == sorted(names, key=CHECKED.index)
    assert [section.status for section in charts] == ["fail", "info", "info"]
    assert charts[0].key == "stream-growth"
    # Exponents of both branches and the limit, on one plain scale.
    powers = charts[0].charts[0]
    assert [s.name for s in powers.series] == ["power of attn", "power of mlp", "limit"]
    assert not powers.log
    assert "un-normalised" in as_html(document) and 'class="facts one"' in as_html(document)


@pytest.mark.parametrize(
    ("more", "words"), [((), "0 errors, 0 warnings"), (("kv_normalised=false",), "1 error, 0 warnings, 1 check")]
)
def test_counts_are_said_in_the_singular_too(more: tuple[str, ...], words: str, network: Any) -> None:
    context = network(*more)
    outcomes = run_checks(context, [load(CHECKS, "facts")])
    assert words in report(context, outcomes, *verdict(outcomes)).verdict.sentence  # type: ignore[union-attr]


def test_a_network_configured_in_a_file_is_called_by_it(tmp_path: Path) -> None:
    small = "num_layers: 1, dim_model: 32, residual_norm_style: pre, block_type: encoder"
    inner = (
        "multi_head_config: {num_heads: 2, residual_dropout: 0.0, attention: {name: scaled_dot_product, dropout: 0.0}}"
    )
    mlp = "feedforward_config: {name: MLP, dropout: 0.0, activation: gelu, hidden_layer_multiplier: 4}"
    path = tmp_path / "vit_b.yaml"
    path.write_text(f"[{{{small}, {inner}, {mlp}}}]\n", "utf-8")
    context = read_recipe(path).context()
    assert report(context, (), "word", 0).title == "Can vit_b.yaml start training?"
    named = tmp_path / "named.yaml"
    named.write_text("model: vit_tiny\n", "utf-8")
    assert read_recipe(named).name == ""


def test_where_a_finding_is_has_its_layers_in_one(network: Any) -> None:
    where = tuple(f"blocks.{i}.attn.q.weight" for i in range(4))
    one = Outcome(load(CHECKS, "facts"), (Finding("warn", "found", {}, where, "do"),))
    row = report(network(), (one,), "word", 0).sections[0].rows[0]
    assert row.detail == "in blocks.{0..3}.attn.q.weight; what to do: do"
