"""Faults of attention: how rows become q, k, v and heads, the scale, biases, what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault, per_block, swapped, zeroed
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.model import ViT

Regroup = Callable[["Tensor", int], "Tensor"]


def _order(order: str) -> OnWeights:
    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        new: Weights = {}
        for leaf in ("weight", "bias"):
            names = {part: f"{prefix}attn.{part}.{leaf}" for part in "qkv"}
            if all(name in w for name in names.values()):
                new |= {names[as_]: w[names[of]] for as_, of in zip("qkv", order, strict=True)}
        return new

    return per_block(change)


def _fused(regroup: Regroup, leaves: tuple[str, ...] = ("weight", "bias")) -> OnWeights:
    """Regroup the rows of q, k and v together, [3a ...]."""

    def change(w: Weights, prefix: str, config: ViTConfig) -> Weights:
        import torch

        new: Weights = {}
        for leaf in leaves:
            names = [f"{prefix}attn.{part}.{leaf}" for part in "qkv"]
            if all(name in w for name in names):
                rows = regroup(torch.cat([w[name] for name in names]), config.heads)
                new |= dict(zip(names, rows.chunk(3), strict=True))
        return new

    return per_block(change)


def _to_per_head(rows: Tensor, heads: int) -> Tensor:
    """Rows (3 h e) taken for (h 3 e)."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _from_per_head(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def _heads_last(rows: Tensor, heads: int) -> Tensor:
    """Rows (h e) of each part taken for (e h)."""
    return rows.unflatten(0, (3, -1, heads)).transpose(1, 2).flatten(0, 2)


