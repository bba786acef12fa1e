"""Checkpoints of sharded training that hold placeholders or flat pieces instead of the weights."""

from __future__ import annotations

from collections.abc import Iterable

from vitconv.errors import BadFile
from vitconv.io.contents import some
from vitconv.io.tensor import Stored
from vitconv.io.training_state import is_training_state


def check(tensors: Iterable[Stored], where: str) -> None:
    """Refuse a checkpoint whose weights have to be gathered first.

    Raises:
        BadFile: it holds flat parameters of FSDP, flat partitions of DeepSpeed, or empty placeholders of ZeRO stage 3.
    """
    found = list(tensors)
    weights = [stored for stored in found if not is_training_state(stored.path)]
    _check_partitions(found, where)
    _check_flat(weights, where)
    placeholders = _placeholders(weights)
    if placeholders:
        raise BadFile(
            f"{where}: {len(placeholders)} of {len(weights)} tensors are placeholders without data, as ZeRO stage 3"
            f" leaves ({some('.'.join(path) for path in placeholders)}); gather the weights first"
            " (DeepSpeed's zero_to_fp32.py, or stage3_gather_16bit_weights_on_model_save)"
        )


def _check_flat(weights: list[Stored], where: str) -> None:
    flat = [stored for stored in weights if stored.key.rpartition(".")[2].startswith(("_flat_param", "flat_param"))]
    if flat:
        raise BadFile(
            f"{where}: {len(flat)} flat parameters of FSDP ({some(stored.key for stored in flat)}) hold many weights"
            " without their shapes; save the full state dict (StateDictType.FULL_STATE_DICT) and convert that"
        )


def _check_partitions(tensors: list[Stored], where: str) -> None:
    partitions = {
        name for stored in tensors for name in stored.path if "fp32_flat_groups" in name or "_partition_of_" in name
    }
    if partitions:
        raise BadFile(
            f"{where}: a partition of DeepSpeed's optimizer ({some(sorted(partitions))}), not the weights; gather them"
            " first (DeepSpeed's zero_to_fp32.py)"
        )


def _placeholders(weights: list[Stored]) -> list[tuple[str, ...]]:
    """Return the paths of the placeholders, none when every small tensor has a reason to be small.

    An empty weight or bias has none. One of size 1 is telling only beside a partner of another size, or where both
    parts of a norm have size 1; a batch norm of one channel is known by its running mean.
    """
    shapes = {stored.path: stored.shape for stored in weights}
    leaves = {path: path[-1].rpartition(".")[2] for path in shapes}
    empty = [path for path, leaf in leaves.items() if shapes[path] == (0,) and leaf in ("weight", "bias")]
    telling = 0
    for path, leaf in leaves.items():
        if leaf != "weight":
            continue
        stem = path[-1].removesuffix("weight")
        bias = shapes.get((*path[:-1], f"{stem}bias"))
        if bias is None or (*path[:-1], f"{stem}running_mean") in shapes:
            continue
        weight = shapes[path]
        alone = weight == (1,) and bias != (1,)
        orphan = bias == (1,) and len(weight) > 1 and weight[0] != 1
        telling += alone or orphan or weight == bias == (1,)
    shapes_without_data = [(0,)] if empty else []
    shapes_without_data += [(1,)] if telling >= 2 else []
    return [
        path
        for path, leaf in leaves.items()
        if shapes[path] in shapes_without_data and (leaf in ("weight", "bias") or shapes[path] == (0,))
    ]
