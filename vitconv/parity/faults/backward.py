"""Faults of the backward pass alone: the values are right and the gradients are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.layout.semantics import CHOICES
from vitconv.parity.faults.fault import Fault, per_block
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.model import ViT


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, whose gradient is multiplied with `factor`."""
    return x.detach() if factor == 0 else x * factor + (x * (1 - factor)).detach()


def _named(start: str, factor: float) -> OnWeights:
    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        return {name: scaled_gradient(x, factor) for name, x in w.items() if name.startswith(start)}

    return change


def _block(start: str, factor: float) -> OnWeights:
    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        return {name: scaled_gradient(x, factor) for name, x in w.items() if name.startswith(prefix + start)}

    return per_block(change)


def _output(path: str, factor: float) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import scale_gradient

        for i in layers:
            scale_gradient(model.get_submodule(f"blocks.{i}.{path}"), factor)

    return change


def _each(name: str, part: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults import swaps

        for i in layers:
            getattr(swaps, name)(model.get_submodule(f"blocks.{i}.{part}".rstrip(".")))

    return change


def _norm_statistics(model: ViT, layers: Iterable[int]) -> None:
    from vitconv.parity.faults.norm import norms_of
    from vitconv.parity.faults.swaps import detach_statistics

    for norm in norms_of(model, layers, ("norm1", "norm2", "norm", "pool.norm", "embed.norm", "trunk_norm")):
        detach_statistics(norm)


def _derivative(name: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import with_derivative_of

        for i in layers:
            with_derivative_of(model.get_submodule(f"blocks.{i}.mlp"), name)

    return change


def _slope(kind: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import with_slope

        for i in layers:
            with_slope(model.get_submodule(f"blocks.{i}.mlp"), kind)

    return change


# x Phi(x) and its kin: their derivative is that gate and x times the gate's own.
_GATED = ("gelu", "gelu_tanh", "quick_gelu", "silu")


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, shows: str, **more: object) -> Fault:
        return Fault(f"backward-{name}", title, "backward", "backward", (shows,), **more)  # type: ignore[arg-type]

    word = {"q": "queries", "k": "keys", "v": "values"}
    for part in "qkv":
        change = _output(f"attn.{part}", 0.0)
        title = f"no gradient passes through the {word[part]}"
        yield entry(f"{part}-detached", title, "attn", model=change, per_block=True)
    for part in "qk":
        title = f"no gradient passes through the {word[part]}, as their norm left them"
        change = _output(f"attn.{part}_norm", 0.0)
        yield entry(f"{part}-norm-detached", title, "attn", model=change, per_block=True, when=lambda c: c.qk_norm)
    for part in "qk":
        title = f"the gradient of the {word[part]} is 1.1 times too large"
        yield entry(f"{part}-scaled", title, "attn", model=_output(f"attn.{part}", 1.1), per_block=True)
    title = "no gradient passes through the attention probabilities"
    yield entry("softmax-detached", title, "attn", model=_each("detach_probabilities", "attn"), per_block=True)
    title = "the softmax's gradient lacks the sum over the row"
    yield entry("softmax-row-sum", title, "attn", model=_each("softmax_without_row_sum", "attn"), per_block=True)
    title = "the softmax's gradient is that of an elementwise function, p (1 - p)"
    yield entry("softmax-elementwise", title, "attn", model=_each("softmax_elementwise", "attn"), per_block=True)
    table: dict[str, Callable[[ViTConfig], bool]] = {"when": lambda c: c.positions > 0}
    yield entry("pos-missing", "positions get no gradient", "embed", weights=_named("embed.pos", 0.0), **table)
    yield entry("pos-doubled", "positions get twice their gradient", "embed", weights=_named("embed.pos", 2.0), **table)
    title = "the class token gets no gradient"
    yield entry("cls-detached", title, "embed", weights=_named("embed.cls", 0.0), when=lambda c: c.cls)
    title = "the class token and its position get no gradient"
    yield entry(
        "cls-row-detached",
        title,
        "embed",
        weights=lambda w, c, ls: {n: w[n].detach() for n in ("embed.cls", "embed.pos_cls") if n in w},
        when=lambda c: c.cls and c.pos_cls,
    )
    title = "the patch projection gets no gradient"
    yield entry("patch-frozen", title, "embed", weights=_named("embed.patch", 0.0), when=lambda c: c.channels > 0)
    for name in CHOICES["activation"]:
        yield entry(
            f"activation-{name.replace('_', '-')}",
            f"the activation's derivative is that of {name}",
            "mlp",
            model=_derivative(name),
            per_block=True,
            when=lambda c, name=name: c.facts.activation != name,
        )
    slopes = {"none": "no gradient passes through the activation", "one": "the activation's derivative is 1",
              "gate": "the activation's derivative is its gate alone, x times the gate's own is missing"}  # fmt: skip
    for kind, title in slopes.items():
        yield entry(
            f"activation-slope-{kind}", title, "mlp", model=_slope(kind), per_block=True,
            when=lambda c, kind=kind: kind != "gate" or c.facts.activation in _GATED,
        )  # fmt: skip
    for part, words in (("q", "query"), ("v", "value"), ("out", "output")):
        title = f"the bias of the {words} projection gets no gradient"
        has = {"q": lambda c: c.q_bias, "v": lambda c: c.v_bias, "out": lambda c: c.out_bias}
        yield entry(
            f"{part}-bias-missing", title, "attn", weights=_block(f"attn.{part}.bias", 0.0), per_block=True,
            when=has[part],
        )  # fmt: skip
    for part, words in (("up", "first linear"), ("down", "second linear")):
        title = f"the bias of the MLP's {words} gets no gradient"
        yield entry(
            f"mlp-{part}-bias-missing", title, "mlp", weights=_block(f"mlp.{part}.bias", 0.0), per_block=True,
            when=lambda c: c.mlp_bias, also="a bias that is a buffer, as FusedMLP's of xformers 0.0.4 to 0.0.7",
        )  # fmt: skip
    title = "the biases of the MLP get no gradient"
    yield entry(
        "mlp-biases-missing",
        title,
        "mlp",
        weights=lambda w, c, ls: {
            n: w[n].detach() for i in ls for n in (f"blocks.{i}.mlp.up.bias", f"blocks.{i}.mlp.down.bias") if n in w
        },
        per_block=True,
        when=lambda c: c.mlp_bias,
        also="biases that are buffers, as FusedMLP's of xformers 0.0.4 to 0.0.7",
    )
    title = "no gradient passes through mean and variance of the norms"
    yield entry("norm-statistics", title, "norm", model=_norm_statistics)
    yield entry(
        "norm-weights",
        "the norms in the blocks get no gradient",
        "norm",
        weights=lambda w, c, ls: {
            n: x.detach() for i in ls for n, x in w.items() if n.startswith((f"blocks.{i}.norm1", f"blocks.{i}.norm2"))
        },
        per_block=True,
    )
    title = "LayerScale gets no gradient"
    yield entry(
        "layer-scale-frozen", title, "block", weights=_block("ls", 0.0), per_block=True, when=lambda c: c.layer_scale
    )
    title = "no gradient passes from the block to what is ahead of it"
    yield entry("block-detached", title, "block", model=_each("detach_input", ""), per_block=True)


FAULTS = tuple(_entries())
