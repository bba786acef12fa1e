"""Parameter groups by role: which tensors decay, and which layer each belongs to for layer-wise learning rates.

Roles come from the canonical layout, so a rule holds in every dialect: no list of name parts has to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vitconv.errors import LayoutError, UsageError
from vitconv.layout.blocks import number_of, running
from vitconv.layout.canonical import layer_of, role_of, template_of
from vitconv.record import dataclass

# What decides is the canonical name of each part; `*` is every one of the kind.
_TOKENS: Mapping[str, str] = {"embed.cls": "cls", "embed.dist": "dist", "embed.reg": "reg", "embed.mask": "mask"}


@dataclass(frozen=True)
class Preset:
    """One repository's rule: which roles are free of weight decay beside biases and norms, and whether vectors are."""

    name: str
    title: str
    source: str
    free: frozenset[str]
    vectors: bool = True


_ALL = frozenset(("position", "cls", "dist", "reg", "mask", "token"))
PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset("role", "tokens, positions, norms, biases and LayerScale without decay", "vitconv", _ALL),
        Preset(
            "timm",
            "no_weight_decay of timm's VisionTransformer, and vectors",
            "huggingface/pytorch-image-models timm/models/vision_transformer.py, 1.0.31",
            frozenset(("position", "cls", "dist", "reg")),
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
    # In stages a block's layer is its running number.
    number = running(part for _, parts, _ in tensors for part in parts)
    depth = max(depth, len(number))
    for key, parts, shape in tensors:
        kind, layer = place_of(parts, depth, number)
        role = role_in_words(parts)
        scale = 1.0 if layer_decay is None else layer_decay ** (depth + 1 - layer)
        found.append(Grouped(key, role, not _free(key, kind, shape, rule), layer, scale))
    return found


def _free(key: str, kind: str, shape: tuple[int, ...], rule: Preset) -> bool:
    head, _, word = kind.partition(".")
    if head == "norm" or key.endswith("bias"):
        return True
    if head in ("token", "position"):
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
