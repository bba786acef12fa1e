"""Turn softmax attention into focused linear attention: the start of a FLatten twin, not its equal.

What both have travels as it is; what FLatten adds is made up as its code initialises it. Source:
LeapLabTHU/FLatten-Transformer, models/flatten_swin.py and flatten_pvt.py, a7f0a4b.
"""

from __future__ import annotations

import re
from math import isqrt
from typing import Any
from zlib import crc32

from vitconv.errors import Refused, UsageError
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.edits.edit import Edit, Param, Values, choice, count, sized
from vitconv.layout.edits.focus_plain import focus_plain, joined_stripes
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Made, Network
from vitconv.layout.windows import maps_of, windows_of

Block = tuple[int, int]
_ASKED = "--edit focus-attention"


def _types(text: str) -> str:
    if not re.fullmatch(r"[LSM]+\d*", text) or ("M" in text) != text[-1:].isdigit():
        raise ValueError("one letter per stage, L or S, or M with a number of blocks at the end, as LLSS or MMSS2")
    return text


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a whole number")
    return int(text)


def _power(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise ValueError("a number above zero")
    return value


def _apply(network: Network, values: Values) -> Network:
    names = network.shapes
    depths = depths_of(names)
    if not depths:
        return focus_plain(network, values)
    if any(n.endswith(".logit_scale") for n in names):
        raise Refused("--edit focus-attention: FLatten has no twin of Swin V2, whose attention is by cosines")
    blocks = _chosen(depths, values.get("types", "L" * len(depths)))
    taken = [(s, i) for s, i in blocks if any(f"stages.{s}.blocks.{i}.attn.{b}scale" in names for b in ("", "b0."))]
    if taken or not blocks:
        raise UsageError(
            "--edit focus-attention: " + ("these blocks are focused already" if taken else "no block is to be")
        )
    swin = any(n.endswith(".attn.table") for n in names)
    gone = _left(names, blocks, values.get("sr", "keep"))
    new: dict[str, Made] = {}
    joined: dict[str, Made] = {}
    for s, i in blocks:
        tokens = _tokens(network, s, i, values, swin=swin, reduced=gone)
        new |= _parameters(network, s, i, tokens, values)
        joined |= joined_stripes(network, f"stages.{s}.blocks.{i}.attn.")
    out = network
    for name, made in (joined | new).items():
        out = out.with_made(name, made)
    out = out.without(gone)
    facts: dict[str, Any] = {"attention": "focused-upstream-fix", "focusing_factor": values.get("power", 3.0)}
    if not swin and any(n.endswith(".cls") for n in gone):
        facts["pooling"] = "avg-unnormed"
    what = _said(names, blocks, gone, new, values)
    adjoint = "the same permutation for what is carried, none for what is new"
    return sized(out, facts).noted(Applied("focus-attention", what, False, tuple(gone), tuple(new), adjoint))


def _chosen(depths: tuple[int, ...], types: str) -> list[Block]:
    letters, number = types.rstrip("0123456789"), types[len(types.rstrip("0123456789")) :]
    if len(letters) != len(depths):
        raise UsageError(
            f"--edit focus-attention: types={types} speaks of {len(letters)} stages, there are {len(depths)}"
        )
    first = {"L": 1 << 30, "S": 0, "M": int(number or 0)}
    return [(s, i) for s, depth in enumerate(depths) for i in range(depth) if i < first[letters[s]]]


def _left(names: dict[str, tuple[int, ...]], blocks: list[Block], sr: str) -> list[str]:
    """Return the tensors that the twin has no place for."""
    gone = []
    for s, i in blocks:
        at = f"stages.{s}.blocks.{i}.attn."
        parts = ["table"] + (["sr.weight", "sr.bias", "sr_norm.weight", "sr_norm.bias"] if sr == "none" else [])
        # The second stripes' channels are behind those of the first, in one branch.
        parts += ["b1.lepe.weight", "b1.lepe.bias"]
        gone += [at + p for p in parts if at + p in names]
    return gone + [n for n in names if re.fullmatch(r"stages\.\d+\.(cls|pos_cls)", n)]


def _tokens(network: Network, s: int, i: int, values: Values, *, swin: bool, reduced: list[str]) -> int:
    """Return how many keys a block has, which is the length of its position table."""
    names, facts = network.shapes, {**network.open, **network.facts.known()}
    grid = maps_of(names, facts).get(s)
    if swin:
        before = windows_of(names, facts).get((s, i))
        if before is None:
            raise Refused("--edit focus-attention: the sides of the windows are not known; say --set window=7")
        side: int | None = values.get("window")
        if grid is None and side is not None and before != (side, side):
            raise Refused(
                "--edit focus-attention: a window is cut to the feature map, whose size is not known; say it with"
                " --set image_size=224x224"
            )
        if side is None:
            return min(before[0], (grid or before)[0]) * min(before[1], (grid or before)[1])
        return min(side, *(grid or (side,))) ** 2
    if grid is None and f"stages.{s}.pos" in names:
        side = isqrt(names[f"stages.{s}.pos"][0])
        grid = (side, side)
    if grid is None:
        raise Refused("--edit focus-attention: the size of the feature maps is not known; say --set image_size=224x224")
    kernel = names.get(f"stages.{s}.blocks.{i}.attn.sr.weight")
    kept = kernel is not None and f"stages.{s}.blocks.{i}.attn.sr.weight" not in reduced
    if kernel and kept and kernel[2] == 1:
        # PVTv2's linear form averages to 7 x 7 whatever the map.
        return 49
    ratio = kernel[2] if kernel and kept else 1
    return (grid[0] // ratio) * (grid[1] // ratio)


def _parameters(network: Network, s: int, i: int, tokens: int, values: Values) -> dict[str, Made]:
    at = f"stages.{s}.blocks.{i}.attn."
    query = network.cells[f"{at}q.weight"]
    at += "b0." if f"{at}b0.lepe.weight" in network.cells else ""
    a, dtype, kernel = query.shape[0], query.dtype, values.get("kernel", 5)
    heads = _heads(network, s, i)
    if a % heads or kernel % 2 == 0:
        raise UsageError(f"--edit focus-attention: {heads} heads and a kernel of {kernel} do not fit a width of {a}")
    bound, seed = kernel**-1.0, values.get("seed", 0)
    return {
        f"{at}scale": _constant((a,), dtype),
        f"{at}pos": _constant((tokens, a), dtype),
        f"{at}dwc.weight": _uniform(f"{at}dwc.weight", (a // heads, kernel, kernel), bound, seed, dtype),
        f"{at}dwc.bias": _uniform(f"{at}dwc.bias", (a // heads,), bound, seed, dtype),
    }


def _heads(network: Network, s: int, i: int) -> int:
    table = network.shapes.get(f"stages.{s}.blocks.{i}.attn.table")
    told = network.facts.stage_heads
    if table is None and told is None:
        raise Refused("--edit focus-attention: the heads are not in the tensors; say --set stage_heads=1,2,5,8")
    return table[1] if table else told[s] if told and len(told) > 1 else (told or (1,))[0]


def _constant(shape: tuple[int, ...], dtype: str) -> Made:
    def compute(_: Any) -> Any:
        import numpy as np

        return np.zeros(shape, np.float64 if dtype == "F64" else np.float32)

    return Made("new: zeros", (), shape, dtype, compute)


def _uniform(name: str, shape: tuple[int, ...], bound: float, seed: int, dtype: str) -> Made:
    """Draw as torch initialises a depthwise convolution: uniform within one over the root of its kernel's size."""

    def compute(_: Any) -> Any:
        import numpy as np

        # A seed for each name, so that another choice of blocks draws the same where both are new.
        rng = np.random.default_rng([seed, crc32(name.encode())])
        return rng.uniform(-bound, bound, shape).astype(np.float64 if dtype == "F64" else np.float32)

    return Made(f"new: uniform in +-{bound:.3g}", (), shape, dtype, compute)


def _said(
    names: dict[str, tuple[int, ...]], blocks: list[Block], gone: list[str], new: dict[str, Made], values: Values
) -> str:
    def numel(shape: tuple[int, ...]) -> int:
        n = 1
        for x in shape:
            n *= x
        return n

    left = [n for n in gone if ".lepe." not in n]
    carried = {n: s for n, s in names.items() if n not in left}
    kept, total = sum(map(numel, carried.values())), sum(map(numel, carried.values()))
    total += sum(numel(m.shape) for m in new.values())
    kernel = values.get("kernel", 5)
    where = ", ".join(collapse(f"stages.{s}.blocks.{i}" for s, i in blocks))
    drawn = f"a {kernel}x{kernel} depthwise filter and its bias uniform in +-1/{kernel} (seed {values.get('seed', 0)})"
    share = f"{100 * kept / total:.2f} % of the twin's parameters"
    parts = [
        f"focused linear attention in {len(blocks)} blocks ({where})",
        f"{len(carried)} tensors are carried as they are ({share})",
        f"new are {len(new)}: scale and position table zero, {drawn}, as FLatten initialises them",
    ]
    if len(left) < len(gone):
        parts.append("the two stripes' positional convolutions are one over the whole map, channels in order")
    if left:
        parts.append(f"left out are {', '.join(collapse(left))}")
    return "; ".join([*parts, "a warm start for training, not the same function"])


FOCUS_ATTENTION = Edit(
    name="focus-attention",
    title="turn softmax attention of Swin, PVT, CSwin or a plain ViT into focused linear attention, a warm start",
    exact="no: another attention, which is to be trained",
    adjoint="the same permutation for what is carried, none for what is new",
    params=(
        Param("types", "one letter per stage: L focused, S softmax, M first blocks focused", _types, otherwise="all L"),
        Param("window", "side of the focused windows of Swin, cut to the feature map", count, otherwise="as before"),
        Param("kernel", "side of the depthwise filter", count, otherwise="5"),
        Param("sr", "PVT: keep the spatial reduction, or none", choice("keep", "none"), otherwise="keep"),
        Param("power", "the focusing factor", _power, otherwise="3"),
        Param("seed", "of what is drawn", _seed, otherwise="0"),
    ),
    apply=_apply,
    bare="types",
    example="focus-attention:types=LLSS",
)
