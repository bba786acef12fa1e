"""One run: taps, gradients, teacher-forced blocks, loss scale."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from vitconv.parity.compare import gaps
from vitconv.parity.pair import pair_of
from vitconv.parity.resolve import resolve
from vitconv.parity.side import module_of
from vitconv.parity.trace import cotangent_of, trace
from vitconv.parity.where import backward_order
from vitconv.vit.activation import gelu_tanh


@pytest.fixture
def side(live):
    return resolve(live(), live())[0]


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16().double()


def test_gradients_are_those_of_the_loss_with_the_cotangent(side):
    built = module_of(side, dtype=torch.float64)
    t = trace(built, X, 5, "fp64")
    again = module_of(side, dtype=torch.float64)
    x = X.clone().requires_grad_()
    (again(x) * cotangent_of((2, 5), 5)).sum().backward()
    assert torch.equal(t.grads["input"], x.grad)
    named = dict(again.module.named_parameters())
    assert set(t.grads) == {*named, "input"}
    assert all(torch.equal(t.grads[n], p.grad) for n, p in named.items())
    assert list(t.taps) == [
        "embed", "blocks.0.attn", "blocks.0.mlp", "blocks.0", "blocks.1.attn", "blocks.1.mlp", "blocks.1", "norm",
        "pool", "head",
    ]  # fmt: skip
    assert set(t.tap_grads) == set(t.taps)
    assert torch.equal(t.tap_grads["head"], cotangent_of((2, 5), 5))


@pytest.mark.parametrize("precision", ["amp-fp16", "fp16"])
def test_the_loss_scale_is_taken_out_again(side, precision):
    dtype = torch.float16 if precision == "fp16" else torch.float32
    plain, scaled = (
        trace(module_of(side, dtype=dtype), X, 0, precision, loss_scale=s) for s in (1.0, 64.0)
    )  # fmt: skip
    for g in gaps(plain, scaled):
        assert g.rel_rms < 0.02, g.name
    assert scaled.loss_scale == 64
    assert scaled.grads["norm.weight"].dtype == torch.float32


def test_small_gradients_need_the_loss_scale(side):
    tiny = cotangent_of((2, 5), 0) * 2.0**-24
    reference = trace(module_of(side, dtype=torch.float64), X, tiny, "fp64")
    errors = [
        next(g.rel_rms for g in gaps(reference, t) if g.kind == "grad" and g.name == "blocks.0.mlp.up.weight")
        for t in (trace(module_of(side), X, tiny, "amp-fp16", loss_scale=s) for s in (1.0, 2.0**20))
    ]
    assert errors[0] > 0.2
    assert errors[1] < 0.02


def test_blocks_forced_by_their_own_teacher_change_nothing(side):
    built = module_of(side, dtype=torch.float64)
    free = trace(built, X, 0, "fp64")
    forced = trace(built, X, 0, "fp64", teacher=free)
    assert max(g.rel_rms for g in gaps(free, forced)) < 1e-12


def test_a_forced_block_does_not_see_what_the_others_do(side, live):
    free = trace(module_of(side, dtype=torch.float64), X, 0, "fp64")

    def change(module):
        module.blocks[0].mlp.act = gelu_tanh

    other = resolve(live(change), live())[0]
    forced = trace(module_of(other, dtype=torch.float64), X, 0, "fp64", teacher=free)
    off = {g.key for g in gaps(free, forced) if g.rel_rms > 1e-12}
    assert {("tap", "blocks.0.mlp"), ("tap", "blocks.0"), ("tap-grad", "embed")} <= off
    assert all(name.startswith(("blocks.0.", "embed", "input")) or name == "blocks.0" for _, name in off)
    assert ("tap-grad", "blocks.0") not in off


def test_hooks_are_around_the_run(side):
    seen = []

    @contextmanager
    def hook(built):
        seen.append(built.host)
        yield
        seen.append("left")

    trace(module_of(side), X, 0, "fp32", hooks=(hook,), backward=False)
    assert seen == ["reference", "left"]


def test_without_a_backward_pass_there_are_no_gradients(side):
    t = trace(module_of(side), X, 0, "fp32", backward=False)
    assert not t.grads
    assert not t.tap_grads
    assert not t.output.requires_grad


def test_the_random_state_is_left_as_it_was(side):
    built = module_of(side)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    trace(built, X, 0, "fp32")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_plain_float64_run_is_made_once(live):
    pair = pair_of(*resolve(live(), live()))
    first = pair.run(pair.a, "coloured", "fp64", "probe")
    assert pair.run(pair.a, "coloured", "fp64", "probe") is first
    assert pair.runs == 1
    assert pair.run(pair.a, "coloured", "fp64", "given") is not first
    assert pair.runs == 2


def test_the_order_of_the_backward_pass():
    taps = ["embed", "blocks.0.attn", "blocks.0.mlp", "blocks.0", "norm", "pool", "head"]
    names = [
        "input", "embed.pos", "norm.weight", "blocks.0.attn.q.weight", "blocks.0.norm2.bias", "head.bias", *taps,
        "blocks.0.mlp.up.weight", "blocks.0.norm1.bias", "embed.patch.weight",
        "blocks.0.attn.q_norm.weight", "blocks.0.attn.out.bias", "blocks.0.ls1",
    ]  # fmt: skip
    assert backward_order(names, taps) == [
        "head", "head.bias", "pool", "norm", "norm.weight", "blocks.0", "blocks.0.mlp", "blocks.0.mlp.up.weight",
        "blocks.0.norm2.bias", "blocks.0.attn", "blocks.0.ls1", "blocks.0.attn.out.bias",
        "blocks.0.attn.q_norm.weight", "blocks.0.attn.q.weight", "blocks.0.norm1.bias", "embed", "embed.pos",
        "embed.patch.weight", "input",
    ]  # fmt: skip
