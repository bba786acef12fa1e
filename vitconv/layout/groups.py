"""Parameter groups by role: which tensors decay, and which layer each belongs to for layer-wise learning rates.

Roles come from the canonical layout, so a rule holds in every dialect: no list of name parts has to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from vitconv.errors import LayoutError, UsageError
from vitconv.layout.blocks import number_of, running
from vitconv.layout.canonical import layer_of, role_of, template_of
from vitconv.record import dataclass

# What decides is the canonical name of each part; `*` is every one of the kind.
_TOKENS: Mapping[str, str] = {"embed.cls": "cls", "embed.dist": "dist", "embed.reg": "reg", "embed.mask": "mask"}
# Beside tables of positions, what makes them inside Swin-v2's attention, and the scale of its logits, [h 1 1] there.
INSIDE = ("cpb", "logit_scale")


@dataclass(frozen=True)
class Preset:
    """One repository's rule: which roles are free of weight decay beside biases and norms, and whether vectors are.

    `closing`: the last norm is of the last block's layer, and not of the head's.
    """

    name: str
    title: str
    source: str
    free: frozenset[str]
    vectors: bool = True
    closing: bool = False


_ALL = frozenset(("position", "cls", "dist", "reg", "mask", "token", *INSIDE))
PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset("role", "tokens, positions, norms, biases and LayerScale without decay", "vitconv", _ALL),
        Preset(
            "timm",
            "no_weight_decay of timm's VisionTransformer, Beit and Swins, and vectors",
            "huggingface/pytorch-image-models timm/models/vision_transformer.py, swin_transformer_v2.py, 1.0.31",
            frozenset(("position", "cls", "dist", "reg", *INSIDE)),
            closing=True,
        ),
        Preset(
            "timm-early",
            "timm ahead of its #2712: registers, which are no vector there, decay",
            "huggingface/pytorch-image-models#2712",
            frozenset(("position", "cls", "dist", *INSIDE)),
            closing=True,
        ),
        Preset(
            "deit",
            "DeiT: positions and the class token, by timm 0.3.2; the distillation token decays",
            "facebookresearch/deit main.py with timm 0.3.2",
            frozenset(("position", "cls")),
        ),
        Preset(
            "mae",
            "MAE: positions and the class token, fine-tuning by layer",
            "facebookresearch/mae util/lr_decay.py",
            frozenset(("position", "cls")),
        ),
        Preset(
            "dino",
            "DINO: vectors and biases alone, so tokens and positions decay",
            "facebookresearch/dino utils.py, get_params_groups",
            frozenset(),
        ),
        Preset(
            "trainer",
            "transformers' Trainer: norms and biases alone",
            "huggingface/transformers src/transformers/trainer.py, get_decay_parameter_names",
            frozenset(),
            vectors=False,
        ),
    )
}


@dataclass(frozen=True)
class Grouped:
    """One tensor in its group. `scale` is the factor on the learning rate, 1 without layer-wise decay."""

    key: str
    role: str
    decays: bool
    layer: int
    scale: float


def preset(name: str) -> Preset:
    """Return a preset by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def grouped(
    tensors: Iterable[tuple[str, Sequence[str], tuple[int, ...]]],
    depth: int,
    *,
    rule: Preset,
    layer_decay: float | None = None,
) -> list[Grouped]:
    """Sort tensors into groups.

    Args:
        tensors: (key, canonical parts, shape) of each.
        depth: number of blocks.
        rule: who decays.
        layer_decay: factor per layer on the learning rate: the head has 1, the embedding layer_decay^(depth + 1).
    """
    found = []
    tensors = list(tensors)
    place, depth = placing((parts for _, parts, _ in tensors), depth)
    for key, parts, shape in tensors:
        kind, layer = place(parts)
        if rule.closing and any(name.startswith("norm.") for name in parts):
            layer -= 1
        role = role_in_words(parts)
        scale = 1.0 if layer_decay is None else layer_decay ** (depth + 1 - layer)
        found.append(Grouped(key, role, not _free(key, kind, shape, rule), layer, scale))
    return found


def placing(tensors: Iterable[Sequence[str]], depth: int) -> tuple[Callable[[Sequence[str]], tuple[str, int]], int]:
    """Return what gives (kind, layer) of each of these tensors by its canonical parts, and the number of blocks.

    In stages a block's layer is its running number over all of them.
    """
    number = running(part for parts in tensors for part in parts)
    depth = max(depth, len(number))
    return lambda parts: place_of(parts, depth, number), depth


