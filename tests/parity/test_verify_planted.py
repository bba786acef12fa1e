"""Each comparison path sees a planted difference, says where it is, and never calls it the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.parity.verify import verify
from vitconv.vit.activation import gelu_tanh
from vitconv.vit.attention import Attention
from vitconv.vit.block import Block
from vitconv.vit.mlp import Mlp
from vitconv.vit.model import Pool, ViT
from vitconv.vit.norm import Norm

QUICK: dict[str, Any] = {"precisions": ["fp64"], "skip": ["why"], "inputs": ["coloured"]}


class SwappedQueries(Attention):
    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.k, self.q, self.v))
        return self.out(((self.scale * q) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class DetachedKeys(Attention):
    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        logits = (self.scale * q) @ k.detach().transpose(-2, -1)
        return self.out(logits.softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 1.1 * g


class QueryGradientTimes11(Attention):
    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        q, k, v = self._split(_Scaled.apply(self.q(queries))), self._split(self.k(others)), self._split(self.v(others))
        return self.out(((self.scale * q) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class _TanhSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad(gelu_tanh(y), y, g)[0]


def tanh_slope(x: Tensor) -> Tensor:
    return _TanhSlope.apply(x)


class Sick(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.where(y == y.amax(), torch.nan, y)


class SickBackward(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        # sqrt has no slope at zero: 0 times Inf.
        return y + 0 * (y - y.detach()).abs().sqrt()


class NoFinalNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x


class MeanOfAll(Pool):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class OtherWithoutGradients(ViT):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y = super().forward(*args, **kwargs)
        return y if torch.is_grad_enabled() else y * (1 + 1e-6)


class MeanOfBatch(ViT):
    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(images - images.mean(0, keepdim=True) * 1e-3, *args, **kwargs)


def put(path: str, kind: type) -> Any:
    def change(module: Any) -> None:
        (module.get_submodule(path) if path else module).__class__ = kind

    return change


def act(layer: int, f: Any) -> Any:
    def change(module: Any) -> None:
        module.blocks[layer].mlp.act = f

    return change


def eps(path: str, value: float) -> Any:
    def change(module: Any) -> None:
        module.get_submodule(path).eps = value

    return change


def raw_kv(module: Any) -> None:
    for block in module.blocks:
        block.raw_kv = True


FORWARD = {
    "tanh GELU in block 1": (act(1, gelu_tanh), "blocks.1.mlp", [1], True),
    "tanh GELU everywhere": (lambda m: [act(i, gelu_tanh)(m) for i in range(2)], "blocks.0.mlp", [0, 1], False),
    "queries and keys swapped": (put("blocks.1.attn", SwappedQueries), "blocks.1.attn", [1], True),
    "K/V not normalised": (raw_kv, "blocks.0.attn", [0, 1], False),
    "eps 1e-5 of one norm": (eps("blocks.0.norm2", 1e-5), "blocks.0.mlp", [0], True),
    "eps 1e-12 of the final norm": (eps("norm", 1e-12), "norm", [], None),
    "no final norm": (put("norm", NoFinalNorm), "norm", [], None),
    "mean pooling": (put("pool", MeanOfAll), "pool", [], None),
}


@pytest.mark.parametrize("name", FORWARD)
def test_another_function_is_seen_and_located(name, live):
    change, site, blocks, local = FORWARD[name]
    result = verify(live(), live(change), **QUICK)
    assert (result.verdict, result.exit_code) == ("differs", 1), result.reason
    assert result.where.forward == site
    assert list(result.where.off_blocks) == blocks
    assert result.where.local is local
    # Both sets of weights see it: those given and the probe's.
    assert [r.status for r in result.stage("function").rows] == ["fail", "fail"]
    # The weights are the same, and said to be.
    assert result.stage("accounting").status != "fail"


BACKWARD = {
    "keys detached": (put("blocks.1.attn", DetachedKeys), [1]),
    "gradient of the queries times 1.1": (put("blocks.0.attn", QueryGradientTimes11), [0]),
    "slope of the tanh GELU": (act(1, tanh_slope), [1]),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_a_wrong_backward_pass_under_a_right_forward_pass_is_seen(name, live):
    change, blocks = BACKWARD[name]
    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    assert "forward agrees, backward does not" in result.stage("function").rows[0].detail
    assert result.where.forward is None
    assert result.where.backward is not None
    assert result.where.backward.startswith(f"blocks.{blocks[0]}.")
    assert list(result.where.off_blocks) == blocks
    assert result.where.local is True


def test_nan_of_the_other_side_fails_at_its_first_site(live):
    result = verify(live(), live(put("blocks.1.mlp", Sick)), precisions=["fp32"], skip=["why"], inputs=["coloured"])
    assert result.verdict == "differs"
    alive = next(r for r in result.stage("sanity").rows if r.name == "B: probe weights, alive")
    assert alive.detail == "NaN or Inf, first at blocks.1.mlp"
    assert "NaN or Inf in B" in result.reason
    finite = next(r for r in result.stage("numerics-fp32").rows if r.name == "B: forward finite")
    assert finite.values["site"] == "blocks.1.mlp"


def test_nan_of_the_baseline_leaves_all_open(live):
    result = verify(live(put("blocks.1.mlp", Sick)), live(), **QUICK)
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    # The same on both sides is no agreement.
    result = verify(live(put("blocks.1.mlp", Sick)), live(put("blocks.1.mlp", Sick)), **QUICK)
    assert result.verdict == "undecided"


def test_nan_in_gradients_alone_is_told_from_nan_in_the_forward_pass(live):
    result = verify(
        live(), live(put("blocks.1.mlp", SickBackward)), precisions=["fp32"], skip=["why"], inputs=["coloured"]
    )
    assert result.verdict == "differs"
    names = {r.name for r in result.stage("numerics-fp32").rows if r.status == "fail"}
    assert "B: gradients finite" in names
    assert "B: forward finite" not in names


def test_another_answer_without_gradients_is_seen(live):
    result = verify(live(), live(put("", OtherWithoutGradients)), **QUICK)
    assert result.verdict == "differs"
    assert result.reason.startswith("B: without gradients")


def test_an_image_that_depends_on_the_others_of_its_batch_is_seen(live):
    result = verify(live(), live(put("", MeanOfBatch)), **QUICK)
    assert result.verdict == "differs"
    row = next(r for r in result.stage("sanity").rows if r.name == "B: batch of 1 and of 2")
    assert row.status == "fail"


def test_other_weights_are_told_apart_from_another_function(live, weights):
    other = {**weights, "blocks.1.mlp.up.bias": weights["blocks.1.mlp.up.bias"] + 1e-3}
    result = verify(live(), live(given=other), **QUICK)
    assert result.verdict == "differs"
    assert result.reason.startswith("with the same weights they compute the same function, but same weights: 40 of 41")
    assert [r.name for r in result.stage("accounting").failures] == ["same weights", "weight blocks.1.mlp.up.bias"]
    assert [r.status for r in result.stage("function").rows] == ["ok", "fail"]


def test_a_key_bias_that_no_run_can_see_is_seen_by_accounting(live, weights):
    other = {**weights, "blocks.0.attn.k.bias": weights["blocks.0.attn.k.bias"] + 1}
    result = verify(live(), live(given=other), **QUICK)
    assert [r.status for r in result.stage("function").rows] == ["ok", "ok"]
    assert result.verdict == "differs"
    assert "blocks.0.attn.k.bias" in [r.name.removeprefix("weight ") for r in result.stage("accounting").failures]
    # Accounting left out: nothing speaks against it, and it is not called the same.
    result = verify(live(), live(given=other), **{**QUICK, "skip": ["why", "accounting"]})
    assert (result.verdict, result.exit_code) == ("undecided", 3)


def test_a_key_bias_on_one_side_only_is_a_difference(live, weights):
    without = {n: t for n, t in weights.items() if not n.endswith("attn.k.bias")}
    result = verify(live(), live(given=without), **QUICK)
    assert result.verdict == "differs"
    row = next(r for r in result.stage("accounting").failures if r.name == "only in A")
    assert row.detail.startswith("blocks.{0..1}.attn.k.bias")


class HalfResidual(Block):
    """Keep the stream in the low precision under autocast, as some implementations do."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else y


