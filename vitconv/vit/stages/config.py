"""The configuration of a stage-wise network: the shapes of its tensors, and the facts that they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

from vitconv.errors import Refused
from vitconv.layout.canonical_stages import SCHEMA, depths_of, stage_template_of
from vitconv.layout.semantics import FOCUSED, Semantics
from vitconv.layout.windows import Window, patch_stride, ways, windows_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StagesConfig:
    """A network: {canonical name: shape}, and the facts. Use `config_of_stages` to have both checked."""

    shapes: Mapping[str, Shape]
    facts: Semantics

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Blocks per stage."""
        return depths_of(dict(self.shapes))

    def has(self, name: str) -> bool:
        """Say whether a tensor of this name, or below it, is there."""
        return name in self.shapes or any(n.startswith(f"{name}.") for n in self.shapes)

    def width(self, s: int) -> int:
        """Return the width of a stage."""
        return self.shapes[f"stages.{s}.blocks.0.norm1.weight"][0]

    def heads(self, s: int, i: int) -> int:
        """Return the heads of a block: from a table, a scale or a depthwise filter, else from the facts."""
        at = f"stages.{s}.blocks.{i}.attn."
        a = self.shapes[f"{at}q.weight"][0]
        if f"{at}table" in self.shapes:
            return self.shapes[f"{at}table"][1]
        if f"{at}logit_scale" in self.shapes:
            return self.shapes[f"{at}logit_scale"][0]
        for part in ("dwc.weight", "b0.dwc.weight"):
            if at + part in self.shapes:
                return a // self.shapes[at + part][0]
        told = self.facts.stage_heads
        if told is None:
            raise Refused("the heads of the stages are not in the tensors; say them with --set stage_heads=1,2,5,8")
        return told[s] if len(told) > 1 else told[0]

    def window(self, s: int, i: int) -> Window:
        """Return the (height, width) of the windows of a block."""
        if (s, i) in self._windows:
            return self._windows[s, i]
        table = self.shapes.get(f"stages.{s}.blocks.{i}.attn.table")
        if table is not None:
            found = ", ".join(f"{high}x{wide}" for high, wide in ways(table[0])) or "none"
            raise Refused(
                f"stages.{s}.blocks.{i}: a table of {table[0]} offsets is of no square window (but of {found}); say its"
                " sides with --set window=HEIGHT and --set window_width=WIDTH"
            )
        raise Refused("the side of the windows is not in the weights; say it with --set window=8")

    @cached_property
    def _windows(self) -> Mapping[tuple[int, int], Window]:
        return windows_of(self.shapes, self.facts.known())

    def split(self, s: int) -> int:
        """Return the width of the stripes of a block of CSwin that attends by softmax."""
        return _per_stage(self.facts.window, s, "window=1,2,7,7", "the width of the stripes")

    def pretrained_window(self, s: int) -> int:
        """Return the side of the windows in pre-training, 0 for the same."""
        return _per_stage(
            self.facts.pretrained_window, s, "pretrained_window=0", "the window of pre-training (0: the same)"
        )

    def focused(self, s: int, i: int) -> bool:
        """Say whether a block attends by focused linear attention."""
        at = f"stages.{s}.blocks.{i}.attn."
        return f"{at}scale" in self.shapes or f"{at}b0.scale" in self.shapes

    @property
    def striped(self) -> bool:
        """Say whether the blocks are those of CSwin."""
        return self.has("stages.0.blocks.0.attn.b0")

    @property
    def windowed(self) -> bool:
        """Say whether the blocks attend in windows that shift: those of Swin."""
        merged = len(self.depths) == 1 or self.has("stages.1.merge")
        return merged and not self.striped and not self.has("stages.0.pos")

    @property
    def image_size(self) -> tuple[int, int]:
        """Return the image size, told or proven by a table of positions, else the least that all windows fit in."""
        facts = self.facts
        if facts.image_size is not None:
            return facts.image_size
        stride = patch_stride(self.shapes)
        table = self.shapes.get("stages.0.pos", self.shapes.get("embed.pos"))
        if table is not None:
            side = isqrt(table[0])
        elif self.striped:
            side = isqrt(self.shapes["stages.0.blocks.0.attn.b0.pos"][0])
        elif self.windowed:
            # A focused window may cover the whole map of an early stage, so each is held against its own map.
            both = [[self.window(s, i) for i in range(depth)] for s, depth in enumerate(self.depths)]
            more = 1 if len(both) > 1 else 2
            sides = [max(w[axis] * 2**s for s, row in enumerate(both) for w in row) * more for axis in (0, 1)]
            return sides[0] * stride[0], sides[1] * stride[1]
        else:
            raise Refused("the image size is not known; say it with --set image_size=224x224")
        return side * stride[0], side * stride[1]


def _per_stage(values: tuple[int, ...] | None, s: int, example: str, what: str) -> int:
    if values is None:
        raise Refused(f"{what} is not in the weights; say it with --set {example}")
    return values[s] if len(values) > 1 else values[0]


_NEEDED = {
    "norm_eps": "1e-5",
    "final_norm_eps": "1e-5",
    "embed_norm_eps": "1e-5",
    "activation": "gelu",
    "norm_placement": "pre",
    "pooling": "avg",
}


def config_of_stages(shapes: Mapping[str, Shape], facts: Semantics) -> StagesConfig:
    """Return the configuration of canonical names and shapes, and the facts.

    Raises:
        Refused: a name is not of this family, or a fact is missing; the message says all of them and how to say them.
    """
    foreign = sorted({stage_template_of(n) for n in shapes} - set(SCHEMA))
    if foreign:
        raise Refused(f"not tensors of a stage-wise network: {', '.join(foreign)}")
    config = StagesConfig(dict(shapes), facts)
    known = facts.known()
    # Every stage of PVTv2 ends with a norm of its own, and there is none behind the last one.
    spare = () if config.has("norm") else ("final_norm_eps",)
    lacking = [f"--set {name}={value}" for name, value in _NEEDED.items() if name not in (*known, *spare)]
    blocks = [(s, i) for s, depth in enumerate(config.depths) for i in range(depth)]
    if any(config.focused(s, i) for s, i in blocks):
        if facts.attention not in FOCUSED or facts.attention == "focused-linear":
            lacking.append("--set attention=focused-upstream-fix (or another of the focused ones)")
        if facts.focusing_factor is None:
            lacking.append("--set focusing_factor=3")
    if any(f"stages.{s}.blocks.{i}.attn.logit_scale" in shapes for s, i in blocks):
        told = {"window=8": facts.window, "pretrained_window=0": facts.pretrained_window}
        lacking += [f"--set {example}" for example, value in told.items() if value is None]
    if lacking:
        raise Refused("the weights do not say everything about this network; tell it with\n  " + "\n  ".join(lacking))
    for s, i in blocks:
        config.heads(s, i)
    return config
