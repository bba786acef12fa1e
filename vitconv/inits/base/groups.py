"""Optimiser groups by role: which parameters are decayed, and at which layer id a layer-wise rate sees them.

By role and not by name: a list of name parts made for one codebase matches nothing in another, in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from vitconv.errors import UsageError
from vitconv.layout.blocks import number_of, running
from vitconv.layout.canonical import layer_of, role_of, stack_of

# Tables of relative positions, and Swin-v2's network in place of one.
_INSIDE = ("*.attn.table", "*rel_pos*", "*.attn.cpb.*")

# Canonical names without decay besides vectors, by whose rule. Vectors are norms, biases and LayerScale.
PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # Every token and every position row, and what makes positions inside attention.
        "role": ("embed.cls", "embed.dist", "embed.reg", "embed.mask", "embed.pos*", *_INSIDE),
        # timm 1.0.31, no_weight_decay of VisionTransformer, Beit, SwinTransformer and SwinTransformerV2.
        "timm": ("embed.cls", "embed.dist", "embed.reg", "embed.pos*", *_INSIDE),
        # timm ahead of its #2712: the registers are not in the list, and are no vector there.
        "timm-early": ("embed.cls", "embed.dist", "embed.pos*"),
        # facebookresearch/deit with the list of the timm it was written for: without the distillation token.
        "deit": ("embed.cls", "embed.pos*"),
    }
)

# Tokens are [1 1 d] in every codebase, so a rule by the number of axes does not see them as vectors.
_TOKENS = ("token", "position")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an optimiser sees one tensor: its layer id (0 the embeddings), the rate's factor, and whether it decays."""

    name: str
    role: str
    layer_id: int
    scale: float
    decayed: bool


def groups(
    shapes: Mapping[str, tuple[int, ...]], *, layer_decay: float = 1.0, preset: str = "role"
) -> tuple[Placed, ...]:
    """Return one row per tensor; `layer_decay`^(N+1-id) is the factor of the learning rate at layer id 0 to N+1.

    Raises:
        UsageError: an unknown preset.
    """
    if preset not in PRESETS:
        raise UsageError(f"no decay preset {preset!r}; there are {', '.join(PRESETS)}")
    # Also in stages a block's layer id is its running number, and what leads into a stage has that of its first block.
    number = running(shapes)
    depth = len(number)
    rows = []
    for name, shape in shapes.items():
        layer = layer_of(name) if stack_of(name) else number_of(name, number)
        at = layer + 1 if layer is not None else 0 if name.startswith("embed.") else depth + 1
        role = role_of(name)
        vector = len(shape) < 2 and role not in _TOKENS
        listed = any(fnmatchcase(name, pattern) for pattern in PRESETS[preset])
        rows.append(Placed(name, role, at, layer_decay ** (depth + 1 - at), not vector and not listed))
    return tuple(rows)


def idle_patterns(keys: Iterable[str], parts: Iterable[str]) -> tuple[str, ...]:
    """Return those of a user's no-decay name parts that are in no key: such a list does nothing, and says nothing."""
    keys = tuple(keys)
    return tuple(part for part in parts if not any(part in key for key in keys))


def misplaced_moments(
    shapes: Mapping[int, tuple[int, ...]] | Mapping[str, tuple[int, ...]],
    moments: Mapping[int, tuple[int, ...]] | Mapping[str, tuple[int, ...]],
) -> tuple[str, ...]:
    """Return what speaks against optimiser moments belonging to these parameters, one line each.

    An optimiser matches moments by index and loads any shape; a [4 4] moment on a [4] bias is found out, if at all, in
    the first step, where it broadcasts.
    """
    lines = [
        f"parameter {key} has shape {list(shapes[key])}, its moment {list(moments[key])}"  # type: ignore[index]
        for key in shapes
        if key in moments and tuple(shapes[key]) != tuple(moments[key])  # type: ignore[index]
    ]
    lines += [f"parameter {key} has no moment" for key in shapes if key not in moments]
    return (*lines, *(f"moment {key} belongs to no parameter" for key in moments if key not in shapes))
