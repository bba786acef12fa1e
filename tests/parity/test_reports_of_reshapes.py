"""Public reports of attention that mixes heads, tokens and batch, of its scale, and of residuals behind the norm."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vitconv.parity.verify import verify

timm = pytest.importorskip("timm")


def small() -> nn.Module:
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=36, depth=2, num_heads=4, num_classes=5
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator) + ("norm" in name and name.endswith("weight")))
    return net.eval()


def heads_of(attn: Any, x: Tensor) -> tuple[Tensor, ...]:
    return attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def scaled(scale: Callable[[Any], float]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor, **_: Any) -> Tensor:
        q, k, v = heads_of(self, x)
        mixed = (q @ k.transpose(-2, -1) * scale(self)).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))

    return forward


def joined_by_reshape(self: Any, x: Tensor, **_: Any) -> Tensor:
    return self.proj(scaled_dot_product_attention(*heads_of(self, x)).reshape(x.shape))


def cut_by_view(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, _t, d = x.shape
    q, k, v = (p.reshape(b * self.num_heads, -1, d // self.num_heads) for p in self.qkv(x).chunk(3, -1))
    return self.proj(((q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v).reshape(x.shape))


def sequence_first(self: Any, x: Tensor, **_: Any) -> Tensor:
    t, b, d = x.shape
    q, k, v = (p.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for p in self.qkv(x).chunk(3, -1))
    return self.proj(scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).reshape(t, b, d))


def batch_and_heads_exchanged(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, t, d = x.shape
    mixed = scaled_dot_product_attention(*heads_of(self, x))
    return self.proj(mixed.reshape(self.num_heads, b, t, -1).permute(1, 2, 0, 3).reshape(b, t, d))


def across_heads(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in heads_of(self, x))
    return self.proj(scaled_dot_product_attention(q, k, v).reshape(x.shape))


def across_heads_turned(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in heads_of(self, x))
    return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


def cut_by_view_alone(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, t, _d = x.shape
    q, k, v = (p.reshape(b, self.num_heads, t, -1) for p in self.qkv(x).chunk(3, -1))
    return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def softmax_without_dim(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, v = heads_of(self, x)
    # What torch takes for the axis of four when it is given none.
    mixed = (q @ k.transpose(-2, -1) * self.scale).softmax(1) @ v
    return self.proj(mixed.transpose(1, 2).flatten(2))


def softmax_of_rows(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, t, _d = x.shape
    q, k, v = (p.flatten(0, 1) for p in heads_of(self, x))
    mixed = (torch.bmm(q, k.transpose(-2, -1)) * self.scale).softmax(0) @ v
    return self.proj(mixed.view(b, self.num_heads, t, -1).transpose(1, 2).flatten(2))


def keys_for_values(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, _v = heads_of(self, x)
    return self.proj(scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2))


def of_one_head(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, v = (p.unsqueeze(1) for p in self.qkv(x).chunk(3, -1))
    return self.proj(scaled_dot_product_attention(q, k, v).squeeze(1))


def behind_both(self: Any, x: Tensor, **_: Any) -> Tensor:
    x = self.norm1(x)
    x = x + self.attn(x)
    x = self.norm2(x)
    return x + self.mlp(x)


def behind_the_second(self: Any, x: Tensor, **_: Any) -> Tensor:
    x = self.norm2(x + self.attn(self.norm1(x)))
    return x + self.mlp(x)


def behind_the_first(self: Any, x: Tensor, **_: Any) -> Tensor:
    x = self.norm1(x)
    x = x + self.attn(x)
    return x + self.mlp(self.norm2(x))


def planted(part: str, forward: Callable[..., Tensor]) -> nn.Module:
    net = small()
    for block in net.blocks:
        module = block.get_submodule(part) if part else block
        module.forward = types.MethodType(forward, module)
    return net


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "forward", "cause"),
    [
        pytest.param("attn", joined_by_reshape, "heads-joined-by-view", id="transformer-from-scratch#6-Trans2Seg#4"),
        pytest.param("attn", cut_by_view, "heads-cut-by-view", id="FuxiCTR#30"),
        pytest.param("attn", sequence_first, "over-batch", id="OmDet#19"),
        pytest.param("attn", batch_and_heads_exchanged, "heads-joined-over-batch", id="Various-Positional-Encoding#1"),
        pytest.param("attn", across_heads, "over-heads", id="xformers#677"),
        pytest.param("attn", across_heads_turned, "over-heads-joined-by-view", id="xformers#1024"),
        pytest.param("attn", cut_by_view_alone, "heads-cut-by-view-alone", id="cut by view, joined rightly"),
        pytest.param("attn", softmax_without_dim, "softmax-over-heads", id="softmax without dim, four axes"),
        pytest.param("attn", softmax_of_rows, "softmax-over-batch", id="softmax without dim, three axes"),
        pytest.param("attn", keys_for_values, "qkv-reused-qkk", id="torchtune#21"),
        pytest.param("attn", of_one_head, "heads-one", id="one head"),
        pytest.param("attn", scaled(lambda a: 1 / a.scale), "scale-inverse", id="transformers#39043-perceiver-io#9"),
        pytest.param("attn", scaled(lambda a: a.num_heads**-0.5), "scale-heads", id="tt-metal#56789"),
        pytest.param("attn", scaled(lambda a: 36**-0.5), "scale-width", id="vit-pytorch#65"),
        pytest.param("", behind_both, "residual-from-norm", id="pytorch#61165"),
        pytest.param("", behind_the_second, "mlp-residual-from-norm", id="Compact-Transformers#25"),
        pytest.param("", behind_the_first, "attn-residual-from-norm", id="RiNALMo#9"),
    ],
)
def test_a_reshape_a_scale_or_a_residual_is_named(part: str, forward: Callable[..., Tensor], cause: str) -> None:
    result = verify(small(), planted(part, forward), precisions=(), inputs=("coloured",))
    assert result.verdict == "differs"
    assert result.cause.found == (cause,), result.reason
    assert result.cause.after < 1e-9


def test_examples_that_are_mixed_with_heads_are_seen_to_be() -> None:
    net = planted("attn", batch_and_heads_exchanged)
    result = verify(small(), net, precisions=(), inputs=("coloured",), skip=("why",))
    assert result.verdict == "differs"
    row = next(r for r in result.stage("sanity").rows if r.name == "B: batch of 1 and of 2")
    assert row.status == "fail" and "depends on the others in its batch" in row.detail


class Bent(torch.autograd.Function):
    """Values as they are, gradients weighted channel by channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.linspace(0.5, 1.5, g.shape[-1], dtype=g.dtype)


