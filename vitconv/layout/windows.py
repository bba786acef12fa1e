"""The sides of windows: of stage-wise networks, from tables of offsets or of places, and from what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from vitconv.layout.canonical_stages import depths_of

Block = tuple[int, int]
Window = tuple[int, int]
# (height, width) as they are told, None where nothing is.
Told = tuple[int | None, int | None]


def windows_of(names: Mapping[str, tuple[int, ...]], facts: Mapping[str, Any]) -> dict[Block, Window]:
    """Return {(stage, block): (height, width) of its window}, from its tables, else from the facts.

    Blocks are left out of which nothing says both sides.
    """
    depths = depths_of(dict(names))
    told, maps = told_windows(facts, len(depths)), maps_of(names, facts)
    out = {}
    for s, depth in enumerate(depths):
        for i in range(depth):
            at = f"stages.{s}.blocks.{i}.attn."
            if f"{at}table" in names:
                found = of_offsets(names[f"{at}table"][0], told[s], maps.get(s))
            elif f"{at}pos" in names:
                found = of_places(names[f"{at}pos"][0], told[s], maps.get(s))
            else:
                found = square(told[s])
            if found is not None:
                out[s, i] = found
    return out


def told_windows(facts: Mapping[str, Any], stages: int) -> list[Told]:
    """Return what the facts `window` and `window_width` say of every stage."""
    high, wide = (per_stage(facts.get(name), stages) for name in ("window", "window_width"))
    return [(high.get(s), wide.get(s)) for s in range(stages)]


def square(told: Told) -> Window | None:
    """Return the window that is told; one side means a square."""
    one = told[0] or told[1]
    return None if one is None else (told[0] or one, told[1] or one)


def of_offsets(rows: int, told: Told = (None, None), grid: tuple[int, int] | None = None) -> Window | None:
    """Return the window whose table of offsets has (2 height - 1) (2 width - 1) rows."""
    high, wide = (None if n is None else 2 * n - 1 for n in told)
    odd = _sides(rows, high, wide, step=2)
    return _one([((a + 1) // 2, (b + 1) // 2) for a, b in odd], grid)


def of_places(places: int, told: Told = (None, None), grid: tuple[int, int] | None = None) -> Window | None:
    """Return the window of height x width places."""
    return _one(_sides(places, *told, step=1), grid)


def ways(rows: int) -> list[Window]:
    """Return every window whose table of offsets has this many rows."""
    return [((a + 1) // 2, (b + 1) // 2) for a, b in _factors(rows) if a % 2 and b % 2]


def _sides(product: int, high: int | None, wide: int | None, step: int) -> list[Window]:
    """Return the pairs of sides in question: as told, else a square, else with the one side told, else all."""
    if high is not None and wide is not None and high * wide == product:
        return [(high, wide)]
    side = isqrt(product)
    if side * side == product and side % step == step - 1:
        return [(side, side)]
    if high is not None and product % high == 0:
        return [(high, product // high)]
    if wide is not None and product % wide == 0:
        return [(product // wide, wide)]
    return [(a, b) for a, b in _factors(product) if a % step == b % step == step - 1]


def _factors(product: int) -> list[tuple[int, int]]:
    """Return every (a, b) with a b = product, by a."""
    low = [n for n in range(1, isqrt(product) + 1) if product % n == 0]
    return sorted({pair for n in low for pair in ((n, product // n), (product // n, n))})


def _one(found: list[Window], grid: tuple[int, int] | None) -> Window | None:
    """Return the only window, or the only one that the map has room for."""
    if len(found) > 1 and grid is not None:
        found = [w for w in found if w[0] <= grid[0] and w[1] <= grid[1]]
    return found[0] if len(found) == 1 else None


def maps_of(names: Mapping[str, tuple[int, ...]], facts: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return {stage: (rows, columns)} of the feature maps of a known image size, halved from stage to stage."""
    size, patch = facts.get("image_size"), names.get("embed.patch.weight")
    if size is None or patch is None:
        return {}
    step = patch_stride(names)
    rows, columns = -(-size[0] // step[0]), -(-size[1] // step[1])
    return {s: (-(-rows // 2**s), -(-columns // 2**s)) for s in range(len(depths_of(dict(names))))}


def patch_stride(names: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Return the stride of the patch projection: its width, or 4 where patches overlap (PVTv2, CSwin: 7 wide)."""
    high, wide = names["embed.patch.weight"][2:]
    return (4, 4) if overlap(names, high) else (high, wide)


def overlap(names: Mapping[str, tuple[int, ...]], kernel: int) -> bool:
    """Say whether a convolution of this width is of patches that overlap: an odd one, and no Swin's or PVT's."""
    return kernel > 1 and kernel % 2 == 1 and "stages.1.patch.weight" in names and "stages.0.pos" not in names


def shifts(window: Window, block: int, grid: tuple[int, int]) -> bool:
    """Say whether Microsoft's code shifts the windows of a block: every second, unless one window covers a side."""
    return block % 2 == 1 and min(window) > 1 and shift_of(window, grid, "microsoft") != (0, 0)


RULES = ("microsoft", "timm", "torchvision", "transformers-v2", "mmseg")
# Of dense prediction: it alone shifts where one window covers the whole map, as in most last stages.
ALWAYS = "mmseg"


def shift_of(window: Window, grid: tuple[int, int], rule: str) -> tuple[int, int]:
    """Return by how much the shifted windows of a map are shifted, by the rule of a codebase.

    `microsoft` (transformers' Swin and mmpretrain too) shifts along both sides, or not at all where one window covers a
    side; `timm` and `torchvision` shift along every side that has several windows; `transformers-v2` (its Swin V2)
    shifts along both sides where the map is higher than a window, however wide it is; `mmseg` (mmdetection, Microsoft's
    own code for detection and segmentation, and mmpretrain with `pad_small_map`) shifts along both sides of any map.
    """
    if rule == ALWAYS:
        return window[0] // 2, window[1] // 2
    several = tuple(n > w for n, w in zip(grid, window, strict=True))
    if rule == "microsoft":
        several = (all(several),) * 2
    elif rule == "transformers-v2":
        several = (several[0],) * 2
    return (window[0] // 2 if several[0] else 0, window[1] // 2 if several[1] else 0)


def padded(window: Window, grid: tuple[int, int]) -> bool:
    """Say whether zeros that make the windows tile a map lie along a side that is shifted.

    transformers, torchvision and mmseg put them there before the shift, timm after it; Microsoft's code has none.
    """
    shift = shift_of(window, grid, "timm")
    return any(by and n % w for by, n, w in zip(shift, grid, window, strict=True))


def part(window: Window, grid: tuple[int, int], one: str, two: str) -> bool:
    """Say whether two codebases lay out shifted windows on this map in different ways."""
    behind = [rule == "timm" for rule in (one, two)]
    return shift_of(window, grid, one) != shift_of(window, grid, two) or (
        padded(window, grid) and behind[0] != behind[1]
    )


def contested(window: Window, grid: tuple[int, int]) -> bool:
    """Say whether codebases of classification lay out shifted windows on this map in different ways."""
    return any(part(window, grid, RULES[0], rule) for rule in RULES if rule != ALWAYS)


def per_stage(values: Any, stages: int) -> dict[int, int]:
    """Return {stage: number} of a fact that has one number, or one for each stage."""
    if values is None:
        return {}
    return dict(enumerate(values * stages if len(values) == 1 else values))
