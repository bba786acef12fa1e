"""Turn the places of a live network into facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from vitconv.hosts.base.places import depth
from vitconv.hosts.base.survey import eps_of
from vitconv.layout.semantics import CHOICES
from vitconv.vit.activation import activation


def common(values: Iterable[object]) -> object:
    """Return the value all share, or None when they differ, or when there is none."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else None


def heads_of(attentions: Iterable[object]) -> object:
    """Return the head count that all state, or None where one is the user's own and states none."""
    return common(getattr(a, "num_heads", None) for a in attentions)


def eps_facts(places: Mapping[str, nn.Module]) -> dict[str, object]:
    """Return norm_eps, final_norm_eps, embed_norm_eps and qk_norm_eps; a fact on which norms disagree is left out."""
    final = [m for name, m in places.items() if name in ("norm", "pool.norm")]
    groups = {
        "norm_eps": [m for name, m in places.items() if name.endswith((".norm1", ".norm2"))],
        "final_norm_eps": final,
        "embed_norm_eps": [m for name, m in places.items() if name == "embed.norm"],
        "qk_norm_eps": [m for name, m in places.items() if name.endswith((".q_norm", ".k_norm"))],
    }
    found = {fact: common(eps_of(m) for m in group) for fact, group in groups.items()}
    return {fact: eps for fact, eps in found.items() if eps is not None}


def norm_kind(places: Mapping[str, nn.Module]) -> object:
    """Return layernorm or rmsnorm by the class names of the norms in the blocks, or None."""
    norms = [m for name, m in places.items() if name.endswith((".norm1", ".norm2"))]
    return common("rmsnorm" if "rms" in type(m).__name__.lower() else "layernorm" for m in norms)


def activation_fact(places: Mapping[str, nn.Module]) -> object:
    """Return the name of the activation that all blocks share, found by evaluating it, or None."""
    acts = [places.get(f"blocks.{i}.mlp.act") for i in range(depth(places))]
    return common(None if act is None else name_of(act) for act in acts)


def name_of(act: Callable[[Tensor], Tensor]) -> str | None:
    """Name an activation by its values on [-6, 6] in float64; tanh GELUs differ in the eighth digit of sqrt(2/pi).

    Two names can be closest; only one within 1e-6 counts (the exact and the tanh GELU are 5e-4 apart).
    """
    x = torch.linspace(-6, 6, 481, dtype=torch.float64)
    with torch.no_grad():
        y = act(x)
        errors = {name: (activation(name)(x) - y).abs().max().item() for name in CHOICES["activation"]}
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < 1e-6 else None


def scale_fact(scale: float | None, head_width: int) -> float:
    """Return the attention scale: exactly e^-0.5 when it is that to rounding, else what it is."""
    usual = head_width**-0.5
    return usual if scale is None or abs(scale - usual) <= 1e-12 * usual else scale
