"""Faults between the last block and the logits: pooling, the norm around it, the pooler, the heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights
    from vitconv.vit.model import ViT

_WORDS = {
    "token": "the class token",
    "avg": "the mean of the patches, prefix tokens left out",
    "avg-prefix": "the mean of all tokens, prefix tokens included",
    "none": "every token",
}


def _change(name: str, new: Callable[[Tensor], Tensor]) -> OnWeights:
    return lambda w, config, layers: {name: new(w[name])} if name in w else {}


def _pooling(kind: str) -> OnModel:
    def change(model: ViT, _layers: Iterable[int]) -> None:
        model.pool.kind = kind

    return change


def _prefix(new: Callable[[ViTConfig], int]) -> OnModel:
    def change(model: ViT, _layers: Iterable[int]) -> None:
        model.pool.prefix = new(model.config)

    return change


def _swap(name: str) -> OnModel:
    def change(model: ViT, _layers: Iterable[int]) -> None:
        from vitconv.parity.faults import swaps

        getattr(swaps, name)(model)

    return change


def _pooled_token(index: int) -> OnModel:
    def change(model: ViT, _layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import pool_token

        pool_token(model, index)

    return change


def _output(name: str) -> OnModel:
    """Let the network give a function of its output, of torch.nn.functional."""

    def change(model: ViT, _layers: Iterable[int]) -> None:
        from torch.nn import functional

        along = {} if name == "sigmoid" else {"dim": -1}
        model.register_forward_hook(lambda _m, _x, y: getattr(functional, name)(y, **along))

    return change


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "head", **more)  # type: ignore[arg-type]

    for kind, words in _WORDS.items():
        yield entry(
            f"pooling-{kind}",
            f"pooled is {words}",
            model=_pooling(kind),
            shows=("pool", "head"),
            facts=("pooling",),
            when=lambda c, kind=kind: c.facts.pooling != kind and (c.cls or kind != "token"),
        )
    average: dict[str, object] = {"shows": ("pool", "head")}
    yield entry(
        "pooling-registers",
        "registers are averaged along with the patches",
        model=_prefix(lambda c: int(c.cls) + int(c.dist)),
        when=lambda c: c.registers > 0 and c.facts.pooling == "avg",
        **average,
    )
    yield entry(
        "pooling-first-patch-left-out",
        "one token too many is left out of the mean",
        model=_prefix(lambda c: c.prefix + 1),
        when=lambda c: c.facts.pooling == "avg" and c.positions > 2,
        **average,
    )
    yield entry(
        "pooling-last-token",
        "the last token is taken for the class token",
        model=_pooled_token(-1),
        when=lambda c: c.facts.pooling == "token",
        **average,
    )
    yield entry(
        "pooling-second-token",
        "the second token is taken for the class token",
        model=_pooled_token(1),
        when=lambda c: c.facts.pooling == "token",
        **average,
    )
    both = ("norm", "pool", "head")
    yield entry(
        "norm-after-pooling",
        "the final norm is applied after pooling",
        model=_swap("norm_after_pooling"),
        shows=both,
        when=lambda c: c.norm and not c.pool_norm and c.facts.pooling in ("avg", "avg-prefix"),
    )
    yield entry(
        "norm-before-pooling",
        "the norm that belongs after pooling is applied before it",
        model=_swap("norm_before_pooling"),
        shows=both,
        when=lambda c: c.pool_norm and c.facts.pooling in ("avg", "avg-prefix"),
    )
    yield entry(
        "pool-norm-missing",
        "the norm after pooling is skipped",
        model=_swap("no_pool_norm"),
        shows=("pool", "head"),
        when=lambda c: c.pool_norm,
    )
    yield entry(
        "pooler-missing",
        "the pooler's dense layer is left out",
        model=_swap("no_pooler"),
        shows=("pool", "head"),
        when=lambda c: c.pool_dense == c.width,
    )
    yield entry(
        "pooler-tanh-missing",
        "there is no tanh after the pooler's dense layer",
        model=_swap("no_pooler_tanh"),
        shows=("pool", "head"),
        when=lambda c: c.pool_dense > 0,
    )
    yield entry(
        "head-bias-missing",
        "no bias in the classifier",
        weights=_change("head.bias", lambda b: b * 0),
        shows=("head",),
        when=lambda c: c.classes > 0 and c.head_bias,
    )
    for name, words in (
        ("softmax", "softmax of it: probabilities for logits"),
        ("log_softmax", "the logarithm of its softmax"),
        ("sigmoid", "its sigmoid"),
        ("normalize", "divided by its length"),
    ):
        title = f"the output is {words}"
        yield entry(f"output-{name.replace('_', '-')}", title, model=_output(name), shows=("head",))
    distilled: dict[str, object] = {"shows": ("head",), "when": lambda c: c.classes_dist > 0}
    yield entry("distillation-head-missing", "only the classifier of the class token answers",
                model=_swap("no_distillation_head"), **distilled)  # fmt: skip
    yield entry("distillation-head-summed", "the logits of both classifiers are added, not averaged",
                model=_swap("heads_summed"), **distilled)  # fmt: skip


FAULTS = tuple(_entries())
