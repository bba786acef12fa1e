"""Write distributed checkpoints as several processes of torch would, in one process and through torch's own writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

# Where each axis is cut, per tensor: ((3,), (5,)) cuts a matrix into four blocks.
Cuts = Sequence[Sequence[int]]


def blocks(shape: Sequence[int], cuts: Cuts) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the blocks that cuts leave, as (first, last + 1) of each axis."""
    axes = []
    for axis, size in enumerate(shape):
        ends = [0, *(cuts[axis] if axis < len(cuts) else ()), size]
        axes.append(list(pairwise(ends)))
    yield from product(*axes)


class _Pieces(DefaultSavePlanner):
    def __init__(self, held: Mapping[MetadataIndex, torch.Tensor]) -> None:
        super().__init__()
        self.held = held

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.held[index] if index in self.held else super().lookup_object(index)


def save_pieces(
    folder: Path, tensors: Mapping[str, torch.Tensor], cuts: Mapping[str, Cuts], ranks: int, values: Any = None
) -> Path:
    """Save flat tensors, cut into blocks that the ranks share in turn; `values` are saved by the first, nested."""
    held: dict[MetadataIndex, torch.Tensor] = {}
    items: list[list[WriteItem]] = [[] for _ in range(ranks)]
    for fqn, tensor in tensors.items():
        for number, block in enumerate(blocks(tensor.shape, cuts.get(fqn, ()))):
            index = MetadataIndex(fqn, [first for first, _ in block], number)
            held[index] = tensor[tuple(slice(first, last) for first, last in block)].clone()
            sizes = torch.Size([last - first for first, last in block])
            chunk = ChunkStorageMetadata(torch.Size(index.offset or ()), sizes)
            data = TensorWriteData(chunk, TensorProperties.create_from_tensor(tensor), tensor.size())
            items[number % ranks].append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
    writer = FileSystemWriter(folder, sync_files=False)
    planner = _Pieces(held)
    planner.set_up_planner(values or {}, is_coordinator=True)
    plans = [SavePlan(part, planner_data={}) for part in items]
    own = planner.create_local_plan()
    plans[0] = SavePlan([*own.items, *items[0]], planner_data={**(own.planner_data or {}), **_nested(tensors)})
    plans, metadata = planner.create_global_plan(plans)
    assert isinstance(metadata, Metadata)
    writer.set_up_storage_writer(is_coordinator=True)
    plans = writer.prepare_global_plan([writer.prepare_local_plan(plan) for plan in plans])
    results = [writer.write_data(plan, planner).wait() for plan in plans]
    writer.finish(metadata, results)
    return folder


def _nested(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, ...]]:
    found = {}
    for fqn in tensors:
        head, _, rest = fqn.partition(".")
        found[fqn] = (head, rest) if head in ("model", "optim") else (fqn,)
    return found
