"""Hold the documentation's tables to the functions that print them, and the overflow measurement to known failures."""

import re
from pathlib import Path

import pytest
import torch

from vitconv.kernels.focused import claims, stable
from vitconv.kernels.focused.attention import focused_attention
from vitconv.kernels.focused.overflow import REGIMES, Outcome, Regime, measure
from vitconv.kernels.focused.variants import VARIANTS

PAGE = (Path(__file__).parents[2] / "docs/focused-linear-attention.md").read_text(encoding="utf-8")


def block(name):
    return re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)[1].splitlines()


def cells():
    """Yield (regime, variant, forward, backward) as the page has them."""
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block("overflow"))
    assert [row[0] for row in rows] == [str(regime) for regime in REGIMES]
    for regime, row in zip(REGIMES, rows, strict=True):
        for name, cell in zip(header[1:], row[1:], strict=True):
            forward, _, backward = cell.partition(" / ")
            yield regime, name, forward, backward or forward


def shown(regime, name):
    return Regime(regime.std, 2.0, regime.precision, regime.dead) if name == "simplified" else regime


def test_claims_and_magnitudes_are_current():
    assert list(claims.table()) == block("claims")
    assert list(claims.magnitudes()) == block("magnitudes")


@pytest.mark.parametrize("regime", REGIMES, ids=str)
def test_the_overflow_table_is_current_at_49_and_196_tokens(regime):
    for where, name, *stated in cells():
        if where != regime:
            continue
        small, large = (measure(VARIANTS[name], shown(regime, name), tokens) for tokens in (49, 196))
        for side, text in zip(("forward", "backward"), stated, strict=True):
            at_49, at_196 = getattr(small, side), getattr(large, side)
            if at_49:
                assert text == f"49 {at_49}", (name, side)
            elif at_196:
                assert text == f"196 {at_196}", (name, side)
            else:
                assert text == "ok" or int(text.split()[0]) > 196, (name, side)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["original", "divided", "upstream-fix", "stable"])
def test_the_overflow_table_is_current_at_3136_tokens(name):
    regime = Regime(2, 3)
    stated = next(forward for where, which, forward, _ in cells() if (where, which) == (regime, name))
    assert (measure(VARIANTS[name], regime, 3136).forward != "") == (stated != "ok")


def test_the_stable_form_never_fails_in_the_table():
    assert {(f, b) for _, name, f, b in cells() if name == "stable"} == {("ok", "ok")}
    assert all(any(f != "ok" or b != "ok" for _, n, f, b in cells() if n == name) for name in VARIANTS
               if name not in ("stable", "original-unguarded"))  # fmt: skip


def test_silent_zeros_are_called_wrong_not_ok():
    outcome = measure(VARIANTS["divided"], Regime(16, 3), 49)
    assert isinstance(outcome, Outcome)
    assert (outcome.forward, outcome.backward) == ("wrong", "nan")
    assert 0.05 < outcome.error < 10


def test_the_guard_decides_at_power_8():
    dead = Regime(1, 8, dead="token")
    assert measure(VARIANTS["original"], dead, 49).forward == ""
    assert measure(VARIANTS["original-unguarded"], dead, 49).forward == "nan"


@pytest.mark.parametrize("kind", ["plain", "hot", "dead head", "dead token"])
@pytest.mark.parametrize("power", [1, 3, 8, 12], ids=lambda p: f"p{p}")
@pytest.mark.parametrize(("tokens", "d", "heads"), [(49, 96, 3), (2048, 64, 2)], ids=["49", "2048"])
def test_the_error_bound_holds_and_is_not_idle(kind, power, tokens, d, heads):
    generator = torch.Generator().manual_seed(power)
    q, k, v = (torch.randn(1, tokens, d, generator=generator) * (50 if kind == "hot" else 1) for _ in range(3))
    if kind == "dead head":
        q[..., : d // heads] = -1
    if kind == "dead token":
        q[:, 0], k[:, 0] = -1, -1
    scale = torch.randn(1, 1, d, generator=generator)
    run = lambda *x: focused_attention(*x, None, heads=heads, power=power)  # noqa: E731
    difference = (run(q, k, v, scale) - run(q.double(), k.double(), v.double(), scale.double())).abs().max()
    bound = stable.error_bound(power, d, d // heads, tokens) * v.abs().max()
    assert difference <= bound
    # With few keys the chain is short, and the worst case is within four digits of what is seen.
    assert tokens > 49 or difference > bound / 1e4
