"""The network a scheme is asked to fill: its canonical shapes and the facts beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt

from vitconv.errors import Refused
from vitconv.layout.blocks import block_of, blocks_of
from vitconv.layout.canonical import kind_of, layer_of, role_of
from vitconv.layout.semantics import Semantics

Shapes = Mapping[str, tuple[int, ...]]

# `none`: the blocks have no norms at all.
PLACEMENTS = ("pre", "post", "deepnorm", "res-post", "none")


@dataclass(frozen=True)
class Architecture:
    """{canonical name: shape} of a plain ViT or of one in stages, and what is known beside its tensors."""

    shapes: Shapes
    facts: Semantics

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Return the blocks of the trunk in running order, such as `blocks.3` or `stages.1.blocks.0`."""
        return blocks_of(self.shapes)

    @property
    def depth(self) -> int:
        """Return the number of blocks N of the trunk; each is two sublayers."""
        return len(self.blocks)

    @property
    def staged(self) -> bool:
        """Return whether its blocks stand in stages, of several widths."""
        return bool(self.blocks) and self.blocks[0].startswith("stages.")

    @property
    def width(self) -> int:
        """Return d."""
        return self.shapes["blocks.0.attn.q.weight"][1]

    @property
    def attention_width(self) -> int:
        """Return a."""
        return self.shapes["blocks.0.attn.q.weight"][0]

    @property
    def mlp_width(self) -> int:
        """Return m."""
        return self.shapes["blocks.0.mlp.up.weight"][0]

    @property
    def placement(self) -> str | None:
        """Return where the norms of a block stand (see `PLACEMENTS`), or None when it is unknown."""
        first = self.blocks[0] if self.blocks else "blocks.0"
        return self.facts.norm_placement if self.has(f"{first}.norm1.weight") else "none"

    @property
    def alpha(self) -> float:
        """Return the factor of the residual stream; 1 unless a fact says otherwise."""
        return 1.0 if self.facts.residual_alpha is None else self.facts.residual_alpha

    @property
    def grid(self) -> tuple[int, int]:
        """Return the patch grid (rows, columns) of the position table.

        Raises:
            Refused: it is no fact, and the number of rows is no square or there is no table.
        """
        if self.facts.grid is not None:
            return self.facts.grid
        if not self.has("embed.pos"):
            raise Refused("there is no position table of the patches, so no grid")
        n = self.shapes["embed.pos"][0]
        side = isqrt(n)
        if side * side != n:
            raise Refused(f"the patch grid is unknown: {n} positions are no square; say --set grid=ROWSxCOLUMNS")
        return side, side

    def has(self, name: str) -> bool:
        """Return True when the network has this tensor."""
        return name in self.shapes

    def sites(self) -> tuple[Site, ...]:
        """Return one site per tensor, in the order of the shapes."""
        return self._sites

    @cached_property
    def _sites(self) -> tuple[Site, ...]:
        return tuple(Site(name, tuple(shape), self) for name, shape in self.shapes.items())

    def with_facts(self, **facts: object) -> Architecture:
        """Return a copy in which these facts hold."""
        return replace(self, facts=self.facts.replaced(facts))


@dataclass(frozen=True)
class Site:
    """One tensor of a network: what a scheme decides a distribution for."""

    name: str
    shape: tuple[int, ...]
    arch: Architecture

    @cached_property
    def template(self) -> str:
        """Return the canonical template, such as `blocks.{i}.norm1.weight`."""
        return kind_of(self.name)

    @cached_property
    def role(self) -> str:
        """Return the role, such as `attn.q.weight`."""
        return role_of(self.name)

    @property
    def number(self) -> int:
        """Return the block's number, counted from 1.

        Raises:
            Refused: the tensor stands outside the blocks.
        """
        layer = layer_of(self.name)
        if layer is not None:
            return layer + 1
        block = block_of(self.name)
        if block is None:
            raise Refused(f"{self.name} stands outside the blocks, so no rule by depth speaks of it")
        return self.arch.blocks.index(block) + 1

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the weight that a bias belongs to; a weight's own shape."""
        return tuple(self.arch.shapes.get(self.name.removesuffix(".bias") + ".weight", self.shape))
