"""docs/experiments.md is what the results say; results have experiments; what the checks say of one is still so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from vitconv.bench.experiments import opening
from vitconv.bench.experiments.cell import Cell, context, training, verdicts
from vitconv.bench.experiments.page import page, placement_outcomes, results
from vitconv.bench.experiments.studies import FACTORS, STUDIES, report

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "experiments"


def test_the_page_is_not_stale() -> None:
    text = (DOCS / "experiments.md").read_text(encoding="utf-8")
    assert text == page(RESULTS), "run: python -m vitconv.bench.experiments page docs/experiments docs/experiments.md"


@pytest.mark.parametrize("study", STUDIES)
def test_every_result_is_of_an_experiment(study: str) -> None:
    cells = {c.id for c in STUDIES[study]()}
    assert len(cells) == len(STUDIES[study]())
    for part in ("trainings", "checks"):
        assert set(json.loads((RESULTS / f"{study}-{part}.json").read_text(encoding="utf-8"))) <= cells


@pytest.mark.parametrize("variant", ["K and V raw", "nothing"])
def test_what_the_checks_said_is_still_so(variant: str) -> None:
    stored = next(r for r in results(RESULTS, "report") if r.cell.variant == variant and r.cell.depth == 12)
    levels = verdicts(stored.cell)["levels"]
    wrong = {n for n, level in levels.items() if level == "error"}
    assert wrong == {n for n, level in stored.checks["levels"].items() if level == "error"}
    assert wrong == ({"facts", "stream-growth"} if variant == "K and V raw" else set())


@pytest.mark.parametrize("variant", FACTORS)
def test_one_thing_is_changed_at_a_time(variant: str) -> None:
    cell = dataclasses.replace(report()[0], network=FACTORS[variant], depth=1, width=48)
    facts = context(cell).facts
    assert facts.kv_normalised is not ("K and V raw" in variant or variant.startswith("all"))
    assert facts.norm_eps == (1e-5 if "eps 1e-5" in variant or variant.startswith("all") else 1e-6)


def test_a_training_leaves_what_the_page_needs() -> None:
    cell: Cell = dataclasses.replace(report()[0], depth=1, width=48, steps=12, batch=8, until=6)
    made = training(cell)
    assert made["steps"] == 6
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["verdict"] in ("trains", "stuck", "collapses", "diverges")


def test_networks_that_only_train_with_warm_up_are_told() -> None:
    found = placement_outcomes(r for r in results(RESULTS, "placement") if r.cell.seed == 0)
    rows = {(o.variant, o.depth): o.after for o in found}
    assert rows["post", 6] == "needs warm-up"
    assert rows["pre", 6] == "trains"
    assert rows["post", 24] == "stuck"
    again = placement_outcomes(r for r in results(RESULTS, "placement") if r.cell.seed == 1)
    told = {(o.variant, o.depth): o.told for o in again}
    assert told["res-post-norm, gain 1", 48] == "trains (with warm-up: collapses)"
    assert told["pre", 6] == "trains"


def test_the_sentences_of_the_page_hold() -> None:
    def of(depth: int, lr: float, variant: str = "K and V raw") -> set[str]:
        found = (r for r in results(RESULTS, "report") if r.cell.variant == variant)
        return {r.outcome for r in found if (r.cell.depth, r.cell.lr) == (depth, lr)}

    assert of(12, 4e-3) == {"collapsed"}
    assert of(12, 4e-3, "nothing") == {"held"}
    assert (of(6, 4e-3), of(12, 2e-3)) == ({"grew"}, {"held"})
    assert of(12, 4e-3, "eps 1e-5") == {"held", "stuck"}
    rows = {
        (o.variant, o.depth, o.result.cell.seed): o.after for o in placement_outcomes(results(RESULTS, "placement"))
    }
    raw = [[rows["pre, K and V raw", depth, seed] for seed in (0, 1)] for depth in (6, 12, 24)]
    assert raw == [["trains", "trains"], ["trains", "trains"], ["stuck", "trains"]]


def test_what_is_said_of_gains_of_zero_holds() -> None:
    found = results(RESULTS, "gates")
    losses: dict[str, list[float]] = {}
    for r in found:
        if (r.cell.lr, r.cell.steps) == (1e-3, 150):
            losses.setdefault(r.cell.variant, []).append(r.training["last"])
    # Xavier's matrices: the gain decides. Matrices of .02: slow whatever the gain is.
    assert min(losses["gain 0, matrices Xavier"]) > 1.2 * max(losses["gain .1, matrices Xavier"])
    assert all(min(losses[f"gain {gain}, matrices .02"]) > 2.15 for gain in ("0", ".1", "1"))
    assert max(losses["gain 1, matrices .02, queries and keys Xavier"]) < 2.15
    assert max(losses["pre-norm, matrices .02, LayerScale 1e-5"]) < 2.03
    told = {r.cell.variant[:6] for r in found if r.checks["levels"].get("gate-growth") == "info"}
    assert told == {"gain 0"}


def test_the_page_on_gains_that_open_is_not_stale() -> None:
    stored = json.loads((RESULTS / "opening.json").read_text(encoding="utf-8"))
    assert set(stored) == {t.id for t in opening.trials()}
    assert (DOCS / "opening.md").read_text(encoding="utf-8") == opening.page(stored)


def test_what_is_said_of_gains_that_open_holds() -> None:
    stored = json.loads((RESULTS / "opening.json").read_text(encoding="utf-8"))
    counts = opening.held_back(stored)
    assert all(some == 0 for (_, _, below), (some, _) in counts.items() if not below)
    assert counts["res-post-norm", 4, True][0] == counts["LayerScale", 16, True][0] == 0
    assert counts["res-post-norm", 16, True] == (3, 4)
    assert counts["ReZero", 16, True] == (2, 2)
    reached = [stored[t.id]["shut"]["gate"] / t.total for t in opening.trials()]
    assert 0.25 < min(reached) < max(reached) < 0.9


@pytest.mark.parametrize("kind", opening.KINDS)
def test_a_trial_has_its_gates_where_they_belong(kind: str) -> None:
    trial = opening.Trial(kind, 24, 1, 4, 8, 0, 1e-3, 3)
    of = opening.network(trial, 0.0)
    gates = {n for n, t in of.canonical.items() if n.endswith(opening.KINDS[kind].gates)}
    assert len(gates) == 2
    assert not any(bool(of.canonical[n].any()) for n in gates)
    found = opening.result(trial)
    assert found["shut"]["gate"] <= trial.total + 1e-6 < found["ajar"]["gate"] <= 0.1 + trial.total + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["K and V raw", "nothing"])
def test_the_fault_alone_turns_learning_into_collapse(variant: str) -> None:
    cell = next(c for c in report() if c.variant == variant and c.depth == 12 and c.lr == 4e-3)
    made = training(dataclasses.replace(cell, until=120))
    assert (made["stream_largest"] > 100 * made["stream"][0]) == (variant == "K and V raw")
