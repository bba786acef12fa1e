"""What the tensors of a stage-wise network prove: heads and windows of every stage, and what its buffers tell."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from vitconv.errors import Refused
from vitconv.io.envelope import Branch
from vitconv.io.source import Checkpoint
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics
from vitconv.layout.windows import ALWAYS, Window, contested, of_offsets, of_places, part, square, told_windows


def proven_by_stages(
    match: Match, facts: Semantics, checkpoint: Checkpoint, branch: Branch
) -> tuple[Semantics, list[str]]:
    """Fill in heads, windows, image size and the window of pre-training, where tensors and buffers hold them.

    Raises:
        Refused: something else was told.
    """
    depths = depths_of([name for b in match.bound for name in b.parts])
    found: dict[str, Any] = {}
    heads = tuple(_heads(match, s) for s in range(len(depths)))
    if all(heads):
        found["stage_heads"] = heads
    held = Held(match, checkpoint, branch)
    windows = _windows(held, depths, facts)
    if windows:
        found["window"] = tuple(w[0] for w in windows)
        if facts.window_width is not None or any(w[0] != w[1] for w in windows):
            found["window_width"] = tuple(w[1] for w in windows)
    pretrained = _pretrained(held, depths)
    if pretrained is not None:
        found["pretrained_window"] = pretrained
    notes = []
    size = _image_size(held)
    if size is not None and facts.image_size not in (None, size):
        # Masks follow from the size of the images and are made anew.
        notes.append(f"masks of shifted windows for images of {_by(size)} are compared and left, not carried")
    elif size is not None:
        found["image_size"] = size
    grids = _grids(match, facts, len(depths))
    for name, value in found.items():
        told = getattr(facts, name)
        if told is None or told == value:
            continue
        if not _meant(name, told, value, found, grids):
            raise Refused(f"the tensors have {name}={_say(value)}, but {name}={_say(told)} was said")
        facts = facts.replaced({name: value})
    _check_places(match, facts)
    new = {name: value for name, value in found.items() if getattr(facts, name) is None}
    notes += [f"{name}: {_say(value)}, which the tensors hold" for name, value in new.items()]
    facts = facts.filled(new)
    facts, more = _contested(match, facts)
    return facts, [*notes, *_clipped(match, facts), *more]


def _meant(
    name: str,
    told: tuple[int, ...],
    value: tuple[int, ...],
    found: dict[str, Any],
    grids: dict[int, tuple[int, int]],
) -> bool:
    """Say whether what was told is, stage by stage, what the tensors hold, as the code that is told so computes.

    A window is made as small as its map; coordinates of a pre-training at one's own window are those of none.
    """
    each = told * len(value) if len(told) == 1 else told
    if len(each) != len(value):
        return False
    window = found.get("window", value)
    return all(
        a == b
        or (name == "window" and s in grids and b == min(grids[s]) < a)
        or (name == "pretrained_window" and b == 0 and a == window[s])
        for s, (a, b) in enumerate(zip(each, value, strict=True))
    )


def _check_places(match: Match, facts: Semantics) -> None:
    """Check an image size that was told against the table of positions of the first map.

    Raises:
        Refused: the table has another number of places.
    """
    grid = _grids(match, facts, 1).get(0)
    tables = {name: b for b in match.bound for name in b.parts if name in ("embed.pos", "stages.0.pos")}
    for name in tables if grid is not None else ():
        places = match.sizes.get("n_0")
        if places is not None and grid is not None and places != grid[0] * grid[1]:
            how = f"; to resize it say --set grid=HxW and --edit resize-position:to={_by(grid)}, without image_size"
            raise Refused(
                f"image_size={_by(facts.image_size or (0, 0))} makes a map of {_by(grid)}, {grid[0] * grid[1]} places;"
                f" the table of positions ({name}) has {places}{how if name == 'embed.pos' else ''}"
            )


class Held(NamedTuple):
    """A recognised file: what its tensors are, and where they are read from."""

    match: Match
    checkpoint: Checkpoint
    branch: Branch

    def buffers(self, kind: str) -> list[str]:
        """Return the keys of the buffers of one kind, in the order of the blocks."""
        return [key for key, c in self.match.consts.items() if str(c.value).startswith(kind)]

    def read(self, key: str) -> Any:
        """Return a buffer as an array of floats."""
        from vitconv.layout.arith import to_float

        t = self.branch.tensors[key]
        raw = self.checkpoint.read(t)
        if t.dtype in ("I64", "I32", "U8"):
            import numpy as np

            kinds = {"I64": "<i8", "I32": "<i4", "U8": "u1"}
            return np.frombuffer(raw, kinds[t.dtype]).reshape(t.shape).astype(np.float64)
        return to_float(raw, t.dtype, t.shape)


def _stages(match: Match, facts: Semantics, *, odd: bool = False) -> list[tuple[int, Window, tuple[int, int]]]:
    """Return (stage, window, map) of every stage of shifting windows of which both are known, once for each window.

    With `odd`, of the blocks whose windows are shifted alone. Blocks of one stage may differ (FLatten-Swin).
    """
    names = [name for b in match.bound for name in b.parts]
    depths, sizes = depths_of(names), match.sizes
    if not (len(depths) == 1 or any(".merge." in name for name in names)):
        return []
    told, grids = told_windows(facts.known(), len(depths)), _grids(match, facts, len(depths))
    found: dict[tuple[int, Window], tuple[int, int]] = {}
    for s, depth in enumerate(depths):
        for i in range(1 if odd else 0, depth, 2 if odd else 1):
            if f"u_{s}_{i}" in sizes:
                w = of_places(sizes[f"u_{s}_{i}"], told[s], grids.get(s))
            elif f"t_{s}" in sizes:
                w = of_offsets(sizes[f"t_{s}"], told[s], grids.get(s))
            else:
                w = square(told[s])
            if w is not None and s in grids:
                found[s, w] = grids[s]
    return [(s, w, grid) for (s, w), grid in found.items()]


def _grids(match: Match, facts: Semantics, stages: int) -> dict[int, tuple[int, int]]:
    sizes = match.sizes
    if not facts.image_size or "p" not in sizes:
        return {}
    rows, columns = (-(-n // sizes.get(a, sizes["p"])) for n, a in zip(facts.image_size, "pq", strict=True))
    return {s: (-(-rows // 2**s), -(-columns // 2**s)) for s in range(stages)}


def _clipped(match: Match, facts: Semantics) -> list[str]:
    """Return a note on stages whose windows are larger than their feature map."""
    return [
        f"stage {s}: window clipped, its side of {max(w)} is more than the map of {_by(grid)}: torchvision and mmseg"
        " pad the map, Microsoft's code and timm make the window smaller, which is another table: not one function"
        for s, w, grid in _stages(match, facts)
        if w[0] > grid[0] or w[1] > grid[1]
    ]


# Whose rule a layout or else its library follows where windows are laid out in different ways.
_RULE = {"hf-swinv2": "transformers-v2", "timm": "timm", "torchvision": "torchvision"}
# The layout that networks of classification and of dense prediction share: no tensor tells which one it is.
_SHARED = "mmpretrain-swin"


def _contested(match: Match, facts: Semantics) -> tuple[Semantics, list[str]]:
    """Say whose windows these are, where codebases lay them out in different ways and it matters."""
    named, told = (match.dialect.name, match.dialect.library), facts.window_rule
    own = next((_RULE[n] for n in named if n in _RULE), "microsoft")
    notes = []
    for s, w, grid in _stages(match, facts, odd=True):
        others = "others do it in another way: not one function" if contested(w, grid) else ""
        if not others and part(w, grid, ALWAYS, own):
            if told == ALWAYS:
                others = "networks of classification do it in another way: not one function"
            elif told is None and match.dialect.name == _SHARED:
                others = f"backbones of mmseg and mmdet, and with pad_small_map, in another: --set window_rule={ALWAYS}"
        if others:
            facts = facts.filled({"window_rule": own})
            notes.append(
                f"stage {s}: shifted windows of {_by(w)} on a map of {_by(grid)} are laid out as"
                f" {facts.window_rule}'s code does (window_rule); {others}"
            )
    return facts, notes


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


def _windows(held: Held, depths: tuple[int, ...], facts: Semantics) -> tuple[Window, ...]:
    """Return the window of every stage: from indices into its table, tables of offsets, or tables of places."""
    sizes, told = held.match.sizes, told_windows(facts.known(), len(depths))
    grids = _grids(held.match, facts, len(depths))
    stages = _indexed(held, depths)
    if stages is not None:
        return stages
    merged = any(".merge." in name for b in held.match.bound for name in b.parts)
    if not merged and len(depths) > 1:
        return ()
    proven: list[set[Window | None]] = []
    for s, depth in enumerate(depths):
        found = {of_places(n, told[s], grids.get(s)) for i in range(depth) if (n := sizes.get(f"u_{s}_{i}"))}
        if f"t_{s}" in sizes:
            found.add(of_offsets(sizes[f"t_{s}"], told[s], grids.get(s)))
        proven.append(found)
    if not all(len(found) == 1 and None not in found for found in proven):
        return ()
    return tuple(w for found in proven for w in found if w is not None)


def _indexed(held: Held, depths: tuple[int, ...]) -> tuple[Window, ...] | None:
    """Return the windows that the indices of every block are made for, None when a block has none."""
    keys = held.buffers("relative-index")
    if len(keys) != sum(depths):
        return None
    at = [sum(depths[:s]) for s in range(len(depths))]
    shapes = [[held.branch.tensors[k].shape for k in keys[a : a + d]] for a, d in zip(at, depths, strict=True)]
    if any(len(set(row)) > 1 for row in shapes):
        return None
    from vitconv.layout.buffers import window_of

    found = [window_of(held.read(keys[a])) for a in at]
    return None if None in found else tuple(w for w in found if w is not None)


def _pretrained(held: Held, depths: tuple[int, ...]) -> tuple[int, ...] | None:
    tables = held.buffers("coords")
    if len(tables) != sum(depths):
        return None
    from vitconv.layout.buffers import CLOSE, pretrained_window

    out: list[Any] = []
    for s in range(len(depths)):
        key = tables[sum(depths[:s])]
        slack = {"F16": 1e-3, "BF16": 1e-2}.get(held.branch.tensors[key].dtype, CLOSE)
        # Of its own window: the same table as without pre-training at another.
        out.append(pretrained_window(held.read(key), slack))
    return None if None in out else tuple(out)


def _image_size(held: Held) -> tuple[int, int] | None:
    """Return the size of the images that the first mask of shifted windows is made for."""
    masks, sizes = held.buffers("shift-mask"), held.match.sizes
    if not masks or "p" not in sizes:
        return None
    from vitconv.layout.buffers import mask_of

    found = mask_of(held.read(masks[0]), 1e-2)
    if found is None:
        return None
    # A stage of one block has no mask. The layouts that hold masks have the stage first in their keys, from zero.
    stage = re.search(r"\d+", masks[0])
    rows, columns = (n * 2 ** int(stage[0] if stage else 0) for n in found[1])
    return rows * sizes["p"], columns * sizes.get("q", sizes["p"])
