"""Recipes of sections E, G, I and K: what users met, and what the verifier says of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vitconv.parity.tf32 import round_tf32
from vitconv.parity.verify import verify
from vitconv.vit.activation import gelu_tanh, quick_gelu
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


@pytest.mark.parametrize(("act", "size"), [(quick_gelu, 1e-3), (gelu_tanh, 1e-5)], ids=["quick", "tanh"])
def test_e01_e05_another_activation_is_measured(act, size, live):
    def change(module: Any) -> None:
        for block in module.blocks:
            block.mlp.act = act

    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    assert result.where.forward == "blocks.0.mlp"
    assert result.where.local is False
    assert result.stage("function").rows[0].values["output"] > size


@pytest.mark.parametrize("eps", [1e-5, 1e-12, 1e-7])
def test_e07_e08_another_eps_is_said_before_anything_runs_and_seen_after(eps, write):
    result = verify(write("a"), write("b", norm_eps=eps), **QUICK)
    assert result.verdict == "differs"
    assert f"1e-06 here, {eps} there" in {r.detail for r in result.stage("accounting").rows}
    assert result.where.local is False


class Unapplied(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("path", "site"), [("norm", "norm"), ("blocks.1.norm1", "blocks.1.attn"), ("blocks.0.norm2", "blocks.0.mlp")]
)
def test_e10_a_norm_that_is_loaded_and_never_applied(path, site, live):
    def change(module: Any) -> None:
        module.get_submodule(path).__class__ = Unapplied

    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    assert result.where.forward == site
    row = next(r for r in result.stage("sanity").rows if r.name == "B: parameters exercised")
    assert f"{path}.{{weight,bias}}" in row.detail or (f"{path}.weight" in row.detail and f"{path}.bias" in row.detail)


@pytest.mark.parametrize("pooling", ["avg", "avg-prefix"])
def test_e14_another_pooling(pooling, write):
    result = verify(write("a", pooling="avg"), write("b", pooling=pooling), **QUICK)
    assert result.verdict == ("same" if pooling == "avg" else "differs")
    if pooling != "avg":
        assert result.where.forward == "pool"
        assert "the forward pass parts first at pool" in result.where.sentence


class FreshProjection(ViT):
    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.extra = torch.randn(5)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs) + self.extra


@pytest.mark.parametrize(("side", "verdict"), [("A", "undecided"), ("B", "differs")])
def test_g05_a_network_that_is_another_each_time_it_is_built(side, verdict, live):
    """A random tensor outside of the state dict: the second copy of the same network answers otherwise."""

    def change(module: Any) -> None:
        module.__class__ = FreshProjection
        module.extra = torch.randn(5)

    pair = (live(change), live()) if side == "A" else (live(), live(change))
    result = verify(*pair, **{**QUICK, "skip": ["why", "where", "function"]})
    assert result.verdict == verdict
    assert result.reason.startswith(f"{side}: repeats")


@pytest.mark.parametrize(
    ("key", "site"),
    [
        ("blocks.1.mlp.up.weight", "blocks.1.mlp"),
        ("blocks.0.attn.v.weight", "blocks.0.attn"),
        ("embed.patch.weight", "embed"),
        ("head.bias", "head"),
    ],
)
def test_g13_one_weight_off_names_the_first_block(key, site, live, weights):
    other = {n: t.clone() for n, t in weights.items()}
    other[key].view(-1)[3] += 1e-3
    result = verify(live(), live(given=other), **QUICK)
    assert result.verdict == "differs"
    bad = result.stage("function").failures[0]
    assert f"first tap {site}" in bad.detail
    assert {"max_abs", "max_rel", "min_tolerance"} <= set(bad.values)


class TransposedLayout(Attention):
    """[b t h e] fed to a formula for [b h t e], with as many tokens as heads, so that no shape complains."""

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)) if x.shape[1] == self.heads else super()._split(x)

    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        q, k, v = (self._split(f(queries)) for f in (self.q, self.k, self.v))
        logits = (self.scale * q) @ k.transpose(-2, -1)
        y = logits.softmax(-1) @ v
        return self.out((y if q.shape[1] == q.shape[2] else y.transpose(1, 2)).flatten(2))


def test_i02_a_mixed_up_layout_where_all_sizes_are_equal(live, weights):
    bare = {n: t for n, t in weights.items() if not n.startswith(("embed.pos", "embed.cls"))}
    bare["embed.pos"] = weights["embed.pos"][:4]
    bare["embed.patch.weight"] = torch.randn(32, 3, 8, 8, dtype=torch.float64) / 8
    facts = {"grid": (2, 2), "pooling": "avg"}
    result = verify(live(given=bare, **facts), live(everywhere(TransposedLayout, Attention), bare, **facts), **QUICK)
    assert result.verdict == "differs"
    assert result.where.forward == "blocks.0.attn"


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor) -> Tensor:
        return q.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 1.1 * g


class WrongBackward(Attention):
    def _split(self, x: Tensor) -> Tensor:
        return super()._split(_Wrong.apply(x))


def test_i04_a_right_forward_pass_with_a_wrong_backward_pass(live):
    result = verify(live(), live(everywhere(WrongBackward, Attention)), **QUICK)
    assert result.verdict == "differs"
    assert result.where.forward is None
    assert result.where.backward is not None
    assert result.stage("function").rows[0].values["output"] == 0


class Tf32Attention(Attention):
    """A card with TF32 on: operands of float32 products have ten bits."""

    def _split(self, x: Tensor) -> Tensor:
        return super()._split(round_tf32(x) if x.dtype == torch.float32 else x)


def test_i05_tf32_is_called_tf32_and_not_other_weights(live):
    result = verify(live(), live(everywhere(Tf32Attention, Attention)), precisions=["fp32"], skip=["why"])
    assert result.verdict == "differs"
    assert result.stage("function").status == "ok"
    assert any("TF32-like" in note and note.startswith("B") for note in result.stage("numerics-fp32").notes)
    assert "the same function in float64" in result.reason


class BatchMean(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-4 * x.mean(0, keepdim=True)


def test_i07_features_that_change_with_the_batch(live):
    result = verify(live(), live(everywhere(BatchMean, Norm)), **QUICK)
    row = next(r for r in result.stage("sanity").rows if r.name == "B: batch of 1 and of 2")
    assert row.status == "fail"
    assert result.verdict == "differs"


class NoisyLogit(ViT):
    noise = 2e-6

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y = super().forward(*args, **kwargs)
        kick = torch.zeros_like(y)
        kick[..., 0] = self.noise if y.dtype == torch.float32 else 0.0
        return y + kick


class NoisierLogit(NoisyLogit):
    noise = 1e-3


@pytest.mark.parametrize(("kind", "verdict"), [(NoisyLogit, "same"), (NoisierLogit, "differs")], ids=["2e-6", "1e-3"])
def test_i10_one_logit_is_judged_by_the_floor_and_not_by_itself(kind, verdict, live, weights):
    # A head as large as the floor that the recipe has in mind: logits of about ten.
    big = {**weights, "head.weight": 4 * weights["head.weight"]}
    result = verify(live(given=big), live(everywhere(kind, ViT), big), precisions=["fp32"], skip=["why"])
    assert result.verdict == verdict, result.reason


class Masks(ViT):
    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(images * (torch.rand_like(images[:, :1]) > 0.25), *args, **kwargs)


class DropPath(Attention):
    """With its training flag hard-coded."""

    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        return torch.nn.functional.dropout1d(super().forward(queries, others), 0.5, training=True)


@pytest.mark.parametrize(
    ("change", "site"),
    [(everywhere(Masks, ViT), "ViT"), (everywhere(DropPath, Attention), "blocks.0.attn")],
    ids=["i11 random mask", "i13 drop path alive"],
)
def test_i11_i13_randomness_in_eval_is_found_and_named(change, site, live):
    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    row = next(r for r in result.stage("sanity").rows if r.name == "B: repeats")
    assert row.status == "fail"
    assert any(site in where or (site == "ViT" and where == "Masks") for where in row.values["random"])


class OwnPreprocessing(ViT):
    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406]).to(images)[:, None, None]
        return super().forward(images - mean, *args, **kwargs)


def test_i14_one_tensor_goes_into_both_and_preprocessing_is_a_fact_apart(write, live):
    """Mean and std in the files differ: said, and the networks are still the same."""
    a = write("a", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    b = write("b", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    result = verify(a, b, **QUICK)
    assert result.verdict == "same"
    assert {r.name for r in result.stage("accounting").rows if r.status == "warn"} == {"fact mean", "fact std"}
    # Inside the network it is another function, from the first value on.
    result = verify(live(), live(everywhere(OwnPreprocessing, ViT)), **QUICK)
    assert result.where.forward == "embed"


class OverflowingNorm(Norm):
    """A hand-written norm whose squares overflow in half precision: the output is constant, not NaN."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float16:
            return super().forward(x)
        x = (x - x.mean(-1, keepdim=True)) * 400
        variance = (x * x).clamp_min(6e4).mul(4).mean(-1, keepdim=True)
        return x / variance.sqrt()


def test_k04_an_output_that_collapses_in_half_precision(live):
    def change(module: Any) -> None:
        module.norm.__class__ = OverflowingNorm

    result = verify(live(), live(change), precisions=["fp16"], skip=["why", "where"], inputs=["coloured"])
    assert result.verdict == "differs"
    row = next(r for r in result.stage("numerics-fp16").failures if "collapsed" in r.name)
    assert (row.name, row.values["site"]) == ("B: not collapsed", "norm")


def test_k13_k17_the_first_value_past_half_precision_is_named(live, weights):
    huge = {**weights, "blocks.1.mlp.down.weight": weights["blocks.1.mlp.down.weight"] * 3e5}
    result = verify(
        live(given=huge), live(given=huge), precisions=["amp-fp16"], skip=["why", "where"], inputs=["coloured"]
    )
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    row = next(r for r in result.stage("numerics-amp-fp16").failures if r.name == "A: forward finite")
    assert row.values["site"] == "blocks.1.mlp"
