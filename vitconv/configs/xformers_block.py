"""One block configuration of xformers' factory, checked as strictly as the releases check it.

Source: facebookresearch/xformers xformers/factory/block_configs.py and xformers/components, v0.0.2 to v0.0.28.post3.
"""

from __future__ import annotations

from typing import Any

from vitconv.configs.activations import FROM_XFORMERS
from vitconv.configs.fields import Fields
from vitconv.configs.xformers_release import release_number
from vitconv.errors import BadFile, UsageError
from vitconv.record import dataclass

OLD_STYLE, NEW_STYLE = "layer_norm_style", "residual_norm_style"
_STYLES = ("pre", "post", "deepnorm")
_NEEDED = ("block_type", "dim_model", "multi_head_config", "feedforward_config")


@dataclass(frozen=True)
class Block:
    """What one configuration says.

    `epoch` is "fused" (0.0.11 and older) or "linear" (0.0.12 and newer) where its keys tell. Sizes are in elements;
    `positions` counts patches.
    """

    epoch: str | None
    style: str
    layers: int
    width: int
    heads: int
    mlp_width: int
    activation: str
    mlp: str
    mlp_dropout: float
    attention: str | None
    rotary: bool = False
    separate: bool = True
    use_triton: bool = True
    position: str | None = None
    positions: int | None = None
    patch: int | None = None
    channels: int | None = None
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def read_block(fields: Fields, nested: bool, release: str | None) -> Block:
    """Read one configuration; `nested`: it stood under `block_config`, as 0.0.1 to 0.0.7 want it.

    Raises:
        BadFile: a value of the wrong kind, or keys that no release reads together.
        UsageError: the release does not read these keys.
    """
    absent = [key for key in _NEEDED if key not in fields]
    if absent:
        raise BadFile(f"{fields.where}: {', '.join(absent)} missing, and xformers has no default for it")
    notes: list[str] = []
    refusals: list[str] = []
    epoch, style = _style(fields, nested, release, notes)
    if fields.text("block_type") != "encoder":
        refusals.append(f"{fields.where}: block_type {fields.raw['block_type']!r}: only encoders can be carried")
    if fields.flag("reversible", False):
        refusals.append(f"{fields.where}: reversible blocks have no counterpart")
    normalization = fields.text("normalization", "layernorm")
    if normalization == "skip":
        refusals.append(f"{fields.where}: normalization 'skip': blocks without norms have no counterpart")
    elif normalization != "layernorm":
        raise fields.wrong("normalization", "layernorm or skip")
    layers, width = fields.integer("num_layers", 1), fields.integer("dim_model")
    if fields.raw.get("simplicial_embeddings") and layers == 1:
        refusals.append(f"{fields.where}: simplicial embeddings have no counterpart")
    heads = fields.inner("multi_head_config")
    forward = fields.inner("feedforward_config")
    count = heads.integer("num_heads")
    if width % count:
        raise heads.wrong("num_heads", f"a divisor of dim_model {width}")
    position, positions = _position(fields, width, refusals)
    patch = fields.inner("patch_embedding_config")
    kernel = patch.integer("kernel_size") if patch.raw else None
    if kernel is not None and (patch.integer("stride") != kernel or patch.integer("padding", 0, least=0)):
        refusals.append(f"{patch.where}: patches that overlap or are padded have no counterpart")
    return Block(
        epoch=epoch,
        style=style,
        layers=layers,
        width=width,
        heads=count,
        **_forward(forward, width, notes, refusals),
        attention=_attention(heads, width, refusals),
        rotary=heads.flag("use_rotary_embeddings", False),
        # Before 0.0.12 the flag is without effect, and its default false.
        separate=epoch == "fused" or heads.flag("use_separate_proj_weight", True),
        use_triton=fields.flag("use_triton", True),
        position=position,
        positions=positions,
        patch=kernel,
        channels=patch.integer("in_channels") if patch.raw else None,
        notes=tuple(notes),
        refusals=tuple(refusals),
    )


