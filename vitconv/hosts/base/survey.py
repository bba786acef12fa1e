"""Read what a live network will really do: the eps of every norm, every random site, train and eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class NormSite:
    """One norm: the module's name, its canonical place if it has one, its class, and its eps (None: it shows none)."""

    name: str
    place: str | None
    kind: str
    eps: float | None


@dataclass(frozen=True)
class RandomSite:
    """One random site: the module's name, `dropout` or `drop-path`, its rate, and whether it acts now."""

    name: str
    kind: str
    rate: float
    active: bool


@dataclass(frozen=True)
class Survey:
    """What was found.

    `mixed` names the modules whose train/eval state differs from the root's. `buffers_change` names the modules that
    update buffers while training (batch norms).
    """

    norms: tuple[NormSite, ...]
    random: tuple[RandomSite, ...]
    attention_backend: str
    training: bool
    mixed: tuple[str, ...]
    buffers_change: tuple[str, ...]


# Attributes that hold a dropout rate used without a Dropout module: nn.MultiheadAttention, transformers' attentions,
# fused dropouts.
_RATES = ("attention_dropout", "dropout_prob", "dropout", "p")


def survey(module: nn.Module, places: Mapping[str, nn.Module], attention_backend: str) -> Survey:
    """Survey every module of the network."""
    named = {id(m): place for place, m in places.items()}
    modules = [(name, m) for name, m in module.named_modules()]
    return Survey(
        norms=tuple(NormSite(name, named.get(id(m)), type(m).__name__, eps_of(m)) for name, m in modules if is_norm(m)),
        random=tuple(site for name, m in modules if (site := _random(name, m)) is not None),
        attention_backend=attention_backend,
        training=module.training,
        mixed=tuple(name for name, m in modules if m.training != module.training),
        buffers_change=tuple(name for name, m in modules if "BatchNorm" in type(m).__name__),
    )


def is_norm(module: nn.Module) -> bool:
    """Return True for a norm, of torch or of anyone: by class name, and having no children."""
    name = type(module).__name__.lower()
    return "norm" in name and not any(True for _ in module.children())


def eps_of(module: nn.Module) -> float | None:
    """Return the eps a norm will use, under any of the names in use, or None."""
    for name in ("eps", "epsilon", "variance_epsilon"):
        value = getattr(module, name, None)
        if isinstance(value, float | int) and not isinstance(value, bool):
            return float(value)
    return None


def _random(name: str, module: nn.Module) -> RandomSite | None:
    if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)):
        return RandomSite(name, "dropout", module.p, module.training and module.p > 0)
    kind = type(module).__name__
    if "DropPath" in kind or "StochasticDepth" in kind:
        rate = float(getattr(module, "drop_prob", getattr(module, "p", 0.0)) or 0.0)
        return RandomSite(name, "drop-path", rate, module.training and rate > 0)
    for attribute in _RATES:
        value = getattr(module, attribute, None)
        if isinstance(value, float) and 0.0 < value < 1.0:
            return RandomSite(f"{name}.{attribute}", "dropout", value, module.training)
    return None