def learned(parts: Sequence[str]) -> bool:
    """Return whether training moves a tensor: no table of periods, no bias that a mask multiplies by 0."""
    return not any(name.startswith("rope.") or name.endswith(".k_masked") for name in parts)


@dataclass(frozen=True)
class Listed:
    """A list of no-decay names, as training scripts keep one, held against the roles.

    Attributes:
        matches: {pattern: keys that it is in}; a pattern without any does nothing.
        lacking: keys without decay by the rule that no pattern is in, of several axes: any rule decays them.
        vectors: the same of one axis, which a rule by the number of axes leaves alone.
        beyond: keys that a pattern is in and that the rule decays.
    """

    matches: Mapping[str, tuple[str, ...]]
    lacking: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def caught(self) -> frozenset[str]:
        """Return the keys that any pattern is in."""
        return frozenset(key for keys in self.matches.values() for key in keys)

    @property
    def idle(self) -> tuple[str, ...]:
        """Return the patterns that are in no key."""
        return tuple(pattern for pattern, keys in self.matches.items() if not keys)

    def near(self, pattern: str) -> str:
        """Return the part of a missed name that looks most like a pattern, or ""."""
        words = {word for key in (*self.lacking, *self.vectors) for word in key.split(".")}
        return next(iter(get_close_matches(pattern, sorted(words), 1, 0.75)), "")


def listed(found: Iterable[Grouped], shapes: Mapping[str, tuple[int, ...]], patterns: Iterable[str]) -> Listed:
    """Hold no-decay patterns against what a rule says of every key.

    A pattern is a part of a name, as in `any(part in name for part in no_decay)`; with `*`, `?` or `[` in it, it is
    matched against the whole name.

    Args:
        found: what the rule says.
        shapes: {key: shape}.
        patterns: the list.

    Raises:
        UsageError: an empty pattern, which is in every name.
    """
    groups, patterns = tuple(found), tuple(dict.fromkeys(patterns))
    if "" in patterns:
        raise UsageError("a no-decay pattern is empty, which is a part of every name: nothing would decay")
    matches = {p: tuple(g.key for g in groups if matched(p, g.key)) for p in patterns}
    caught = Listed(matches).caught
    left = [g.key for g in groups if not g.decays and g.key not in caught]
    return Listed(
        matches,
        tuple(key for key in left if len(shapes[key]) > 1),
        tuple(key for key in left if len(shapes[key]) <= 1),
        tuple(g.key for g in groups if g.decays and g.key in caught),
    )


def matched(pattern: str, key: str) -> bool:
    """Return whether a no-decay pattern takes in a key."""
    return fnmatchcase(key, pattern) if any(sign in pattern for sign in "*?[") else pattern in key


def _free(key: str, kind: str, shape: tuple[int, ...], rule: Preset) -> bool:
    head, _, word = kind.partition(".")
    if head == "norm" or key.endswith("bias"):
        return True
    if head in ("token", "position", *INSIDE):
        return bool({head, word} & rule.free) or (rule.vectors and len(shape) <= 1)
    return rule.vectors and (len(shape) <= 1 or head == "layer_scale")


def place_of(parts: Sequence[str], depth: int, number: Mapping[str, int] | None = None) -> tuple[str, int]:
    """Return (kind, layer) of a tensor by its canonical parts; `number` is that of each block, needed in stages alone.

    The kind is the role's first word, and for tokens which one: token.cls. Layer 0 is the embedding, block i is i + 1,
    what comes after the blocks is depth + 1.
    """
    if not parts:
        return "other", depth + 1
    name = parts[0]
    kind = _role(name).partition(".")[0]
    if name in _TOKENS:
        kind = f"token.{_TOKENS[name]}"
    layer = number_of(name, number) if number and name.startswith("stages.") else layer_of(name)
    if layer is not None and not name.startswith("decoder."):
        return kind, layer + 1
    return kind, 0 if name.startswith(("embed.", "rel_pos", "rope.")) else depth + 1


def role_in_words(parts: Sequence[str]) -> str:
    """Return the roles of a tensor's canonical parts: `attn.q.weight, attn.k.weight` for a joined one."""
    return ", ".join(dict.fromkeys(_role(name) for name in parts)) or "unknown"


def _role(name: str) -> str:
    try:
        return role_of(name)
    except LayoutError:
        return template_of(name)