def bent_queries(self: Any, x: Tensor, **_: Any) -> Tensor:
    q, k, v = heads_of(self, x)
    return self.proj(scaled_dot_product_attention(Bent.apply(q), k, v).transpose(1, 2).flatten(2))


def bent_output(self: Any, x: Tensor, **_: Any) -> Tensor:
    return self.proj(Bent.apply(scaled_dot_product_attention(*heads_of(self, x)).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("forward", "first"),
    [pytest.param(bent_queries, "q.weight", id="queries"), pytest.param(bent_output, "q.weight", id="output")],
)
def test_a_gradient_that_is_wrong_in_one_attention_is_placed_there(forward: Any, first: str) -> None:
    net = small()
    attn: Any = net.get_submodule("blocks.1.attn")
    attn.forward = types.MethodType(forward, attn)
    result = verify(small(), net, precisions=(), inputs=("coloured",), skip=("why",))
    assert result.where.forward is None
    assert result.where.backward == f"blocks.1.attn.{first}"
    assert "alone, 1 of 2 blocks are off: blocks.1" in result.where.sentence


def test_the_scale_written_out_is_no_difference() -> None:
    net = planted("attn", scaled(lambda a: a.head_dim**-0.5))
    result = verify(small(), net, precisions=(), inputs=("coloured",), skip=("why",))
    assert result.verdict == "same", result.reason
