"""A side that exists in half precision only: what the noise lets through is named, the rest is said to be open."""

from __future__ import annotations

import pytest

from vitconv.bench.clean import variants
from vitconv.bench.half import HalfBench
from vitconv.parity.regress import LEAST_INPUTS, regress


@pytest.fixture(scope="module")
def half(bench_of) -> HalfBench:
    return HalfBench(bench_of("token"), "amp-bf16", 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scale too large by 1 %", "QuickGELU", "rows kqv", "grid transposed"])
def test_faults_are_named_below_the_noise(name: str, half: HalfBench, bench_of, mutation) -> None:
    found = half.ask(bench_of("token").spoiled(mutation(name)))
    assert found.accused[0] in mutation(name).truth
    best = next(e for e in found.estimates if e.name == found.accused[0])
    assert abs(best.beta - 1) < 0.3 and best.z > 5
    assert not found.cause().proven


@pytest.mark.parametrize("name", ["attention unfused", "attention written out", "GELU by erf"])
def test_equal_functions_accuse_nobody(name: str, half: HalfBench, bench_of) -> None:
    net = bench_of("token").spoiled()
    variants()[name][0](net)
    found = half.ask(net)
    assert found.accused == ()
    assert "scale-missing" in found.excluded
    # The limit of detection: such an eps is far below the rounding of bfloat16.
    assert "eps-final-1e-12" in found.undetectable


def test_a_fault_in_the_noise_is_said_to_be_open(half: HalfBench, bench_of, mutation) -> None:
    net = bench_of("token").spoiled(mutation("eps 1e-12 at the end"))
    variants()["attention unfused"][0](net)
    found = half.ask(net)
    assert found.accused == () and "eps-final-1e-12" in found.undetectable


@pytest.mark.parametrize("name", ["matrices in bf16", "eps 1e-12 in blocks", "tanh GELU in block 2"])
def test_what_rounding_swallows_is_not_excluded(name: str, half: HalfBench, bench_of, mutation) -> None:
    # The code is the same and rounds alike, so the sides agree nearly or to the bit: that proves nothing.
    found = half.ask(bench_of("token").spoiled(mutation(name)))
    assert found.accused == ()
    assert not {*mutation(name).truth} & {*found.excluded}


def test_a_fault_of_one_block_is_looked_for_where_it_shows(half: HalfBench, bench_of, mutation) -> None:
    found = half.ask(bench_of("token").spoiled(mutation("no fc1 bias in block 1")))
    assert found.layer == 1
    assert "mlp-up-bias-missing@1" in found.accused


def test_faults_that_differ_in_size_alone_are_named_together(bench_of, mutation) -> None:
    # An eps of 1e-12, 1e-8 or 1e-7 for 1e-6 changes the same, by amounts that are 10 % apart.
    fine = HalfBench(bench_of("average"), "fp32", 8)
    found = fine.ask(bench_of("average").spoiled(mutation("eps 1e-12 of norm2")))
    assert {"eps-norm2-1e-12", "eps-norm2-1e-8", "eps-norm2-1e-7"} <= {*found.accused}
    assert "eps-norm2-1e-5" not in found.accused


@pytest.mark.slow
def test_where_both_sides_round_alike_the_direction_decides(bench_of, mutation) -> None:
    # A third of the change vanishes in bfloat16 behind the norm; eps beside the deviation has the better slope.
    bench = HalfBench(bench_of("gated"), "amp-bf16")
    found = bench.ask(bench_of("gated").spoiled(mutation("eps 1e-5 at the end")))
    slopes = {e.name: e.beta for e in found.estimates}
    assert abs(slopes["norm-std-final"] - 1) < 0.3 < abs(slopes["eps-final-1e-5"] - 1)
    assert found.accused[0] == "eps-final-1e-5"


@pytest.mark.slow
def test_predictions_made_anew_give_the_same_and_keep_one(bench_of, mutation, half: HalfBench) -> None:
    from vitconv.parity.regress import predict, regress_deeper

    bench = bench_of("token")
    anew = predict(bench.config, bench.weights, half.images, kept=False)
    wrong = half.traces(bench.spoiled(mutation("no fc1 bias in block 1")))
    args = (bench.config, bench.weights, half.images, half.right, wrong)
    found = regress_deeper(*args)
    kept = half.ask(bench.spoiled(mutation("no fc1 bias in block 1")))
    assert found.accused == kept.accused != ()
    assert {e.name for e in found.estimates} == {e.name for e in kept.estimates}
    assert {n for n in anew.faulty if anew.faulty.get(n) is not None} == {*half.predictions.faulty}
    # All of them would be hundreds of times one network's values.
    assert set(vars(anew.faulty)) == {"knobs", "run", "last"}


def test_few_inputs_are_refused(half: HalfBench) -> None:
    from vitconv.parity.regress import Predictions

    few = Predictions(half.predictions.base[:2], {})
    with pytest.raises(ValueError, match=str(LEAST_INPUTS)):
        regress(few, half.right[:2], half.right[:2])
