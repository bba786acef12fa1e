"""The blocks of a network of either family, in running order: `blocks.3` of a plain one, `stages.1.blocks.0` else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vitconv.layout.canonical import layer_of, stack_of
from vitconv.layout.canonical_stages import place_of
from vitconv.layout.match import collapse


def block_of(name: str) -> str | None:
    """Return the block of the trunk that a concrete canonical name belongs to, or None."""
    place = place_of(name)
    if place is not None:
        return f"stages.{place[0]}.blocks.{place[1]}"
    layer = None if stack_of(name) else layer_of(name)
    return None if layer is None else f"blocks.{layer}"


def blocks_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the blocks that canonical names speak of, in running order."""
    return tuple(sorted({block for name in names if (block := block_of(name)) is not None}, key=_order))


def running(names: Iterable[str]) -> dict[str, int]:
    """Return {block: its number in running order}, over all stages."""
    return {block: i for i, block in enumerate(blocks_of(names))}


def number_of(name: str, number: Mapping[str, int]) -> int | None:
    """Return the running number of the block that a canonical name stands in, or None outside the trunk.

    What leads into a stage has that of its first block, and a norm after a stage that of its last.
    """
    block = block_of(name)
    if block is not None:
        return number[block]
    if not name.startswith("stages."):
        return None
    stage = ".".join(name.split(".")[:2])
    inside = [i for found, i in number.items() if found.startswith(f"{stage}.")]
    return max(inside) if ".norm." in name.removeprefix(stage) and ".merge" not in name else min(inside)


def is_block(name: str) -> bool:
    """Return True for `blocks.3` and `stages.1.blocks.0`, and not for what is inside."""
    return block_of(f"{name}.x") == name


def labelled(kind: str, names: Iterable[str]) -> str:
    """Return how tensors of one kind are called in a table: layers collapsed, stages by their template."""
    return kind if kind.startswith("stages.") else ", ".join(collapse(names))


def _order(block: str) -> tuple[int, ...]:
    return tuple(int(part) for part in block.split(".") if part.isdigit())
