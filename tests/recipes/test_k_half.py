"""Public reports on half precision (K): each by its id with its stated outcome, and one more input of the kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import rand_t, save
from torch import Tensor, nn
from torch.nn import functional

from vitconv.checks.base.check import Finding
from vitconv.checks.base.context import Context
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import Outcome, run_one
from vitconv.checks.base.scaler import judge
from vitconv.checks.base.target import Wanted, context_of
from vitconv.registry import CHECKS, load

FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "norm_placement=pre", "pooling=token")
State = dict[str, Tensor]


def network(tmp_path: Path, change: Callable[[State], Any] = lambda _: None, **plan: Any) -> Context:
    """Return a context of rand(T), changed, from a file."""
    state = rand_t()
    change(state)
    path = save(tmp_path / "t.safetensors", state)
    sets = (*FACTS, "kv_normalised=true", "norm_kind=layernorm", "attention=softmax")
    return context_of(path, Wanted(sets, plan=Plan(batch=2, **plan)))


def looked(name: str, context: Context, **limits: float) -> Outcome:
    return run_one(context, load(CHECKS, name), limits)


def times(key: str, factor: float) -> Callable[[State], Any]:
    return lambda state: state[key].mul_(factor)


@pytest.mark.parametrize(
    ("key", "factor", "module"),
    [
        pytest.param("blocks.1.mlp.fc2.weight", 300.0, "blocks.1", id="K01-fc2-of-block-1"),
        pytest.param("blocks.0.mlp.fc2.weight", 300.0, "blocks.0", id="K17-fc2-of-block-0"),
        pytest.param("blocks.0.attn.proj.weight", 3e4, "blocks.0", id="K01-own-output-projection"),
    ],
)
def test_the_first_block_that_grows_out_of_range_is_named(key: str, factor: float, module: str, tmp_path: Path) -> None:
    assert first_named(network(tmp_path)) is None
    named = first_named(network(tmp_path, times(key, factor)))
    assert named is not None
    assert module.startswith(named.where[0]), named.text
    assert "bfloat16" in named.advice


def first_named(context: Context) -> Finding | None:
    """Return the first finding on the size of the stream that warns or fails."""
    return next((f for f in looked("signals", context).findings if f.level in ("warn", "error")), None)


def test_k17_the_operator_and_its_value_are_told_and_nothing_is_clamped(tmp_path: Path) -> None:
    found = looked("fp16-headroom", network(tmp_path, times("blocks.0.mlp.fc2.weight", 3e4)))
    first = found.findings[0]
    assert first.level == "error"
    assert first.figures["module"] == "blocks.0.mlp.down"
    assert "65504" in first.text or "infinite" in first.text
    assert "bfloat16" in found.check.advice


@pytest.mark.parametrize(
    "key", [pytest.param("blocks.0.mlp.fc1.weight", id="K02"), pytest.param("patch_embed.proj.weight", id="K02-own")]
)
def test_an_overflow_in_float32_is_not_blamed_on_half_precision(key: str, tmp_path: Path) -> None:
    found = looked("signals", network(tmp_path, lambda s: s[key].fill_(3e38)))
    assert found.level == "error"
    assert "float32" in found.findings[0].text


class ByHand(nn.Module):
    """A linear layer on pixels, a norm written by hand in float16, and a head."""

    def __init__(self, kind: str, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head, self.kind, self.size = nn.Linear(192, 64), nn.Linear(64, 10), kind, size

    def forward(self, images: Tensor) -> Tensor:
        x = (self.size * self.stem(images.flatten(1))).half()
        if self.kind == "variance":
            centred = x - x.mean(-1, keepdim=True)
            y = centred / ((centred * centred).sum(-1, keepdim=True) / 64 + 1e-3).sqrt()
        elif self.kind == "rms":
            y = x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 64 + 1e-3)
        else:
            y = functional.layer_norm(x, (64,))
        return self.head(y.float())


@pytest.mark.parametrize(
    ("kind", "size", "dead"),
    [
        pytest.param("variance", 400.0, True, id="K04-variance"),
        pytest.param("rms", 400.0, True, id="K04-own-rms"),
        pytest.param("variance", 1.0, False, id="K04-small-values"),
        pytest.param("fused", 400.0, False, id="K04-fused"),
    ],
)
def test_a_constant_output_is_found_though_nothing_is_nan(kind: str, size: float, dead: bool) -> None:
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    context = context_of(ByHand(kind, size), images=images)
    assert bool(context.signals.output.isfinite().all())
    start = looked("loss-at-init", context)
    assert any("same logits" in f.text and f.level == "error" for f in start.findings) == dead
    assert (looked("fp16-headroom", context).level == "error") == dead


class Eager(nn.Module):
    """Attention over tokens [b t 32], 4 heads of width 8; `scaled_first`: queries are divided before the product."""

    def __init__(self, size: float, scaled_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head, self.first = nn.Linear(32, 96, bias=False), nn.Linear(32, 10), scaled_first
        with torch.no_grad():
            self.qkv.weight.copy_(torch.randn(96, 32) * size / 32**0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in self.qkv(tokens).chunk(3, -1))
        logits = (q / 64) @ k.transpose(-2, -1) if self.first else q @ k.transpose(-2, -1) / 64
        return self.head((logits.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize(
    ("size", "first", "level"),
    [
        pytest.param(60.0, False, "error", id="K05"),
        pytest.param(30.0, False, "warn", id="K05-own-smaller"),
        pytest.param(60.0, True, "ok", id="K05-divided-first"),
    ],
)
def test_a_product_of_queries_and_keys_that_nears_the_range(size: float, first: bool, level: str) -> None:
    tokens = torch.randn(2, 17, 32, generator=torch.Generator().manual_seed(0))
    found = looked("fp16-headroom", context_of(Eager(size, first), images=tokens)).findings[0]
    assert found.level == level, found.text
    if level != "ok":
        assert found.figures["op"] == "bmm"


def halved(context: Context, keep: tuple[str, ...] = ()) -> Context:
    assert context.weights is not None
    weights = {n: t if any(k in n for k in keep) else t.half() for n, t in context.weights.items()}
    return dataclasses.replace(context, weights=weights)


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        pytest.param((), "parameters are float16", id="K08"),
        pytest.param(("norm",), "norms float32", id="K10"),
        pytest.param(("norm", "embed"), "embeddings float32", id="K10-own"),
    ],
)
def test_parameters_in_float16_under_adam(keep: tuple[str, ...], says: str) -> None:
    sets = ("depth=2", "dim=32", "heads=4", "image=16", "patch=4", "classes=5")
    context = context_of("vit_tiny", Wanted(sets))
    found = [f for f in looked("facts", halved(context, keep)).findings if f.level == "error"]
    assert len(found) == 1
    assert "eps 1e-8 is 0 in float16" in found[0].text
    assert says in found[0].text
    assert [f for f in looked("facts", context).findings if f.level == "error"] == []


def test_k08_adam_in_float16_by_the_numbers() -> None:
    for grad, check in ((1e-5, torch.isinf), (0.0, torch.isnan)):
        p = torch.zeros(1, dtype=torch.float16)
        m, v = torch.tensor([0.1 * grad]).half(), torch.tensor([0.001 * grad**2]).half()
        step = (m / 0.1) / ((v / 0.001).sqrt() + torch.tensor(1e-8).half())
        assert bool(check(p - 1e-3 * step))


@pytest.mark.parametrize(
    ("eps", "level"),
    [pytest.param("1e-12", "error", id="K11"), pytest.param("1e-8", "error", id="K11-own"), ("1e-5", "warn"),
     ("2e-5", "ok")],
)  # fmt: skip
def test_an_eps_that_float16_cannot_hold(eps: str, level: str) -> None:
    sets = ("depth=2", "dim=32", "heads=4", "image=16", "patch=4", "classes=5", f"norm_eps={eps}")
    context = halved(context_of("vit_tiny", Wanted((*sets, f"final_norm_eps={eps}"))))
    assert looked("norm-eps", context, loss=1.0).level == level


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        pytest.param(["forward"] * 30, "forward", id="K13-forward-nan"),
        pytest.param(["overflow"] * 6 + ["clean"] * 60, "settling", id="K13-large-gradients"),
        pytest.param(["clean"] * 25 + ["forward"] + ["clean"] * 5, "forward", id="K13-own-once"),
        pytest.param(["clean"] * 70 + ["overflow"] + ["clean"] * 29, "isolated", id="K14"),
        pytest.param((["clean"] * 40 + ["overflow"]) * 3, "isolated", id="K14-own-three"),
        pytest.param(["clean"] * 40 + ["overflow"] * 12, "collapse", id="K14-a-row"),
    ],
)
def test_a_forward_pass_that_is_lost_is_told_from_a_scale(steps: Any, verdict: str) -> None:
    course = judge(steps)
    assert course.verdict == verdict


def test_k13_in_a_training(tmp_path: Path) -> None:
    def broken(state: State) -> None:
        state["blocks.0.mlp.fc2.weight"][0, 0] = float("nan")

    found = looked("loss-scale", network(tmp_path, broken), steps=3)
    assert found.findings[0].figures["verdict"] == "forward"
    assert "no matter of the scale" in found.findings[0].text


class Masked(nn.Module):
    """Attention over tokens whose mask is added: the lowest float or minus infinity, on a whole column or row."""

    def __init__(self, hidden: float, rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head, self.hidden, self.rows = nn.Linear(32, 96), nn.Linear(32, 10), hidden, rows

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).chunk(3, -1)
        mask = torch.zeros(tokens.shape[1], tokens.shape[1])
        mask[(slice(None), -2) if not self.rows else (-2, slice(None))] = self.hidden
        return self.head(((q @ k.transpose(-2, -1) / 32**0.5 + mask).softmax(-1) @ v).mean(1))


@pytest.mark.parametrize(
    ("hidden", "rows", "level"),
    [
        pytest.param(torch.finfo(torch.float32).min, False, "ok", id="K16-columns"),
        pytest.param(float("-inf"), True, "error", id="K16-own-rows"),
        pytest.param(torch.finfo(torch.float32).min, True, "warn", id="K16-rows-of-the-lowest"),
    ],
)
def test_masks_forward_and_backward(hidden: float, rows: bool, level: str) -> None:
    tokens = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    context = context_of(Masked(hidden, rows), images=tokens)
    found = looked("masked-rows", context)
    assert found.level == level
    finite = all(bool(g.isfinite().all()) for g in context.signals.grads.values())
    assert finite == (level != "error")
