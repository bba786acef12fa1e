"""Faults of attention's axes: what it takes for heads, tokens and batch. All sizes stay, so nothing stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.layout.semantics import FOCUSED
from vitconv.parity.faults.fault import Fault
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel
    from vitconv.vit.model import ViT


def _attend(**how: Any) -> OnModel:
    """Attend as `swaps.attend` does with these words; names of functions of that module stand for them."""

    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults import swaps

        named = {k: getattr(swaps, v) if isinstance(v, str) else v for k, v in how.items()}
        for i in layers:
            swaps.attend(model.get_submodule(f"blocks.{i}.attn"), **named)

    return change


def _over_batch(model: ViT, layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import over_the_batch

    for i in layers:
        over_the_batch(model.get_submodule(f"blocks.{i}.attn"))


def _joined_over_batch(heads: Tensor) -> Tensor:
    """Return [b h t e], its rows taken for (h b), as [b t (h e)]."""
    b, h, t, e = heads.shape
    return heads.reshape(h, b, t, e).permute(1, 2, 0, 3).reshape(b, t, h * e)


def _over_rows(logits: Tensor) -> Tensor:
    """Return what softmax over the first axis makes of [(b h) t t]."""
    return logits.flatten(0, 1).softmax(0).view_as(logits)


def _softmaxed(config: ViTConfig) -> bool:
    return config.facts.attention not in FOCUSED


def _headed(config: ViTConfig) -> bool:
    return config.heads > 1 and _softmaxed(config)


def _unplaced(config: ViTConfig) -> bool:
    """Whether attention is given no positions, which would not fit other axes."""
    return _softmaxed(config) and config.facts.position != "rope" and not config.relative


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, model: OnModel, when: Callable[[Any], bool]) -> Fault:
        return Fault(name, title, "attention", per_block=True, model=model, when=when)

    over_queries = _attend(softmax=lambda logits: logits.softmax(-2))
    yield entry("softmax-over-queries", "softmax runs over the queries", over_queries, _softmaxed)
    title = "softmax runs over the heads, as torch's does on four axes when it is given none"
    yield entry("softmax-over-heads", title, _attend(softmax=lambda logits: logits.softmax(1)), _headed)
    title = "softmax runs over examples and heads, as torch's does on three axes when it is given none"
    yield entry("softmax-over-batch", title, _attend(softmax=_over_rows), _softmaxed)
    by_view = "viewed_together"
    title = "heads are not transposed back before they are joined: (h t e) is read as (t h e)"
    yield entry("heads-joined-by-view", title, _attend(join=by_view), _headed)
    title = "heads are cut out of the tokens by a reshape, (t h e) read as (h t e), and joined so"
    yield entry("heads-cut-by-view", title, _attend(divide="viewed_apart", join=by_view), _headed)
    title = "heads are cut out of the tokens by a reshape, (t h e) read as (h t e), and joined rightly"
    yield entry("heads-cut-by-view-alone", title, _attend(divide="viewed_apart"), _headed)
    title = "heads are joined as if examples stood behind them: (b h) is read as (h b)"
    yield entry("heads-joined-over-batch", title, _attend(join=_joined_over_batch), _headed)

    def inside(c: ViTConfig) -> bool:
        return _headed(c) and _unplaced(c) and c.facts.attention != "causal"

    title = "attention runs over the heads of each token and not over the tokens: (b h t e) is given where (b t h e) is"
    title = f"{title} expected, or the other way round"
    yield entry("over-heads", title, _attend(over_heads=True), inside)
    title = f"{title}, and heads are joined without transposing them back"
    yield entry("over-heads-joined-by-view", title, _attend(over_heads=True, join=by_view), inside)
    title = "attention runs over the batch and not over the tokens, as without batch_first"
    yield entry("over-batch", title, _over_batch, _unplaced)


FAULTS = tuple(_entries())
