"""Write a distributed checkpoint of torch (DCP) through torch's own writer, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused, VitconvError
from vitconv.io.header import Out
from vitconv.io.segment import Segment, read_at

if TYPE_CHECKING:
    from vitconv.io.stream import Progress

# Dtypes by their safetensors names, as torch calls them.
_TORCH: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip


def write_dcp(
    folder: Path,
    tensors: Mapping[tuple[str, ...], Out],
    values: Mapping[tuple[str, ...], Any],
    *,
    process_group: Any = None,
    durable: bool = True,
    progress: Progress | None = None,
) -> None:
    """Write tensors and further values, each by its containers and key, into a new folder.

    With a `process_group` every process gives its own tensors, and all of them together are the checkpoint; values
    other than tensors count on the first process only. Without one, this process writes everything.

    Raises:
        Refused: torch's writer failed, on this process or another.
    """
    import warnings

    import torch
    from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, FileSystemWriter, save

    outs = {".".join(path): out for path, out in tensors.items()}
    total = sum(out.nbytes for out in outs.values())
    state: dict[str, Any] = {}
    for path, out in tensors.items():
        _put(state, path, torch.empty(out.shape, dtype=_dtype(out.dtype), device="meta"))
    for path, value in values.items():
        _put(state, path, value)
    done = 0

    class Streamed(DefaultSavePlanner):  # type: ignore[misc]
        """Gives a tensor its data only when its turn comes."""

        def lookup_object(self, index: Any) -> Any:
            nonlocal done
            out = outs.get(index.fqn)
            if out is None:
                return super().lookup_object(index)
            tensor = tensor_of(out)
            done += out.nbytes
            if progress is not None:
                progress(done, total)
            return tensor

    try:
        with warnings.catch_warnings():
            # Said whenever there is no process group, which is meant.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            save(
                state,
                storage_writer=FileSystemWriter(folder, sync_files=durable),
                planner=Streamed(),
                process_group=process_group,
                no_dist=process_group is None,
            )
    except VitconvError:
        raise
    except (Exception, CheckpointException) as error:
        raise Refused(f"{folder}: torch could not write the distributed checkpoint: {_reason(error)}") from error


def _put(state: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        state = state.setdefault(part, {})
    state[path[-1]] = value


def tensor_of(out: Out) -> Any:
    """Return the data of an output as a torch tensor of its dtype and shape."""
    import torch

    data = bytearray(out.nbytes)
    at = 0
    for chunk in out.chunks():
        part = read_at(chunk.fd, chunk.offset, chunk.nbytes) if isinstance(chunk, Segment) else memoryview(chunk)
        size = len(part) if isinstance(part, bytes) else part.nbytes
        data[at : at + size] = part if isinstance(part, bytes) else part.cast("B")
        at += size
    if not out.nbytes:
        return torch.empty(out.shape, dtype=_dtype(out.dtype))
    return torch.frombuffer(data, dtype=_dtype(out.dtype)).reshape(out.shape)


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, _TORCH[name])


def _reason(error: BaseException) -> str:
    """Return the cause in one line; torch wraps the errors of all processes into one."""
    inner = getattr(error, "failures", None)
    if inner:
        error = next(iter(inner.values()))[0]
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
