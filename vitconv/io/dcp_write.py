"""Write a distributed checkpoint of torch (DCP) through torch's own writer, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.errors import LayoutError, Refused, VitconvError
from vitconv.io.header import Out
from vitconv.io.segment import Segment, fill

if TYPE_CHECKING:
    from vitconv.io.stream import Progress

_PIECE = 4 << 20
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
    last: Any = None

    class Streamed(DefaultSavePlanner):  # type: ignore[misc]
        """Gives a tensor its data only when its turn comes."""

        def lookup_object(self, index: Any) -> Any:
            nonlocal done, last
            out = outs.get(index.fqn)
            if out is None:
                return super().lookup_object(index)
            # torch's writer keeps every tensor it has written; its memory goes when the next one is asked for.
            if last is not None:
                last.untyped_storage().resize_(0)
                _trim()
            last = tensor_of(out)
            done += out.nbytes
            if progress is not None:
                progress(done, total)
            return last

    try:
        with warnings.catch_warnings():
            # Said whenever there is no process group, which is meant.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            save(
                state,
                # Nothing is copied ahead: a tensor is written before the next one is asked for.
                storage_writer=FileSystemWriter(folder, sync_files=durable, per_thread_copy_ahead=0),
                planner=Streamed(),
                process_group=process_group,
                no_dist=process_group is None,
            )
    except VitconvError:
        raise
    except (Exception, CheckpointException) as error:
        raise Refused(f"{folder}: torch could not write the distributed checkpoint: {_reason(error)}") from error


def _trim() -> None:
    """Give freed memory back to the system, where the C library can: aligned blocks leave holes that nothing fits."""
    import contextlib
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _put(state: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        state = state.setdefault(part, {})
    state[path[-1]] = value


def tensor_of(out: Out) -> Any:
    """Return the data of an output as a torch tensor of its dtype and shape."""
    import torch

    if not out.nbytes:
        return torch.empty(out.shape, dtype=_dtype(out.dtype))
    # Not by way of numpy: a storage that numpy has seen cannot be given back.
    raw = torch.empty(out.nbytes, dtype=torch.uint8)
    at = 0
    for part in _parts(out):
        raw[at : at + len(part)] = torch.frombuffer(part, dtype=torch.uint8)
        at += len(part)
    if at != out.nbytes:
        raise LayoutError(f"{out.key} was given {at} bytes, its header says {out.nbytes}")
    return raw.view(_dtype(out.dtype)).reshape(out.shape)


def _parts(out: Out) -> Iterator[bytearray]:
    """Yield the bytes of an output in pieces that are not empty."""
    for chunk in out.chunks():
        size = chunk.nbytes if isinstance(chunk, Segment) else memoryview(chunk).nbytes
        for at in range(0, size, _PIECE):
            stop = min(at + _PIECE, size)
            if isinstance(chunk, Segment):
                part = bytearray(stop - at)
                fill(chunk.fd, memoryview(part), chunk.offset + at)
                yield part
            else:
                yield bytearray(memoryview(chunk).cast("B")[at:stop])


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
