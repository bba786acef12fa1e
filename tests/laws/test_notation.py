"""What the notation can say and no registered dialect does yet, held to the same laws by dialects defined here."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitconv.errors import NotRecognised
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Option, alias, const, linear, norm, rule, tie

PATCH = rule("kernel: p q c d", "embed.patch.weight: d c p q")
B = "blocks.{i}."


def dialect(*entries: Entry) -> Dialect:
    """Return a dialect that exists for one test."""
    return Dialect("trial", "a trial layout", "this test", "none", (*PATCH, *entries))


TRIALS = {
    "per-head-interleave": dialect(
        *rule("l.{i}.qkv.w: (h * e) d", B + "attn.{q,k,v}.weight: (h e) d"),
        *rule("l.{i}.qkv.b: (h * e)", B + "attn.{q,k,v}.bias: (h e)", optional=True),
        *rule("l.{i}.norm: e", B + "attn.q_norm.weight: e"),
    ),
    "interleave-by-row": dialect(*rule("l.{i}.qkv: (a *) d", B + "attn.{q,k,v}.weight: a d")),
    "interleave-innermost": dialect(*rule("l.{i}.qkv: d a *", B + "attn.{q,k,v}.weight: a d")),
    "flax-heads": dialect(
        *rule("l.{i}.{query,key,value}.kernel: d h e", B + "attn.{q,k,v}.weight: (h e) d"),
        *rule("l.{i}.out.kernel: h e d", B + "attn.out.weight: d (h e)"),
        *rule("l.{i}.{query,key,value}.bias: h e", B + "attn.{q,k,v}.bias: (h e)"),
    ),
    "scanned": dialect(
        *rule("q.kernel: * d h e", B + "attn.q.weight: (h e) d"),
        *rule("scale: * d", B + "norm1.weight: d"),
        *rule("ls: d *", B + "ls1: d", optional=True),
        *rule("up: m * d", B + "mlp.up.weight: m d"),
    ),
    "scanned-and-by-layer": dialect(
        *rule("scale: * d", B + "norm1.weight: d"), *rule("l.{i}.up: m d", B + "mlp.up.weight: m d")
    ),
    "inner-sum": dialect(
        *rule("l.{i}.up: m d", B + "mlp.up.weight: m d"),
        *rule("reg: r d", "embed.reg: r d"),
        *rule("pos: d (1+r+n)", "embed.pos_cls: d", "embed.pos_reg: r d", "embed.pos: n d"),
    ),
    "outer-sum": dialect(
        *rule("l.{i}.up: m d", B + "mlp.up.weight: m d"),
        *rule("pos: (1+n+1) 1 d", "embed.pos_cls: d", "embed.pos: n d", "embed.pos_dist: d"),
    ),
    "last-block-differs": dialect(
        *norm("l.{i}.{where}", B + "norm1"),
        *rule("l.{i}.final: d", "norm.weight: d", layers="last"),
        *rule("l.{i}.first: d", "embed.norm.weight: d", layers="first", optional=True),
        Choice(
            "end",
            (Option("plain", bind={"where": "norm"}), Option("wrapped", bind={"where": "n"}, last={"where": "n.w"})),
        ),
    ),
    "tied": dialect(
        *linear("l.{i}.k", B + "attn.k", "a d"), *tie((B + "attn.q.weight", B + "attn.v.weight"), B + "attn.k.weight")
    ),
    "constant-and-second-name": dialect(
        *linear("l.{i}.up", B + "mlp.up", "m d"),
        *alias("again.{i}.up", "l.{i}.up.weight"),
        *alias("kernel2", "kernel"),
        *rule("pos: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *const("ids: 1 (1+n)", "arange", optional=False),
        *const("l.{i}.mask: 1 n", 1.0, dtype="F32"),
    ),
}
each_trial = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS.keys())


@each_trial
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_laws_hold(forge: SimpleNamespace, trial: Dialect, random: Random) -> None:
    case = forge.networks(random, random.choice(trial.variants))
    forge.check_encode(case, trial)
    forge.check_decode(case, trial)
    forge.check_round_trip(case, trial, trial)
    forge.check_adjoint(case, trial, trial)


@pytest.mark.parametrize("trial", [TRIALS["per-head-interleave"], TRIALS["scanned"]], ids=["interleave", "scanned"])
def test_a_bf16_row_of_sixty_kibibytes(forge: SimpleNamespace, trial: Dialect) -> None:
    """Rows of 30 720 elements of two bytes, not a multiple of any block used to move them."""
    case = forge.networks(Random(3), trial.variants[0], "BF16")
    wide = {**case.axes, "d": 30_720, "e": 3}
    sized = forge.sized(case, wide)
    assert max(v.nbytes for v in sized.file.values()) > 60 * 1024
    forge.check_encode(sized, trial)
    forge.check_decode(sized, trial)


def test_interleaved_heads_read_as_the_notation_says(forge: SimpleNamespace) -> None:
    """Two heads of one row each: q0 k0 v0 q1 k1 v1."""
    (r,) = rule("qkv: (h * e) d", "{q,k,v}: (h e) d")
    parts = [np.array([[1], [2]]), np.array([[3], [4]]), np.array([[5], [6]])]
    assert forge.whole_of(r, parts, {"h": 2, "e": 1, "d": 1}).ravel().tolist() == [1, 3, 5, 2, 4, 6]


def test_stacked_and_single_layers_must_agree_about_the_depth(forge: SimpleNamespace) -> None:
    trial = TRIALS["scanned-and-by-layer"]
    case = forge.networks(Random(0), trial.variants[0])
    file = {**case.file, "scale": np.zeros((case.depth + 2, case.axes["d"]), "u4")}
    with pytest.raises(NotRecognised, match=rf"axis i={case.depth + 2}.*{case.depth} layers"):
        forge.network_of(case, file, trial)


def test_a_constant_of_another_length_is_not_that_constant(forge: SimpleNamespace) -> None:
    trial = TRIALS["constant-and-second-name"]
    case = forge.networks(Random(0), trial.variants[0])
    file = {**case.file, "ids": np.zeros((1, 99), "i8")}
    with pytest.raises(NotRecognised, match=rf"ids has shape \[1, 99\], expected \[1, {case.axes['n'] + 1}\]"):
        forge.network_of(case, file, trial)


def test_one_of_two_names_is_enough(forge: SimpleNamespace) -> None:
    trial = TRIALS["constant-and-second-name"]
    case = forge.networks(Random(0), trial.variants[0])
    for gone in ("kernel", "kernel2", "l.0.up.weight", "again.0.up"):
        file = {k: v for k, v in case.file.items() if k != gone}
        _, network = forge.network_of(case, file, trial)
        assert forge.same(forge.gathered(network, file), case.canonical)
