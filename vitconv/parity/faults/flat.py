"""A network of stages as one row of blocks, so that faults and their search see it as they see a plain ViT.

Block `i` of stage `s` is block `k` in running order. What leads into a later stage stands ahead of its first block, as
`blocks.{k}.way`; the norm at the end of the last stage is `trunk_norm`. Nothing is computed in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar

from vitconv.layout.canonical_stages import place_of
from vitconv.layout.semantics import Semantics

if TYPE_CHECKING:
    from vitconv.vit.stages.config import StagesConfig

T = TypeVar("T")


@dataclass(frozen=True)
class FlatConfig:
    """The configuration of a network of stages, with the words of a plain one where these mean the same."""

    stages: StagesConfig
    family: ClassVar[str] = "stages"
    gated: ClassVar[bool] = False
    pool_norm: ClassVar[bool] = False
    prefix: ClassVar[int] = 0
    mlp_bias: ClassVar[bool] = True
    block_norms: ClassVar[bool] = True
    norm_bias: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"{self.stages.facts} {self.blocks} {sorted(self.stages.shapes.items())}"

    @property
    def facts(self) -> Semantics:
        """What the tensors do not say."""
        return self.stages.facts

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """(stage, block) in running order."""
        return tuple((s, i) for s, depth in enumerate(self.stages.depths) for i in range(depth))

    @property
    def depth(self) -> int:
        """Blocks of all stages."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Width of the first stage."""
        return self.stages.width(0)

    @property
    def head_width(self) -> int:
        """Width of a head in the first block."""
        return self.attention_width // self.stages.heads(0, 0)

    @property
    def attention_width(self) -> int:
        """Width of all heads of the first block."""
        return self.stages.shapes["stages.0.blocks.0.attn.q.weight"][0]

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.stages.shapes["embed.patch.weight"][1]

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width of the patch kernel."""
        return self.stages.shapes["embed.patch.weight"][2:4]  # type: ignore[return-value]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.stages.image_size

    @property
    def positions(self) -> int:
        """Places of the first map."""
        return (self.image_size[0] // self.patch[0]) * (self.image_size[1] // self.patch[1])

    @property
    def classes(self) -> int:
        """Classes, 0 without a head."""
        return self.stages.shapes.get("head.weight", (0,))[0]

    @property
    def norm(self) -> bool:
        """Whether there is a final norm that is applied."""
        return self.has("norm.weight") and self.facts.pooling != "avg-unnormed"

    @property
    def embed_norm(self) -> bool:
        """Whether there is a norm after the patch projection."""
        return self.has("embed.norm.weight")

    @property
    def ends(self) -> bool:
        """Whether stages end with a norm of their own."""
        return any(self.has(f"stages.{s}.norm.weight") for s in range(len(self.stages.depths)))

    @property
    def head_bias(self) -> bool:
        """Whether the classifier has a bias."""
        return self.has("head.bias")

    @property
    def patch_bias(self) -> bool:
        """Whether the patch projection has a bias."""
        return self.has("embed.patch.bias")

    @property
    def q_bias(self) -> bool:
        """Whether the queries have a bias."""
        return self.somewhere("attn.q.bias")

    @property
    def v_bias(self) -> bool:
        """Whether the values have a bias."""
        return self.somewhere("attn.v.bias")

    @property
    def out_bias(self) -> bool:
        """Whether the output projection has a bias."""
        return self.somewhere("attn.out.bias")

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of this canonical name."""
        return name in self.stages.shapes

    def somewhere(self, ending: str) -> bool:
        """Tell whether a block or what leads into a stage has a tensor of this ending."""
        return any(name.startswith("stages.") and name.endswith(ending) for name in self.stages.shapes)

    def label(self, k: int) -> str:
        """Return the block of this number as STAGE.BLOCK."""
        return "{}.{}".format(*self.blocks[k])

    def flat(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return what has canonical names, or those of taps, under the names of one row of blocks."""
        return {self.flat_name(name): value for name, value in values.items()}

    def flat_name(self, name: str) -> str:
        """Return a canonical name in one row of blocks."""
        parts = name.split(".")
        if parts[0] != "stages":
            return name
        s, place = int(parts[1]), place_of(f"{name}.")
        if place is not None:
            return ".".join(["blocks", str(self.blocks.index(place)), *parts[4:]])
        last = len(self.stages.depths) - 1
        if parts[2] == "norm":
            before = f"blocks.{self._first(s + 1)}.way.before" if s < last else "trunk_norm"
            return ".".join([before, *parts[3:]])
        return ".".join([*(["blocks", str(self._first(s)), "way"] if s else ["embed", "way"]), *parts[2:]])

    def _first(self, s: int) -> int:
        return sum(self.stages.depths[:s])
