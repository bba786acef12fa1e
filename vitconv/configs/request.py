"""What a configuration writer is given, what it answers, and the questions that all of them ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import isqrt
from types import MappingProxyType
from typing import Any

from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass


@dataclass(frozen=True)
class Request:
    """The network that was written, as its configuration writer needs it.

    Attributes:
        dialect: the dialect's name.
        sizes: {axis letter: size} of the tensors, with `i` for the depth.
        facts: what the weights do not say.
        names: canonical names of the tensors.
        keys: the names in the written file.
        extra: what a configuration beside the source said besides facts (labels, crop_pct, interpolation), and
            `dtype`, the safetensors name of the dtype written.
        options: the options of the dialect that were taken, {choice: option}.
        open: what facts that are not known may be, where the source's layout says so.
    """

    dialect: str
    sizes: Mapping[str, int]
    facts: Semantics
    names: frozenset[str]
    keys: frozenset[str]
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return True when the canonical tensor is there."""
        return name in self.names

    def in_block(self, name: str) -> bool:
        """Return True when the tensor is there in the first block."""
        return f"blocks.0.{name}" in self.names


@dataclass(frozen=True)
class Config:
    """Files to be written beside the weights: {name: JSON value}."""

    files: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def texts(self) -> dict[str, str]:
        """Return {file name: text}, as the libraries lay it out."""
        return {name: json.dumps(value, indent=2) + "\n" for name, value in self.files.items()}