class HalfNorm(Norm):
    """Normalise in the low precision under autocast: statistics and all."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled("cuda"):
            return super().forward(x)
        low = torch.get_autocast_dtype("cuda")
        with torch.autocast("cuda", enabled=False):
            x = x.to(low)
            centred = x - x.mean(-1, keepdim=True)
            y = centred / (centred * centred).mean(-1, keepdim=True).add(self.eps).sqrt()
            return y * self.weight.to(low) + self.bias.to(low)


def everywhere(kind: type, of: type) -> Any:
    def change(module: Any) -> None:
        for m in module.modules():
            if type(m) is of:
                m.__class__ = kind

    return change


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
@pytest.mark.parametrize(("kind", "of"), [(HalfResidual, Block), (HalfNorm, Norm)], ids=["stream", "norms"])
@pytest.mark.filterwarnings("ignore:User provided device_type")
def test_precision_lost_under_autocast_alone_is_seen(kind, of, precision, live):
    rules: dict[str, Any] = {
        "precisions": [precision],
        "skip": ["why", "where"],
        "profile": "strict",
        "inputs": ["coloured"],
    }
    # The loss of each block adds up; in a shallow network it is little more than what correct code varies by.
    deep = live_deep(live, 12)
    result = verify(deep, live_deep(live, 12, everywhere(kind, of)), **rules)
    assert result.stage("function").status == "ok"
    assert result.verdict == "differs"
    assert "the same function in float64" in result.reason
    assert verify(deep, live_deep(live, 12), **rules).verdict == "same"


def live_deep(live: Any, depth: int, change: Any = None) -> Any:
    from vitconv.parity.probe import probe_weights

    block = {n: tuple(t.shape) for n, t in live().state_dict().items() if n.startswith("blocks.0.")}
    rest = {n: tuple(t.shape) for n, t in live().state_dict().items() if not n.startswith("blocks.")}
    shapes = {**rest, **{n.replace("blocks.0.", f"blocks.{i}."): s for i in range(depth) for n, s in block.items()}}
    return live(change, probe_weights(shapes, 3))
