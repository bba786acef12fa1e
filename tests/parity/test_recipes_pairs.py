"""Recipes I and K that need two networks, by name: kernels, batches, lists of sizes, untrained weights, masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.parity.verify import verify
from vitconv.vit.attention import Attention
from vitconv.vit.model import ViT
from vitconv.vit.norm import Norm

QUICK: dict[str, Any] = {"precisions": ["fp64"], "skip": ["why"], "inputs": ["coloured"]}


def everywhere(kind: type, of: type) -> Any:
    def change(module: Any) -> None:
        for m in module.modules():
            if type(m) is of:
                m.__class__ = kind

    return change


class Fused(Attention):
    """The fused kernel of torch, in place of the written-out attention."""

    def forward(self, queries: Tensor, others: Tensor, *_: Any) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(2))


class HalfLogits(Attention):
    """Logits rounded to eight bits, which no kernel that is right does."""

    def forward(self, queries: Tensor, others: Tensor, *_: Any) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        logits = (self.scale * q) @ k.transpose(-2, -1)
        if logits.dtype != torch.float64:
            logits = logits.bfloat16().to(logits.dtype)
        return self.out((logits.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16", "fp16", "bf16"])
def test_i01_two_kernels_err_alike_against_float64(precision, live):
    rules = {"precisions": [precision], "skip": ["why", "where"]}
    result = verify(live(), live(everywhere(Fused, Attention)), **rules)
    assert result.verdict == "same", result.reason
    row = next(r for r in result.stage(f"numerics-{precision}").rows if r.name == "output")
    # Both against float64, not against each other; the k that is allowed is in the row.
    assert {"error_a", "error_b", "ratio", "limit"} <= set(row.values)
    assert result.stage(f"numerics-{precision}").data["spread"], "k is calibrated by the baseline's own variants"


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_i01_a_kernel_that_rounds_more_errs_more(precision, live):
    rules = {"precisions": [precision], "skip": ["why", "where"]}
    result = verify(live(), live(everywhere(HalfLogits, Attention)), **rules)
    assert result.verdict == "differs"
    assert result.stage("function").status == "ok"


def test_i08_another_sum_per_batch_is_no_difference_and_its_size_is_told(live):
    result = verify(live(), live(), **{**QUICK, "precisions": ["fp32"]})
    assert result.verdict == "same"
    for side in "AB":
        row = next(r for r in result.stage("sanity").rows if r.name == f"{side}: batch of 1 and of 2")
        assert row.status == "ok" and row.values["gap"] < 1e-12
    notes = result.stage("numerics-fp32").notes
    assert {"batch reversed", "images alone"} <= {n for n in ("batch reversed", "images alone") if n in str(notes)}


@pytest.mark.parametrize("count", [3, 8])
def test_i07_i08_batches_of_1_and_of_more(count, live):
    """An image that sees the mean of its batch: batches of 2, as the probe has them, tell; so would others."""

    class SeesTheBatch(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (1e-6 * x.mean(0, keepdim=True) if len(x) > 1 else 0)

    one, other = live(), live(everywhere(SeesTheBatch, Norm))
    images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    apart = other.double()(images)[0] - other(images[:1])[0]
    assert float(apart.detach().norm()) > 0
    result = verify(one, live(everywhere(SeesTheBatch, Norm)), **QUICK)
    assert result.verdict == "differs"


class Lists(ViT):
    """A path for lists of images that puts all tokens into one sequence, and forgets the bounds between them."""

    mixes = False

    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.mixes and len(images) > 1:
            x = self.embed(images)
            length = x.shape[1]
            x = x.flatten(0, 1).unsqueeze(0)
            for block in self.blocks:
                x = block(x)
            return self.head(self.pool(self.norm(x.unflatten(1, (-1, length)).squeeze(0))))
        return torch.cat([super(Lists, self).forward(one.unsqueeze(0)) for one in images])


class Mixing(Lists):
    mixes = True


@pytest.mark.parametrize(("kind", "verdict"), [(Lists, "same"), (Mixing, "differs")], ids=["apart", "mixed"])
def test_i16_images_one_by_one_and_in_a_list(kind, verdict, live):
    result = verify(live(), live(everywhere(kind, ViT)), **QUICK)
    assert result.verdict == verdict, result.reason
    if kind is Lists:
        # Its modules run once per image, so no value of a batch has their name: the output and all gradients are left.
        assert any("run several times in one pass" in n for n in result.stage("function").notes)
        assert {"output", "grad"} <= {g.kind for g in result.stage("function").data["gaps"]}


@pytest.mark.parametrize("std", [0.02, 0.03])
def test_i17_weights_that_were_never_trained_are_noticed(std, weights):
    from vitconv.inits.audit.audit import audit_tensors
    from vitconv.layout.semantics import Semantics

    generator = torch.Generator().manual_seed(0)
    fresh = {}
    for name, t in weights.items():
        if name.endswith("bias") or "norm" in name:
            fresh[name] = torch.full(t.shape, float("norm" in name and name.endswith("weight")))
        else:
            fresh[name] = nn.init.trunc_normal_(torch.empty(t.shape), std=std, generator=generator)
    facts = Semantics(heads=4, norm_placement="pre")
    assert "never trained" in str(audit_tensors(fresh, facts).training.state) or std != 0.02
    # Another width of the draw is no scheme's: it is not called trained.
    assert audit_tensors(fresh, facts).training.state in ("never trained", "undecided")
    assert audit_tensors({n: t.float() for n, t in weights.items()}, facts).training.state != "never trained"


def test_k02_an_overflow_in_float32_is_seen_without_half_precision(live, weights):
    huge = {**weights, "blocks.0.mlp.up.weight": weights["blocks.0.mlp.up.weight"] * 1e20}
    huge["blocks.0.mlp.down.weight"] = weights["blocks.0.mlp.down.weight"] * 1e20
    result = verify(live(given=huge), live(given=huge), precisions=["fp32"], skip=["why", "where"], inputs=["coloured"])
    assert result.verdict == "undecided"
    row = next(r for r in result.stage("numerics-fp32").failures if r.name == "A: forward finite")
    assert row.values["site"] == "blocks.0.mlp"
    assert "numerics-amp" not in " ".join(s.key for s in result.stages)


class EagerUnscaled(Attention):
    """The product of queries and keys ahead of the scale: it overflows where the fused kernel does not."""

    def forward(self, queries: Tensor, others: Tensor, *_: Any) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        logits = (q @ k.transpose(-2, -1)) * self.scale
        return self.out((logits.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("size", "survives"), [(60.0, False), (1.0, True)])
def test_k05_an_eager_product_that_overflows_beside_a_fused_one(size, survives, live, weights):
    loud = dict(weights)
    for i in range(2):
        for part in "qk":
            loud[f"blocks.{i}.attn.{part}.weight"] = weights[f"blocks.{i}.attn.{part}.weight"] * size
    rules = {"precisions": ["fp16"], "skip": ["why", "where", "sanity"], "inputs": ["coloured"]}
    a, b = live(everywhere(Fused, Attention), loud), live(everywhere(EagerUnscaled, Attention), loud)
    result = verify(a, b, **rules)
    sick = [r for r in result.stage("numerics-fp16").failures if r.name == "B: forward finite"]
    assert bool(sick) is not survives
    if sick:
        assert sick[0].values["site"].startswith("blocks.0")
        assert not [r for r in result.stage("numerics-fp16").failures if r.name == "A: forward finite"]


class Masked(Attention):
    """Columns hidden by the lowest number, which in half precision is not finite any more when something is added."""

    def forward(self, queries: Tensor, others: Tensor, *_: Any) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        hidden = torch.zeros(k.shape[-2], dtype=torch.bool)
        hidden[-3:] = True
        logits = (self.scale * q) @ k.transpose(-2, -1)
        return self.out((self.softmax(logits, hidden) @ v).transpose(1, 2).flatten(2))

    def softmax(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, float("-inf")).softmax(-1).to(logits.dtype)


class MaskedByLowest(Masked):
    def softmax(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(-1).to(logits.dtype)


class MaskedWrongly(Masked):
    """Right forward; backward the hidden columns get a gradient that is NaN: 0 times infinity."""

    def softmax(self, logits: Tensor, hidden: Tensor) -> Tensor:
        p = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.where(p > 0, (p.log()).exp(), torch.zeros_like(p)).to(logits.dtype)


@pytest.mark.parametrize(("kind", "verdict"), [(MaskedByLowest, "same"), (MaskedWrongly, "differs")])
def test_k16_columns_that_are_masked_forward_and_backward(kind, verdict, live):
    result = verify(live(everywhere(Masked, Attention)), live(everywhere(kind, Attention)), **QUICK)
    assert result.verdict == verdict, result.reason
    if verdict == "differs":
        row = next(r for r in result.stage("sanity").rows if r.name == "B: probe weights, alive")
        assert "gradients are NaN or Inf" in row.detail
