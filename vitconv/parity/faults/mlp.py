"""Faults of the MLP: the activation, biases, the gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.layout.semantics import CHOICES
from vitconv.parity.faults.fault import Fault, per_block, swapped, zeroed
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from vitconv.parity.faults.fault import OnModel, Weights
    from vitconv.vit.model import ViT

_WORDS = {
    "gelu": "the exact GELU",
    "gelu_tanh": "the tanh approximation of GELU",
    "quick_gelu": "QuickGELU, x sigmoid(1.702 x)",
    "relu": "ReLU",
    "silu": "SiLU",
    "squared_relu": "squared ReLU",
    "leaky_relu": "leaky ReLU",
}


def _activation(name: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.vit.activation import activation

        for i in layers:
            model.get_submodule(f"blocks.{i}.mlp").act = activation(name)  # type: ignore[assignment]

    return change


def _no_norm(model: ViT, layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import skip

    for i in layers:
        skip(model.get_submodule(f"blocks.{i}.mlp.norm"))


def _no_gate(model: ViT, layers: Iterable[int]) -> None:
    for i in layers:
        model.get_submodule(f"blocks.{i}.mlp").gate = None  # type: ignore[assignment]


def _interleaved(back: bool) -> object:
    """Rows of gate and up one by one, (m 2), read as (2 m), or the other way."""

    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        import torch

        new: Weights = {}
        for leaf in ("weight", "bias"):
            names = [f"{prefix}mlp.{part}.{leaf}" for part in ("gate", "up")]
            if all(name in w for name in names):
                rows = torch.stack([w[name] for name in names])
                mixed = rows.transpose(0, 1).flatten(0, 1) if not back else rows.flatten(0, 1).unflatten(0, (-1, 2))
                halves = mixed.chunk(2) if not back else mixed.unbind(1)
                new |= dict(zip(names, halves, strict=True))
        return new

    return per_block(change)


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "mlp", per_block=True, **more)  # type: ignore[arg-type]

    def gated(c: ViTConfig) -> bool:
        return c.gated

    for name in CHOICES["activation"]:
        yield entry(
            f"activation-{name.replace('_', '-')}",
            f"the activation is {_WORDS[name]}",
            model=_activation(name),
            facts=("activation",),
            when=lambda c, name=name: c.facts.activation != name,
        )
    for part, word in (("up", "first linear"), ("gate", "gate"), ("down", "second linear")):
        yield entry(
            f"mlp-{part}-bias-missing",
            f"no bias in the MLP's {word}",
            weights=zeroed(f"mlp.{part}.bias"),
            when=lambda c, part=part: c.mlp_bias and (part != "gate" or c.gated),
        )
    title = "gate and value of the MLP are exchanged"
    yield entry("gate-up-swapped", title, weights=swapped("mlp.gate", "mlp.up"), when=gated)
    title = "the rows of gate and value, one half after the other, are read as alternating"
    yield entry("gate-up-alternating", title, weights=_interleaved(back=True), when=gated)
    title = "the rows of gate and value, alternating, are read as one half after the other"
    yield entry("gate-up-halves", title, weights=_interleaved(back=False), when=gated)
    yield entry("gate-missing", "the gate is left out: down(act(up(x)))", model=_no_gate, when=gated)
    yield entry("mlp-norm-missing", "no norm inside the MLP", model=_no_norm, when=lambda c: c.mlp_norm)


FAULTS = tuple(_entries())
