"""What the tensors of a stage-wise network prove: heads and windows of every stage, and what its buffers tell."""

from __future__ import annotations

from math import isqrt
from typing import Any

from vitconv.errors import Refused
from vitconv.io.envelope import Branch
from vitconv.io.source import Checkpoint
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics


def proven_by_stages(
    match: Match, facts: Semantics, checkpoint: Checkpoint, branch: Branch
) -> tuple[Semantics, list[str]]:
    """Fill in heads, windows, image size and the window of pre-training, where tensors and buffers hold them.

    Raises:
        Refused: something else was told.
    """
    depths = depths_of([name for b in match.bound for name in b.parts])
    found: dict[str, tuple[int, ...]] = {}
    heads = tuple(_heads(match, s) for s in range(len(depths)))
    if all(heads):
        found["stage_heads"] = heads
    windows = _windows(match, depths)
    if windows:
        found["window"] = windows
    pretrained = _pretrained(match, depths, checkpoint, branch)
    if pretrained is not None:
        found["pretrained_window"] = pretrained
    notes = []
    size = _image_size(match, windows)
    if size is not None and facts.image_size not in (None, size):
        # Masks follow from the size of the images and are made anew.
        notes.append(f"masks of shifted windows for images of {_by(size)} are compared and left, not carried")
    elif size is not None:
        found["image_size"] = size
    for name, value in found.items():
        told = getattr(facts, name)
        if told is not None and told != value and not (len(told) == 1 and set(value) == set(told)):
            raise Refused(f"the tensors have {name}={_say(value)}, but {name}={_say(told)} was said")
    new = {name: value for name, value in found.items() if getattr(facts, name) is None}
    notes += [f"{name}: {_say(value)}, which the tensors hold" for name, value in new.items()]
    facts = facts.filled(new)
    return facts, [*notes, *_clipped(match, facts)]


def _clipped(match: Match, facts: Semantics) -> list[str]:
    """Return a note on stages whose windows are larger than their feature map."""
    sizes, windows = match.sizes, facts.window
    if not facts.image_size or not windows or "p" not in sizes:
        return []
    stages = depths_of([name for b in match.bound for name in b.parts])
    rows, columns = (n // sizes.get(a, sizes["p"]) for n, a in zip(facts.image_size, "pq", strict=True))
    out = []
    for s in range(len(stages)):
        w = windows[s] if len(windows) > 1 else windows[0]
        grid = (-(-rows // 2**s), -(-columns // 2**s))
        if w > min(grid):
            out.append(
                f"stage {s}: window clipped, its side of {w} is more than the map of {_by(grid)}: torchvision pads the"
                " map, Microsoft's code and timm make the window smaller, which is another table: not one function"
            )
    return out


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _say(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _heads(match: Match, s: int) -> int:
    sizes = match.sizes
    if f"h_{s}" in sizes:
        return sizes[f"h_{s}"]
    width, head = sizes.get(f"a_{s}", 0), sizes.get(f"e_{s}", 0)
    return width // head if head and width % head == 0 else 0


def _windows(match: Match, depths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the window of every stage: from tables of offsets, of places, or from indices into the first."""
    sizes = match.sizes
    if any(".merge." in name for b in match.bound for name in b.parts) or len(depths) == 1:
        proven = []
        for s, depth in enumerate(depths):
            places = [isqrt(n) for i in range(depth) if (n := sizes.get(f"u_{s}_{i}"))]
            table = [(isqrt(sizes[f"t_{s}"]) + 1) // 2] if f"t_{s}" in sizes else []
            proven.append({*places, *table})
        if all(len(sides) == 1 for sides in proven):
            return tuple(sides.pop() for sides in proven)
    indices = [c for c in match.consts.values() if str(c.value).startswith("relative-index")]
    if len(indices) != sum(depths):
        return ()
    sides = []
    for c in indices:
        n = int(c.axes[0].atoms[0])
        sides.append(isqrt(isqrt(n)) if str(c.value).endswith("flat") else isqrt(n))
    at = [sum(depths[:s]) for s in range(len(depths))]
    stages = [set(sides[a : a + d]) for a, d in zip(at, depths, strict=True)]
    return tuple(s.pop() for s in stages) if all(len(s) == 1 for s in stages) else ()


def _pretrained(
    match: Match, depths: tuple[int, ...], checkpoint: Checkpoint, branch: Branch
) -> tuple[int, ...] | None:
    tables = [key for key, c in match.consts.items() if c.value == "coords"]
    if len(tables) != sum(depths):
        return None
    from vitconv.layout.arith import to_float
    from vitconv.layout.buffers import CLOSE, pretrained_window

    out: list[Any] = []
    for s in range(len(depths)):
        t = branch.tensors[tables[sum(depths[:s])]]
        slack = {"F16": 1e-3, "BF16": 1e-2}.get(t.dtype, CLOSE)
        side = pretrained_window(to_float(checkpoint.read(t), t.dtype, t.shape), slack)
        # Of its own window: the same table as without pre-training at another.
        out.append(side)
    return None if None in out else tuple(out)


def _image_size(match: Match, windows: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the side of the images that the first mask of shifted windows is made for, if these are square."""
    sizes = match.sizes
    masks = [c for c in match.consts.values() if str(c.value).startswith("shift-mask")]
    if not masks or not windows or "p" not in sizes or f"d_{0}" not in sizes:
        return None
    count, places = (int(a.atoms[0]) for a in masks[0].axes[:2])
    if isqrt(count) ** 2 != count or isqrt(places) != windows[0]:
        return None
    side = isqrt(count) * windows[0]
    return side * sizes["p"], side * sizes.get("q", sizes["p"])