def _style(fields: Fields, nested: bool, release: str | None, notes: list[str]) -> tuple[str | None, str]:
    """Return (epoch, style). A missing style is post: that is what every release builds then."""
    old, new = OLD_STYLE in fields, NEW_STYLE in fields
    number = None if release is None else release_number(release)
    if nested and new:
        # 0.0.1 to 0.0.7 ignored keys they did not know.
        notes.append(f"{fields.where}: {NEW_STYLE} is ignored by the releases that read block_config (0.0.1 to 0.0.7)")
        new = False
    elif number is not None and number < (8, 0) and new:
        notes.append(f"{fields.where}: {NEW_STYLE} is ignored by xformers {release}, whose key is {OLD_STYLE}")
        new = False
    elif old and new:
        raise BadFile(
            f"{fields.where}: {OLD_STYLE} (0.0.11 and older) and {NEW_STYLE} (0.0.12 and newer) in one block; "
            f"no release reads both"
        )
    elif number is not None and ((new and number < (12, 0)) or (old and number >= (12, 0))):
        wrong, right = (NEW_STYLE, OLD_STYLE) if new else (OLD_STYLE, NEW_STYLE)
        raise UsageError(f"{fields.where}: xformers {release} does not know {wrong}; its key is {right}")
    key = NEW_STYLE if new else OLD_STYLE
    if key not in fields:
        notes.append(f"{fields.where}: no {OLD_STYLE} or {NEW_STYLE}; every release builds post-norm then")
        return ("fused" if nested else "linear" if "normalization" in fields else None), "post"
    if key == OLD_STYLE and "normalization" in fields and not nested:
        raise BadFile(f"{fields.where}: normalization came with 0.0.12, which does not know {OLD_STYLE}")
    style = fields.text(key)
    if style not in _STYLES:
        raise fields.wrong(key, "pre, post or deepnorm")
    return ("linear" if new else "fused"), style


def _forward(forward: Fields, width: int, notes: list[str], refusals: list[str]) -> dict[str, Any]:
    name, activation = forward.text("name"), forward.text("activation")
    dropout = forward.number("dropout", least=0.0)
    if name not in ("MLP", "FusedMLP"):
        refusals.append(f"{forward.where}: {name!r} has no counterpart, only MLP and FusedMLP have")
    if activation not in FROM_XFORMERS:
        refusals.append(f"{forward.where}: activation {activation!r} has no name here")
    hidden = forward.integer("hidden_layer_multiplier") * width
    if name == "FusedMLP" and dropout > 0 and activation == "gelu" and max(hidden, width) > 512:
        notes.append(
            f"{forward.where}: with Triton, FusedMLP trains with the tanh form of GELU here and evaluates with the "
            f"exact one (0.0.11 to 0.0.26); older releases evaluate with the tanh form too"
        )
    return {"mlp": name, "activation": activation, "mlp_dropout": dropout, "mlp_width": hidden}


def _attention(heads: Fields, width: int, refusals: list[str]) -> str | None:
    attention = heads.inner("attention")
    name = attention.text("name")
    refusals += [
        f"{heads.where}: {key} other than dim_model has no counterpart"
        for key in ("dim_key", "dim_value")
        if heads.integer(key, width) != width
    ]
    if name != "scaled_dot_product":
        refusals.append(f"{attention.where}: {name!r} has no counterpart, and its weights look like softmax attention")
        return None
    return "causal" if attention.flag("causal", False) else "softmax"


def _position(fields: Fields, width: int, refusals: list[str]) -> tuple[str | None, int | None]:
    """Return (position, number of patches); None where positions are outside the factory."""
    encoding = fields.inner("position_encoding_config")
    if not encoding.raw:
        return None, None
    name = encoding.text("name")
    if encoding.integer("dim_model", width) != width:
        refusals.append(f"{encoding.where}: positions of another width are projected, which has no counterpart")
    if name == "learnable":
        return "learned", encoding.integer("seq_len")
    if name == "sine":
        return "sincos", None
    refusals.append(f"{encoding.where}: {name!r} has no counterpart")
    return None, None