def _heads_first(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(0, (3, heads, -1)).transpose(1, 2).flatten(0, 2)


def _out_columns(split: Callable[[int], tuple[int, int]]) -> OnWeights:
    def change(w: Weights, prefix: str, config: ViTConfig) -> Weights:
        name = f"{prefix}attn.out.weight"
        return {name: w[name].unflatten(1, split(config.heads)).transpose(1, 2).flatten(1)}

    return per_block(change)


def _transposed(*parts: str) -> OnWeights:
    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        return {(name := f"{prefix}attn.{part}.weight"): w[name].transpose(0, 1) for part in parts}

    return per_block(change)


def _heads(factor: Callable[[int], int]) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for attn in _attentions(model, layers):
            heads = max(1, factor(attn.heads))
            # A scale that is not the usual one was set by hand and stays.
            if abs(attn.scale - (attn.q.out_features // attn.heads) ** -0.5) < 1e-12:
                attn.scale = (attn.q.out_features // heads) ** -0.5
            attn.heads = heads

    return change


def _scale(new: Callable[[float, int, int], float]) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for attn in _attentions(model, layers):
            a = attn.q.out_features
            # Focused attention has another scale, of each channel.
            if isinstance(attn.scale, float):
                attn.scale = new(attn.scale, a // attn.heads, a)

    return change


def _causal(model: ViT, layers: Iterable[int]) -> None:
    for attn in _attentions(model, layers):
        attn.causal = True


def _raw_kv(model: ViT, layers: Iterable[int]) -> None:
    for i in layers:
        model.get_submodule(f"blocks.{i}").raw_kv = True  # type: ignore[assignment]


def _skip(*names: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import skip

        for attn in _attentions(model, layers):
            for name in names:
                skip(getattr(attn, name))

    return change


def _attentions(model: ViT, layers: Iterable[int]) -> Iterator:
    return (model.get_submodule(f"blocks.{i}.attn") for i in layers)


def _square(config: ViTConfig) -> bool:
    return config.attention_width == config.width


def _plain(config: ViTConfig) -> bool:
    return not config.qk_norm


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "attention", per_block=True, **more)  # type: ignore[arg-type]

    for order in ("".join(p) for p in permutations("qkv")):
        if order != "qkv":
            title = f"the rows of q, k, v are used as {', '.join(order)}"
            yield entry(f"qkv-order-{order}", title, weights=_order(order))
    called = {"q": "queries", "k": "keys", "v": "values"}
    for order in ("qkk", "qkq", "qqv", "qvv", "kkv", "vkv"):
        was, now = next((a, b) for a, b in zip("qkv", order, strict=True) if a != b)
        title = f"the {called[now]} are taken for the {called[was]} too"
        yield entry(f"qkv-reused-{order}", title, weights=_order(order))
    yield entry("heads-per-head", "fused rows (3 h e) are read per head, as (h 3 e)", weights=_fused(_to_per_head))
    yield entry("heads-fused", "fused rows (h 3 e) are read as (3 h e)", weights=_fused(_from_per_head))
    title = "the weight of q, k, v is regrouped per head, its bias is not"
    yield entry("heads-per-head-weight", title, weights=_fused(_to_per_head, ("weight",)))
    yield entry("heads-fused-weight", f"{title} (the other way)", weights=_fused(_from_per_head, ("weight",)))
    yield entry("heads-last", "head rows (h e) are read as (e h)", weights=_fused(_heads_last))
    yield entry("heads-first", "head rows (e h) are read as (h e)", weights=_fused(_heads_first))
    title = "the output projection reads its columns (h e) as "
    yield entry("out-heads-last", f"{title}(e h)", weights=_out_columns(lambda h: (-1, h)))
    yield entry("out-heads-first", f"{title}(e h), the other way", weights=_out_columns(lambda h: (h, -1)))
    known: dict[str, object] = {"facts": ("heads",)}
    yield entry(
        "heads-doubled",
        "twice as many heads",
        model=_heads(lambda h: 2 * h),
        when=lambda c: _plain(c) and c.attention_width % (2 * c.heads) == 0,
        **known,
    )
    yield entry(
        "heads-halved",
        "half as many heads",
        model=_heads(lambda h: h // 2),
        when=lambda c: _plain(c) and c.heads % 2 == 0,
        **known,
    )
    title = "one head, as wide as all of them"
    yield entry("heads-one", title, model=_heads(lambda h: 1), when=lambda c: _plain(c) and c.heads > 2, **known)
    for part, word in (("q", "query"), ("v", "value"), ("out", "output")):
        title = f"no bias in the {word} projection"
        has = {"q": lambda c: c.q_bias, "v": lambda c: c.v_bias, "out": lambda c: c.out_bias}[part]
        yield entry(f"{part}-bias-missing", title, weights=zeroed(f"attn.{part}.bias"), when=has)
    yield entry(
        "k-bias-missing",
        "no bias in the key projection",
        weights=zeroed("attn.k.bias"),
        when=lambda c: c.k_bias and _plain(c) and c.facts.position != "rope",
        visible="never",
        also="it adds the same number to every logit of a query, and softmax takes that away; or it is masked to 0",
    )
    yield entry(
        "k-bias-missing-seen",
        "no bias in the key projection, where keys are normed or turned afterwards and it counts",
        weights=zeroed("attn.k.bias"),
        when=lambda c: c.k_bias and not (_plain(c) and c.facts.position != "rope"),
    )
    yield entry(
        "qkv-bias-missing",
        "no bias in the query, key and value projections",
        weights=zeroed("attn.q.bias", "attn.k.bias", "attn.v.bias"),
        when=lambda c: c.q_bias and c.v_bias,
    )
    yield entry(
        "k-bias-is-v-bias",
        "biases of keys and values exchanged",
        weights=swapped("attn.k.bias", "attn.v.bias"),
        when=lambda c: c.k_bias and c.v_bias,
    )
    yield entry("out-transposed", "the output projection is transposed", weights=_transposed("out"), when=_square)
    title = "the query, key and value projections are transposed"
    yield entry("qkv-transposed", title, weights=_transposed("q", "k", "v"), when=_square)
    scales: tuple[tuple[str, str, Callable[[float, int, int], float]], ...] = (
        ("width", "1/sqrt of the whole width, not of the head's", lambda s, e, a: a**-0.5),
        ("squared", "applied twice: 1/e for 1/sqrt(e)", lambda s, e, a: 1 / e),
        ("missing", "missing", lambda s, e, a: 1.0),
        ("sqrt2", "sqrt(2) times too large", lambda s, e, a: s * 2**0.5),
        ("half-sqrt2", "sqrt(2) times too small", lambda s, e, a: s * 2**-0.5),
        ("percent", "1 % too large", lambda s, e, a: s * 1.01),
        ("inverse", "its own inverse: divided by where it is to be multiplied", lambda s, e, a: 1 / s),
        ("heads", "1/sqrt of the number of heads, not of their width", lambda s, e, a: (a // e) ** -0.5),
    )
    for name, words, new in scales:
        title = f"the attention scale is {words}"
        when = _scale_differs(new)
        yield entry(f"scale-{name}", title, model=_scale(new), facts=("attention_scale",), when=when)
    yield entry(
        "causal",
        "attention is causal",
        model=_causal,
        facts=("attention",),
        when=lambda c: c.facts.attention != "causal",
    )
    yield entry(
        "kv-raw",
        "keys and values read the stream that was not normalised",
        model=_raw_kv,
        facts=("kv_normalised", "release"),
        when=lambda c: c.facts.norm_placement == "pre" and c.facts.kv_normalised is not False,
        also="pre-norm of xformers up to 0.0.9",
    )
    yield entry(
        "qk-norm-missing",
        "queries and keys are not normalised",
        model=_skip("q_norm", "k_norm"),
        when=lambda c: c.qk_norm,
    )
    yield entry(
        "qk-norm-swapped",
        "the norms of queries and keys are exchanged",
        weights=swapped("attn.q_norm", "attn.k_norm"),
        when=lambda c: c.qk_norm,
    )
    yield entry(
        "attention-norm-missing",
        "no norm before the output projection",
        model=_skip("norm"),
        when=lambda c: c.attn_norm,
    )


def _scale_differs(new: Callable[[float, int, int], float]) -> Callable[[ViTConfig], bool]:
    def differs(config: ViTConfig) -> bool:
        e, a = config.head_width, config.attention_width
        now = e**-0.5 if config.facts.attention_scale is None else config.facts.attention_scale
        return abs(new(now, e, a) - now) > 1e-9 * now

    return differs


FAULTS = tuple(_entries())
