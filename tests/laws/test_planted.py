"""Every law notices a planted fault: a mapping that is right on one side only, or an engine that slips."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from vitconv.errors import VitconvError
from vitconv.layout import network as network_module
from vitconv.layout import plan as plan_module
from vitconv.layout import recipe
from vitconv.layout.dialect import Dialect
from vitconv.layout.recipe import View
from vitconv.layout.rule import Entry, alias, const, linear, norm, rule

B = "blocks.{i}."
GOOD: dict[str, tuple[Entry, ...]] = {
    "patch": rule("kernel: p q c d", "embed.patch.weight: d c p q"),
    "qkv": rule("l.{i}.qkv: (* a) d", B + "attn.{q,k,v}.weight: a d"),
    "heads": rule("l.{i}.out: h e d", B + "attn.out.weight: d (h e)"),
    "gated": rule("l.{i}.fc1: (* m) d", B + "mlp.{gate,up}.weight: m d"),
    "pos": rule("pos: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
    "norm": norm("l.{i}.n1", B + "norm1"),
    "norm2": norm("l.{i}.n2", B + "norm2"),
    "down": linear("l.{i}.fc2", B + "mlp.down", "d m"),
    "alias": alias("again.{i}", "l.{i}.qkv"),
    "const": const("ids: 1 (1+n)", "arange", optional=False),
}
FAULTS: dict[str, dict[str, tuple[Entry, ...]]] = {
    "k-and-v-swapped": {"qkv": rule("l.{i}.qkv: (* a) d", B + "attn.{q,v,k}.weight: a d")},
    "up-and-gate-swapped": {"gated": rule("l.{i}.fc1: (* m) d", B + "mlp.{up,gate}.weight: m d")},
    "interleaved": {"qkv": rule("l.{i}.qkv: (a *) d", B + "attn.{q,k,v}.weight: a d")},
    "heads-and-their-widths-swapped": {"heads": rule("l.{i}.out: e h d", B + "attn.out.weight: d (h e)")},
    "heads-innermost": {"heads": rule("l.{i}.out: h e d", B + "attn.out.weight: d (e h)")},
    "not-transposed": {"patch": rule("kernel: q p c d", "embed.patch.weight: d c p q")},
    "class-row-last": {"pos": rule("pos: 1 (n+1) d", "embed.pos: n d", "embed.pos_cls: d")},
    "class-row-lost": {"pos": rule("pos: 1 n d", "embed.pos: n d")},
    "norms-swapped": {"norm": norm("l.{i}.n1", B + "norm2"), "norm2": norm("l.{i}.n2", B + "norm1")},
    "weight-and-bias-swapped": {
        "norm": rule("l.{i}.n1.{weight,bias}: d", B + "norm1.{bias,weight}: d"),
    },
    "bias-lost": {"down": linear("l.{i}.fc2", B + "mlp.down", "d m", bias=None)},
    "second-name-lost": {"alias": ()},
    "constant-lost": {"const": ()},
    "constant-of-another-value": {"const": const("ids: 1 (1+n)", 1.0, optional=False)},
}


def dialect(entries: dict[str, tuple[Entry, ...]]) -> Dialect:
    return Dialect(
        "trial", "a trial layout", "this test", "none", tuple(e for group in entries.values() for e in group)
    )


def faulty(name: str) -> Dialect:
    return dialect({**GOOD, **FAULTS[name]})


@pytest.fixture
def case(forge: SimpleNamespace) -> Any:
    """Return a network whose heads, widths and patch sides all differ."""
    drawn = forge.networks(Random(7), dialect(GOOD).variants[0], "F32")
    sizes = {**drawn.axes, "a": 6, "h": 2, "e": 3, "d": 5, "m": 4, "n": 4, "c": 1, "p": 2, "q": 2}
    return forge.sized(drawn, sizes)


def test_the_laws_hold_without_a_fault(forge: SimpleNamespace, case: Any) -> None:
    good = dialect(GOOD)
    forge.check_encode(case, good)
    forge.check_decode(case, good)
    forge.check_round_trip(case, good, good)
    forge.check_adjoint(case, good, good)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_encode_is_noticed(forge: SimpleNamespace, case: Any, name: str) -> None:
    with pytest.raises((AssertionError, VitconvError)):
        forge.check_encode(case, faulty(name))


# A second name or a constant is no element of its own: decoding passes them over.
ELEMENTS = [name for name in FAULTS if not name.startswith(("second", "constant"))]


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_fault_on_decode_is_noticed(forge: SimpleNamespace, case: Any, name: str) -> None:
    with pytest.raises((AssertionError, VitconvError)):
        forge.check_decode(case, faulty(name))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_one_side_only_breaks_the_round_trip(forge: SimpleNamespace, case: Any, name: str) -> None:
    with pytest.raises((AssertionError, VitconvError)):
        forge.check_round_trip(case, faulty(name), dialect(GOOD))


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_fault_on_one_side_only_breaks_the_adjoint(forge: SimpleNamespace, case: Any, name: str) -> None:
    with pytest.raises((AssertionError, VitconvError, KeyError)):
        forge.check_adjoint(case, faulty(name), dialect(GOOD))


def shorter(view: View) -> View:
    """Lose the last row of every view of more than one."""
    (n, s), *rest = view.dims[0] if view.dims and view.dims[0] else ((1, 1),)
    return replace(view, dims=(((n - 1, s), *rest), *view.dims[1:])) if n > 1 else view


def shifted(view: View) -> View:
    return replace(view, offset=view.offset + 1)


def strided(view: View) -> View:
    return replace(view, dims=tuple(tuple((n, s + 1) for n, s in axis) for axis in view.dims))


SLIPS = {"a-row-lost": shorter, "an-element-late": shifted, "a-wrong-stride": strided}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS.keys())
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_the_engine_slipping_on_one_side_is_caught_by_the_plans_own_proof(
    forge: SimpleNamespace, case: Any, monkeypatch: pytest.MonkeyPatch, slip: Any, side: str
) -> None:
    """The proof alone must object, before any element is moved."""
    module = network_module if side == "decode" else plan_module
    slipping = type("Slipping", (recipe.Views,), {"of": lambda self, b, j: slip(recipe.Views.of(self, b, j))})
    monkeypatch.setattr(module, "Views", slipping)
    good = dialect(GOOD)
    with pytest.raises(VitconvError):
        forge.convert(case, case.file, good, good, choices={}, wanted={})
