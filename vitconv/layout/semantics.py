"""What the weights do not say: the facts that decide which function a set of tensors computes.

Every field is `None` while it is unknown; unknown is an honest value and is never replaced by a default in silence.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from vitconv.errors import UsageError
from vitconv.record import dataclass

CHOICES: Mapping[str, tuple[str, ...]] = {
    "norm_placement": ("pre", "post", "deepnorm", "res-post", "none"),
    "norm_kind": ("layernorm", "rmsnorm"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "squared_relu", "leaky_relu"),
    "pooling": ("token", "avg", "avg-prefix", "avg-unnormed", "map", "map-prefix", "first", "none"),
    "position": ("learned", "sincos", "rope", "relative", "none"),
    # The tables that vitconv.layout.sincos makes.
    "sincos_rule": ("mae", "moco-v3", "big-vision"),
    "position_resize": (
        "bicubic",
        "bicubic-antialias",
        "bicubic-offset",
        "bicubic-corners",
        "bilinear",
        "bilinear-antialias",
        "bilinear-corners",
        "nearest",
    ),
    # The focused ones are the formulations of vitconv.kernels.focused.variants; focused-linear leaves open which.
    "attention_precision": ("float64", "float32"),
    "rope_layout": ("half", "interleaved"),
    "rope_order": ("rows", "columns"),
    "rope_places": ("separate", "min", "max"),
    "rope_precision": ("float64", "float32", "float32-frequencies", "bfloat16"),
    "attention": (
        "softmax",
        "causal",
        "linear",
        "cosine",
        "focused-linear",
        "focused-original",
        "focused-original-unguarded",
        "focused-autocast-off",
        "focused-divided",
        "focused-simplified",
        "focused-upstream-fix",
        "focused-stable",
    ),
    "focused_eps_mode": ("sum", "mean"),
    # Whose windows they are where codebases part: see vitconv.layout.windows.
    "window_rule": ("microsoft", "timm", "torchvision", "transformers-v2", "mmseg"),
}
FOCUSED = tuple(name for name in CHOICES["attention"] if name.startswith("focused-"))


@dataclass(frozen=True)
class Semantics:
    """Facts about the function, each `None` when unknown.

    Sizes that tensors do state (width, depth, patch, classes) are not here; head count is, since plain ViT tensors
    do not hold it. `grid` and `image_size` are (height, width) in patches and pixels; `mean` and `std` are per input
    channel in the 0..1 range; eps values are those added to the variance. `stage_heads`, `window` and
    `pretrained_window` (0: none) are one number per stage, or one for all; `window` is the side in places of the map,
    its height where `window_width` says another width. `window_rule` says whose windows they are where codebases part:
    one window covers just one side of a map, or windows do not tile it. `sincos_rule` says which sines and cosines a
    network adds that stores no table of them. `pool_heads` are those of an attention-pooling head that has other than
    the blocks, `decoder_heads` those of a decoder of masked pre-training. `rope_order` is the side whose places turn
    the first half of a head, `rope_offset` the number of the first place, `rope_places` the length that places are
    divided by: each side of the grid its own, or the shorter or the longer for both. `rope_precision` and
    `attention_precision` are the dtypes that rotary positions, and logits with their softmax, are computed in, where it
    is not the stream's: some code rounds there whatever the network is in.
    """

    heads: int | None = None
    norm_placement: str | None = None
    residual_alpha: float | None = None
    norm_kind: str | None = None
    norm_eps: float | None = None
    final_norm_eps: float | None = None
    embed_norm_eps: float | None = None
    qk_norm_eps: float | None = None
    activation: str | None = None
    attention: str | None = None
    attention_scale: float | None = None
    attention_precision: str | None = None
    kv_normalised: bool | None = None
    pooling: str | None = None
    pool_heads: int | None = None
    decoder_heads: int | None = None
    position: str | None = None
    position_resize: str | None = None
    sincos_rule: str | None = None
    rope_theta: float | None = None
    rope_layout: str | None = None
    rope_order: str | None = None
    rope_offset: float | None = None
    rope_reference: tuple[int, int] | None = None
    rope_places: str | None = None
    rope_precision: str | None = None
    grid: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    stage_heads: tuple[int, ...] | None = None
    window: tuple[int, ...] | None = None
    window_width: tuple[int, ...] | None = None
    window_rule: str | None = None
    pretrained_window: tuple[int, ...] | None = None
    focusing_factor: float | None = None
    focused_eps: float | None = None
    focused_eps_mode: str | None = None
    mlp_dropout: float | None = None
    release: str | None = None

    def known(self) -> dict[str, Any]:
        """Return the facts that are known, in field order."""
        return {f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) is not None}

    def filled(self, other: Semantics | Mapping[str, Any]) -> Semantics:
        """Return a copy whose unknown facts are taken from `other`; known ones stay."""
        more = other.known() if isinstance(other, Semantics) else dict(other)
        return dataclasses.replace(self, **{k: v for k, v in more.items() if getattr(self, k) is None})

    def replaced(self, facts: Mapping[str, Any]) -> Semantics:
        """Return a copy with `facts` put in place of whatever was there."""
        return dataclasses.replace(self, **facts)

    def differences(self, other: Semantics) -> dict[str, tuple[Any, Any]]:
        """Return {fact: (here, there)} for every fact known on both sides and unequal."""
        here, there = self.known(), other.known()
        return {k: (here[k], there[k]) for k in here if k in there and not _equal(k, here[k], there[k])}

    def to_json(self) -> str:
        """Return the known facts as compact JSON, for a file's metadata."""
        return json.dumps(self.known(), separators=(",", ":"), sort_keys=True)


