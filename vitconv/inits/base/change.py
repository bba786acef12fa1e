"""Change an architecture, with consent, into one that a scheme fits; every change is said."""

from __future__ import annotations

from collections.abc import Mapping

from vitconv.errors import UsageError
from vitconv.inits.base.architecture import PLACEMENTS, Architecture
from vitconv.inits.base.deepnet import alpha
from vitconv.layout.canonical import template_of

CHANGES: Mapping[str, str] = {
    "norm": f"where the norms of a block stand: {', '.join(PLACEMENTS)}; deepnorm also sets alpha = (2N)^(1/4)",
    "layer_scale": "true gives every branch a LayerScale",
    "sub_norm": "true puts a norm ahead of the output projection and of the second MLP layer",
}


def changed(arch: Architecture, wanted: Mapping[str, str]) -> tuple[Architecture, tuple[str, ...]]:
    """Return the changed architecture, and one sentence per change that made a difference.

    `wanted`: {name of `CHANGES`: value}.

    Raises:
        UsageError: an unknown name or value.
    """
    said = []
    for name, value in wanted.items():
        if name not in CHANGES:
            raise UsageError(f"--set {name}: no such change; there are {', '.join(CHANGES)}")
        before = arch
        if name == "norm":
            arch = _placed(arch, value)
            if (before.placement, before.alpha) != (arch.placement, arch.alpha):
                stream = f", alpha = {arch.alpha:.4f} in the residual" if value == "deepnorm" else ""
                said.append(f"norms: {before.placement or 'unknown'} became {value}{stream}")
        elif _true(name, value):
            arch = _scaled(arch) if name == "layer_scale" else _sub_normed(arch)
            added = len(arch.shapes) - len(before.shapes)
            if added:
                said.append(f"{name}: {added} tensors were added")
    return arch, tuple(said)


def changes_of(arch: Architecture) -> dict[str, str]:
    """Return the changes that make a plain network of usual blocks one of this kind, for a twin of another size."""
    found = {"norm": arch.placement or "pre"}
    if arch.has("blocks.0.ls1"):
        found["layer_scale"] = "true"
    if arch.has("blocks.0.attn.norm.weight") and arch.has("blocks.0.mlp.norm.weight"):
        found["sub_norm"] = "true"
    return found


def _placed(arch: Architecture, value: str) -> Architecture:
    if value not in PLACEMENTS:
        raise UsageError(f"--set norm={value}: expected one of {', '.join(PLACEMENTS)}")
    if value == "none":
        gone = ("blocks.{i}.norm1.", "blocks.{i}.norm2.")
        shapes = {n: s for n, s in arch.shapes.items() if not template_of(n).startswith(gone)}
        none = {"norm_placement": value, "residual_alpha": None, "norm_eps": None, "kv_normalised": True}
        return Architecture(shapes, arch.facts.replaced(none))
    if arch.placement == "none":
        raise UsageError(f"--set norm={value}: the blocks of this network have no norms that could stand there")
    facts: dict[str, object] = {"norm_placement": value, "residual_alpha": None}
    if value != "pre":
        facts["kv_normalised"] = True
    if value == "deepnorm":
        facts["residual_alpha"] = alpha(arch.depth)
    return arch.with_facts(**facts)


def _scaled(arch: Architecture) -> Architecture:
    more = {f"blocks.{i}.ls{k}": (arch.width,) for i in range(arch.depth) for k in (1, 2)}
    return Architecture({**arch.shapes, **more}, arch.facts)


def _sub_normed(arch: Architecture) -> Architecture:
    parts = ["weight", "bias"] if arch.has("blocks.0.norm1.bias") else ["weight"]
    more: dict[str, tuple[int, ...]] = {}
    for i in range(arch.depth):
        more |= {f"blocks.{i}.attn.norm.{part}": (arch.attention_width,) for part in parts}
        more |= {f"blocks.{i}.mlp.norm.{part}": (arch.mlp_width,) for part in parts}
    return Architecture({**arch.shapes, **more}, arch.facts)


def _true(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise UsageError(f"--set {name}={value}: expected true or false")
    return value.lower() in ("true", "yes", "1")
