"""Read the factory's configuration, in the schema of either epoch, as strictly as the release did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.vit.xformers_style.release import Release

Raw = Mapping[str, Any]

_HEAD_KEYS = frozenset(
    {
        "dim_model",
        "num_heads",
        "attention",
        "bias",
        "residual_dropout",
        "dim_key",
        "dim_value",
        "in_proj_container",
        "use_separate_proj_weight",
        "use_rotary_embeddings",
        "out_proj",
    }
)
_MLP_KEYS = frozenset({"name", "dim_model", "dropout", "activation", "hidden_layer_multiplier"})
_ATTENTION_KEYS = frozenset(
    {"name", "dropout", "causal", "seq_len", "to_seq_len", "num_heads", "dim_model", "dim_features"}
)
_POSITION_KEYS = frozenset({"name", "dim_model", "seq_len", "add_class_token"})
_PATCH_KEYS = frozenset({"in_channels", "out_channels", "kernel_size", "stride", "padding", "pool_type"})


@dataclass(frozen=True)
class Position:
    """A position encoding: `learnable` or `sine`; `length` counts patches, `width` is its own width."""

    kind: str
    width: int
    length: int = 0
    cls: bool = False


@dataclass(frozen=True)
class Patch:
    """A patch embedding: a convolution from `channels` to `width`, sizes in pixels."""

    channels: int
    width: int
    kernel: int
    stride: int
    padding: int = 0


@dataclass(frozen=True)
class BlockConfig:
    """One configuration of the stack: `layers` equal blocks.

    `bias` is that of (query, key, value, output). Dropout rates are probabilities. `separate` False shares
    one weight between query, key and value.
    """

    width: int
    layers: int
    style: str
    heads: int
    mlp: str
    mlp_width: int
    activation: str
    mlp_dropout: float = 0.0
    mlp_bias: bool = True
    normalise: bool = True
    use_triton: bool = True
    bias: tuple[bool, bool, bool, bool] = (True, True, True, True)
    separate: bool = True
    rotary: bool = False
    causal: bool = False
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    position: Position | None = None
    patch: Patch | None = None


@dataclass(frozen=True)
class Stack:
    """The configurations in order, and the keys that the release drops without a word."""

    blocks: tuple[BlockConfig, ...]
    ignored: tuple[str, ...] = ()


def read_stack(raw: Raw | Sequence[Raw], release: Release, *, refuse_ignored: bool = False) -> Stack:
    """Read one block, a list, a dict of blocks, or either inside `block_config` or `stack_configs`.

    Keys are judged as the release judges them: an unknown key of a block is an error since 0.0.8, and
    dropped before (a `residual_norm_style: pre` then gives a post-norm network). With `refuse_ignored` a
    dropped key is refused.

    Raises:
        UsageError: what the release answers with an error.
        Refused: what the twin does not build (decoders, reversible, other attentions and feedforwards), or
        dropped keys.
    """
    ignored: list[str] = []
    blocks = tuple(_block(dict(entry), release, ignored, f"config {i}") for i, entry in enumerate(_entries(raw)))
    if not blocks:
        raise UsageError("the configuration holds no block")
    deep = [b.style == "deepnorm" for b in blocks]
    if any(deep) and not all(deep):
        raise UsageError("either all configurations are deepnorm or none, says xformers")
    if refuse_ignored and ignored:
        raise Refused(f"xformers {release.text} drops these keys without a word: {', '.join(ignored)}")
    return Stack(blocks, tuple(ignored))


def _entries(raw: Raw | Sequence[Raw]) -> Iterator[Raw]:
    if isinstance(raw, Mapping):
        if "stack_configs" in raw:
            yield from _entries(raw["stack_configs"])
        elif "block_config" in raw:
            # 0.0.1 to 0.0.7: {reversible, block_config: {...}}
            yield {**{k: v for k, v in raw.items() if k != "block_config"}, **raw["block_config"]}
        elif "block_type" in raw or "dim_model" in raw:
            yield _instantiated(raw)
        else:
            for name, value in raw.items():
                if name != "_target_":
                    yield from _entries(value)
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        for value in raw:
            yield from _entries(value)
    else:
        raise UsageError(f"a configuration is a mapping or a list of them, found {type(raw).__name__}")


def _instantiated(raw: Raw) -> Raw:
    """Take off what Hydra instantiates a block by: `_target_` names the class, and so the block type."""
    target = str(raw.get("_target_", ""))
    kind = "encoder" if target.endswith(".xFormerEncoderConfig") else "decoder"
    if not target.endswith((".xFormerEncoderConfig", ".xFormerDecoderConfig")):
        return raw
    return {"block_type": kind, **{k: v for k, v in raw.items() if k != "_target_"}}


def _block(raw: dict[str, Any], release: Release, ignored: list[str], where: str) -> BlockConfig:
    unknown = sorted(set(raw) - release.block_keys)
    if unknown and release.strict:
        hint = f"; its key of the style is {release.style_key}" if any("norm_style" in k for k in unknown) else ""
        raise UsageError(f"{where}: xformers {release.text} does not know {', '.join(unknown)} (TypeError){hint}")
    ignored += [f"{where}.{key}" for key in unknown]
    raw = {key: value for key, value in raw.items() if key not in unknown}
    kind = _need(raw, "block_type", where)
    if kind != "encoder":
        raise Refused(f"{where}: block_type {kind!r}: only encoders are built")
    if raw.get("reversible"):
        raise Refused(f"{where}: reversible blocks are not built")
    if raw.get("simplicial_embeddings") and raw.get("num_layers", 1) == 1:
        raise Refused(f"{where}: simplicial embeddings are not built")
    width = int(_need(raw, "dim_model", where))
    style = raw.get(release.style_key) or "post"
    if style not in release.styles:
        raise UsageError(
            f"{where}: {release.style_key}={style!r}: xformers {release.text} has {', '.join(release.styles)}"
        )
    normalization = raw.get("normalization") or "layernorm"
    if normalization not in ("layernorm", "skip"):
        raise UsageError(f"{where}: normalization={normalization!r}: expected layernorm or skip")
    return BlockConfig(
        width=width,
        layers=int(raw.get("num_layers", 1)),
        style=style,
        normalise=normalization == "layernorm",
        use_triton=bool(raw.get("use_triton", True)),
        position=_position(raw.get("position_encoding_config"), width, release, ignored, where),
        patch=_patch(raw.get("patch_embedding_config"), width, where),
        **_heads(dict(_need(raw, "multi_head_config", where)), width, release, ignored, where),
        **_mlp(dict(_need(raw, "feedforward_config", where)), width, release, ignored, where),
    )


def _heads(raw: dict[str, Any], width: int, release: Release, ignored: list[str], where: str) -> dict[str, Any]:
    where = f"{where}.multi_head_config"
    unknown = sorted(set(raw) - _HEAD_KEYS)
    if unknown:
        raise UsageError(f"{where}: xformers {release.text} does not know {', '.join(unknown)} (TypeError)")
    separate = raw.get("use_separate_proj_weight")
    if release.dim_value_ignored(bool(separate)) and raw.get("dim_value") not in (None, width):
        ignored.append(f"{where}.dim_value")
        del raw["dim_value"]
    refused = [k for k in ("dim_key", "dim_value") if raw.get(k) not in (None, width)]
    if "dim_key" in refused and release.fused_projection:
        raise UsageError(f"{where}: xformers {release.text} has no dim_key other than dim_model (AssertionError)")
    refused += [k for k in ("in_proj_container", "out_proj") if raw.get(k) is not None]
    if refused or raw.get("dim_model", width) != width:
        raise Refused(f"{where}: {', '.join(refused) or 'dim_model'} other than the width {width} is not built")
    attention = dict(_need(raw, "attention", where))
    if _need(attention, "name", where) != "scaled_dot_product":
        raise Refused(f"{where}: attention {attention['name']!r} is not built, only scaled_dot_product is")
    causal = bool(attention.get("causal"))
    if causal and not release.causal_by_length:
        raise Refused(
            f"{where}: causal attention of xformers {release.text} is not built: up to 0.0.5 it depends on seq_len and "
            f"on Triton"
        )
    ignored += [f"{where}.attention.{k}" for k in sorted(set(attention) - _ATTENTION_KEYS)]
    heads = int(_need(raw, "num_heads", where))
    if width % heads:
        raise UsageError(f"{where}: num_heads={heads} does not divide dim_model={width}")
    dropout = (
        _need(raw, "residual_dropout", where) if release.residual_dropout_required else raw.get("residual_dropout")
    )
    bias = raw.get("bias")
    bias = True if bias is None else bias
    if release.fused_projection or isinstance(bias, bool):
        # The fused epoch takes the truth of whatever is given; later releases broadcast a single value.
        bias = (bool(bias),) * 4
    if len(bias) != 4:
        raise UsageError(f"{where}: bias={bias}: expected (query, key, value, output)")
    return {
        "heads": heads,
        "bias": tuple(bool(b) for b in bias),
        # Before 0.0.12 the flag has no effect: three slices of one weight, whatever it says.
        "separate": True if release.fused_projection or separate is None else bool(separate),
        "rotary": bool(raw.get("use_rotary_embeddings")),
        "causal": causal,
        "residual_dropout": float(dropout or 0.0),
        "attention_dropout": float(attention.get("dropout") or 0.0),
    }


def _mlp(raw: dict[str, Any], width: int, release: Release, ignored: list[str], where: str) -> dict[str, Any]:
    where = f"{where}.feedforward_config"
    name = _need(raw, "name", where)
    if name not in ("MLP", "FusedMLP"):
        raise Refused(f"{where}: {name!r}: only MLP and FusedMLP are built")
    if name == "FusedMLP" and release.fused_mlp is None:
        raise UsageError(f"{where}: xformers {release.text} has no FusedMLP any more (KeyError)")
    activation = _need(raw, "activation", where)
    if activation not in release.activations:
        have = ", ".join(release.activations)
        raise UsageError(f"{where}: activation={activation!r}: xformers {release.text} has {have}")
    heeded = _MLP_KEYS | ({"bias"} if name == "MLP" and release.mlp_bias_heeded else set())
    ignored += [f"{where}.{k}" for k in sorted(set(raw) - heeded)]
    if raw.get("dim_model", width) != width:
        raise Refused(f"{where}: dim_model={raw['dim_model']} other than the width {width} is not built")
    bias = raw.get("bias") if "bias" in heeded else None
    multiplier = _need(raw, "hidden_layer_multiplier", where)
    if not isinstance(multiplier, int):
        raise UsageError(
            f"{where}: hidden_layer_multiplier={multiplier!r}: expected a whole number such as 4; xformers gives its "
            f"product with dim_model to nn.Linear as it is (TypeError)"
        )
    return {
        "mlp": name,
        "mlp_width": multiplier * width,
        "activation": activation,
        "mlp_dropout": float(_need(raw, "dropout", where)),
        "mlp_bias": True if bias is None else bool(bias),
    }


def _position(raw: Raw | None, width: int, release: Release, ignored: list[str], where: str) -> Position | None:
    if raw is None:
        return None
    where = f"{where}.position_encoding_config"
    name = _need(raw, "name", where)
    if name == "learnable" and not release.learnable_position:
        raise UsageError(f"{where}: xformers {release.text} has no learnable positions yet, 0.0.11 has (KeyError)")
    if name not in ("learnable", "sine"):
        raise Refused(f"{where}: {name!r} is not built, only learnable and sine are")
    ignored += [f"{where}.{k}" for k in sorted(set(raw) - _POSITION_KEYS)]
    own = int(raw.get("dim_model", width))
    if own != width and not release.learnable_position:
        raise Refused(f"{where}: dim_model={own} other than the width {width} is not built")
    length = int(_need(raw, "seq_len", where)) if name == "learnable" else 0
    return Position(name, own, length, bool(raw.get("add_class_token")))


def _patch(raw: Raw | None, width: int, where: str) -> Patch | None:
    if raw is None:
        return None
    where = f"{where}.patch_embedding_config"
    unknown = sorted(set(raw) - _PATCH_KEYS)
    if unknown:
        raise UsageError(f"{where}: xformers does not know {', '.join(unknown)} (TypeError)")
    pool = raw.get("pool_type") or "CONV_2D"
    if pool != "CONV_2D":
        raise UsageError(f"{where}: pool_type={pool!r}: expected CONV_2D, xformers makes no other")
    kernel, stride, channels = (int(_need(raw, k, where)) for k in ("kernel_size", "stride", "in_channels"))
    return Patch(channels, int(raw.get("out_channels", width)), kernel, stride, int(raw.get("padding", 0)))


def _need(raw: Raw, key: str, where: str) -> Any:
    if raw.get(key) is None:
        raise UsageError(f"{where}: {key} is missing, and xformers has no default for it")
    return raw[key]