_PER_STAGE = ("stage_heads", "window", "window_width", "pretrained_window")


def _equal(fact: str, a: Any, b: Any) -> bool:
    """Say whether two values are the same; one number for all stages equals that number for each."""
    if fact in _PER_STAGE and 1 in (len(a), len(b)):
        return set(a) == set(b)
    return bool(a == b)


def semantics_from_json(text: str) -> Semantics:
    """Read facts written by `Semantics.to_json`.

    Raises:
        UsageError: the text is not a JSON object of known facts with values of the right kind.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"the facts in the metadata are not JSON: {e}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"the facts in the metadata are {type(raw).__name__}, expected a JSON object")
    return Semantics(**{name: fact_value(name, value) for name, value in raw.items()})


def parse_fact(text: str) -> tuple[str, Any]:
    """Read one `NAME=VALUE` as given to `--set`, such as `heads=12` or `grid=14x14`.

    Raises:
        UsageError: unknown name, or a value of the wrong kind.
    """
    name, eq, value = text.partition("=")
    if not eq:
        raise UsageError(f"--set {text}: expected NAME=VALUE, such as heads=12")
    return name.strip(), fact_value(name.strip(), value.strip())


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Semantics)


def fact_value(name: str, value: Any) -> Any:
    """Check and convert one value of the fact `name`, from text or from JSON."""
    hints = _hints()
    if name not in hints:
        raise UsageError(f"unknown fact {name!r}; known: {', '.join(hints)}")
    if value is None:
        return None
    kind = next(t for t in get_args(hints[name]) if t is not type(None))
    try:
        parsed = _convert(kind, value)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise UsageError(f"{name}={value!r}: expected {_describe(kind)}") from None
    if name in CHOICES and parsed not in CHOICES[name]:
        raise UsageError(f"{name}={value!r}: expected one of {', '.join(CHOICES[name])}")
    if (kind is int and parsed <= 0) or (name.endswith("eps") and parsed < 0):
        raise UsageError(f"{name}={value!r}: expected a positive number")
    if get_origin(kind) is tuple and int in get_args(kind) and min(parsed) < (name != "pretrained_window"):
        raise UsageError(f"{name}={value!r}: expected positive numbers")
    return parsed


def _convert(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if isinstance(value, (int, float)) and Ellipsis in inner:
            value = [value]
        items = value.lower().replace("x", ",").split(",") if isinstance(value, str) else list(value)
        if isinstance(items, list) and len(items) == 1 and len(inner) == 2 and Ellipsis not in inner:
            items = items * 2
        out = tuple(_convert(inner[0], v) for v in items)
        if Ellipsis not in inner and len(out) != len(inner):
            raise ValueError
        return out
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError
    if kind is int:
        if isinstance(value, float) and value != int(value):
            raise ValueError
        return int(value)
    if kind is float:
        parsed = float(value)
        if parsed != parsed or parsed in (float("inf"), float("-inf")):
            raise ValueError
        return parsed
    if not isinstance(value, str):
        raise TypeError
    return value


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "two numbers, as 14x14" if Ellipsis not in get_args(kind) else "numbers separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}[kind]