@dataclass(frozen=True)
class Lacking:
    """Facts without which no configuration can be written, each with the option that states it."""

    facts: tuple[str, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def line(self) -> str:
        """Return one line that names the options which complete the configuration."""
        options = " ".join(f"--set {name}={self.hints.get(name, '...')}" for name in self.facts)
        said = f"left out, since the weights do not say {', '.join(self.facts)}; state them, as in {options}"
        return "; ".join([said, *self.remarks])

    def asked(self) -> str:
        """Return one line that asks a caller of Python for them."""
        said = f"the weights do not say {', '.join(self.facts)}; state them, as in {stated(self.facts, self.hints)}"
        return "; ".join([said, *self.remarks])


def stated(facts: Iterable[str], hints: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return how Python states these facts: `facts={"heads": N}`, with all usual values where they differ."""
    values = {name: hints.get(name, "...") for name in facts}
    said = [f'"{name}": {x if _NUMBER.fullmatch(x) else json.dumps(x)}' for name, x in values.items()]
    return f"facts={{{', '.join(said)}}}"


@dataclass(frozen=True)
class Inexpressible:
    """Reasons why the library's configuration cannot say what this network is."""

    reasons: tuple[str, ...]

    def line(self) -> str:
        """Return one line with the reasons."""
        return f"left out: {'; '.join(self.reasons)}"


# A number, some of them, or the place for one.
_NUMBER = re.compile(r"[\d.|e+-]+|N|\.\.\.")

Written = Config | Lacking | Inexpressible

# Where networks differ every usual value is shown: a single one would be copied for the answer.
_EXAMPLES: Mapping[str, str] = {
    "norm_placement": "pre|post|res-post",
    "norm_kind": "layernorm",
    "norm_eps": "1e-6|1e-5|1e-12",
    "final_norm_eps": "1e-6|1e-5|1e-12",
    "embed_norm_eps": "1e-6|1e-5",
    "qk_norm_eps": "1e-6|1e-5",
    "activation": "gelu|quick_gelu|gelu_tanh",
    "pooling": "token|avg",
    "position": "learned|rope",
    "residual_alpha": "2.2134",
    "grid": "14x14",
}


class Draft:
    """Collects, while a configuration is put together, what is lacking and what cannot be said."""

    def __init__(self, request: Request, library: str) -> None:
        self.request = request
        self.library = library
        self.lacking: dict[str, str] = {}
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.remarks: list[str] = []

    def need(self, name: str) -> Any:
        """Return a fact, or note that it is lacking and return None."""
        value = getattr(self.request.facts, name)
        if value is None:
            self.lacking[name] = _EXAMPLES.get(name, "...")
        return value

    def refuse(self, reason: str) -> None:
        """Note a reason why the library cannot express the network."""
        self.reasons.append(reason)

    def only(self, name: str, *allowed: Any, why: str, needed: bool = False) -> None:
        """Refuse a known fact that is not among `allowed`; an unknown one is lacking only if `needed`."""
        value = self.need(name) if needed else getattr(self.request.facts, name)
        if value is not None and value not in allowed:
            self.refuse(f"{name}={_text(value)}: {why}")

    def named(self, name: str, table: Mapping[str, str]) -> str:
        """Return the library's word for a needed fact."""
        value = self.need(name)
        if value is not None and value not in table:
            self.refuse(f"{name}={value}: {self.library} has no name for it")
        return table.get(value, "")

    def one_eps(self) -> float:
        """Return the eps that all norms share; norms with different eps are refused, unknown ones lacking."""
        request = self.request
        places = ["norm_eps"]
        if any(request.has(f"{n}.weight") for n in ("norm", "pool.norm", "trunk_norm")):
            places.append("final_norm_eps")
        if request.has("embed.norm.weight"):
            places.append("embed_norm_eps")
        if request.in_block("attn.q_norm.weight"):
            places.append("qk_norm_eps")
        values = {name: self.need(name) for name in places}
        if None not in values.values() and len(set(values.values())) > 1:
            said = ", ".join(f"{name}={value:g}" for name, value in values.items())
            self.refuse(f"{said}: a configuration of {self.library} states one eps for all norms")
        return float(values["norm_eps"] or 0.0)

    def biased(self, title: str, *heads: str) -> None:
        """Refuse heads and layer norms without a bias, which the library cannot build."""
        request = self.request
        absent = [f"{name}.bias" for name in heads if not request.has(f"{name}.bias")]
        if request.facts.norm_kind == "layernorm" and not request.in_block("norm1.bias"):
            absent.append("blocks.{i}.norm1.bias")
        if absent:
            self.refuse(f"{title} always has {', '.join(absent)}, this network does not")

    def norm_kind(self) -> str | None:
        """Return the kind of norm: the fact, else LayerNorm where the norms have a bias, which RMSNorm has not."""
        if self.request.facts.norm_kind is None and self.request.in_block("norm1.bias"):
            return "layernorm"
        kind: str | None = self.need("norm_kind")
        return kind

    def heads(self) -> int:
        """Return the head count, checked against the attention width."""
        heads, a = self.need("heads"), self.request.sizes.get("a", self.request.sizes["d"])
        if heads is None:
            self._guess_heads(a)
        if heads is not None and a % heads:
            self.refuse(f"heads={heads} does not divide the attention width {a}")
        scale = self.request.facts.attention_scale
        if heads is not None and scale is not None and abs(scale - (a / heads) ** -0.5) > 1e-6 * scale:
            self.refuse(f"attention_scale={scale:g}: {self.library} scales by 1/sqrt({a // heads})")
        return int(heads or 1)

    def _guess_heads(self, a: int) -> None:
        """Suggest a head count that divides the attention width; the usual width of 64 is said to be a guess."""
        self.lacking["heads"] = str(a // 64) if a % 64 == 0 else "N"
        divisors = ", ".join(str(n) for n in range(1, a + 1) if a % n == 0 and a // n > 1)
        usual = f"heads={a // 64} is a guess: {a} / 64, the usual width of a head"
        self.remarks.append(usual if a % 64 == 0 else f"heads divides {a}: one of {divisors}")

    def image_size(self) -> tuple[int, int]:
        """Return (height, width) in pixels: the fact, else the grid times the patch; never from a square count.

        A table of 16 positions is 4x4 or 2x8, so the count alone is only good for a suggestion.
        """
        facts, sizes = self.request.facts, self.request.sizes
        p, n = sizes["p"], sizes.get("n")
        q = sizes.get("q", p)
        size, grid = facts.image_size, facts.grid
        if size is None and grid is None:
            # A table of relative positions has (2 rows - 1)(2 columns - 1) rows.
            offsets = isqrt(sizes.get("l", 0))
            side = isqrt(n) if n else (offsets + 1) // 2
            square = side * side == n if n else offsets % 2 == 1 and offsets**2 == sizes["l"]
            self.lacking["grid"] = f"{side}x{side}" if square else "ROWSxCOLUMNS"
            return p, q
        if size is None:
            assert grid is not None
            size = (grid[0] * p, grid[1] * q)
        fits = (size[0] // p, size[1] // q)
        if grid is not None and grid != fits:
            self.refuse(f"grid={_text(grid)}, but image_size={_text(size)} makes it {_text(fits)}")
        elif n is not None and fits[0] * fits[1] != n:
            self.refuse(f"a grid of {_text(fits)} has {fits[0] * fits[1]} places, the position table {n}")
        return size

    def close(self, files: Mapping[str, Any]) -> Written:
        """Return the configuration, or why there is none."""
        if self.reasons:
            return Inexpressible(tuple(self.reasons))
        if self.lacking:
            return Lacking(tuple(self.lacking), dict(self.lacking), tuple(self.remarks))
        return Config(dict(files), tuple(self.notes))


def _text(value: Any) -> str:
    return (
        "x".join(map(str, value))
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else f"{value}"
    )
