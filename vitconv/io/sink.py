"""Write safetensors: one file or a sharded folder, planned from headers, streamed, and put in place whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

from vitconv.errors import Refused, UsageError, VitconvError
from vitconv.io.atomic import (
    check_space,
    check_target,
    explain,
    replacing,
    same_file,
    sync_folder,
)
from vitconv.io.header import Chunk, Out, file_order, header_bytes
from vitconv.io.leftovers import temporary_name
from vitconv.io.reflink import BLOCK, clone, single_range
from vitconv.io.segment import Segment
from vitconv.io.stream import Progress, Writer, counted

__all__ = ["Chunk", "Out", "Progress", "file_order", "header_bytes", "write_file", "write_sharded"]

INDEX = "model.safetensors.index.json"


class HasFiles(Protocol):
    """A checkpoint, as far as the sink needs to know one."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that are being read."""


def write_file(
    dst: str | Path,
    outs: Iterable[Out],
    metadata: Mapping[str, str] | None,
    *,
    reflink_from: HasFiles | None = None,
    progress: Progress | None = None,
    inputs: Iterable[Path] = (),
    durable: bool = True,
) -> None:
    """Write `outs`, in the order given, as one safetensors file.

    With `reflink_from`, outputs that make up one byte range of that checkpoint share its blocks where the file system
    can; the bytes written do not depend on whether it could. `progress(done, total)` counts bytes. `inputs` are files
    that must not be the target. `durable` asks for fsync, so that the file survives a power cut too.

    Raises:
        UsageError: the target is a folder, or nothing can be written there.
        Refused: the target is an input, or there is no room. Nothing was written.
        BadFile: a source ended too early. Nothing was written.
    """
    target = Path(dst)
    todo = list(outs)
    if reflink_from is not None:
        inputs = (*inputs, *reflink_from.files)
    check_target(target, inputs)
    source = single_range(counted(todo)) if reflink_from is not None else None
    if source is None:
        header = header_bytes(todo, metadata)
    else:
        # 8-aligned sources only: others cannot share blocks under a header that a reader accepts.
        can = source.offset % 8 == 0
        header = header_bytes(todo, metadata, align=BLOCK if can else 8, residue=source.offset % BLOCK if can else 0)
    total = len(header) + sum(out.nbytes for out in todo)
    with replacing(target, durable=durable) as fd:
        if source is not None and clone(fd, len(header), source):
            os.pwrite(fd, header, 0)
            if progress:
                progress(total, total)
            return
        check_space(target.parent, total)
        chunks = [source] if source is not None else _guarded(counted(todo), target)
        Writer(fd, total, progress).run(chain([header], chunks))


def _guarded(chunks: Iterable[Chunk], target: Path) -> Iterable[Chunk]:
    """Pass chunks on, and refuse those that come from the very file to be replaced."""
    try:
        found = target.stat()
    except OSError:
        yield from chunks
        return
    seen: set[int] = set()
    for chunk in chunks:
        if isinstance(chunk, Segment) and chunk.fd not in seen:
            seen.add(chunk.fd)
            if os.path.samestat(found, os.fstat(chunk.fd)):
                raise same_file(target)
        yield chunk


def write_sharded(
    folder: str | Path,
    outs: Iterable[Out],
    metadata: Mapping[str, str] | None,
    shard_bytes: int,
    *,
    progress: Progress | None = None,
    inputs: Iterable[Path] = (),
    durable: bool = True,
) -> list[Path]:
    """Write `outs` as shards of at most `shard_bytes` bytes of data each, with the index that transformers reads.

    Tensors are shared out in the order given; one that is larger than a shard gets its own. When all fit into one, it
    is a plain `model.safetensors` without an index. All files are complete before the first takes its name, and the
    index, which makes a folder a checkpoint, comes last.

    Raises:
        UsageError: the size is not positive, or the folder cannot be written.
        Refused: the folder holds weights already, or there is no room. Nothing was written.
    """
    if shard_bytes < 1:
        raise UsageError(f"a shard of {shard_bytes} bytes cannot hold anything")
    target = Path(folder)
    shards = share_out(list(outs), shard_bytes)
    for path in inputs:
        if path.parent.resolve() == target.resolve():
            raise same_file(target)
    fresh = not target.exists()
    if not fresh:
        _check_folder(target)
    staging = temporary_name(target.absolute() if fresh else target / "model")
    total = sum(out.nbytes for shard in shards for out in shard)
    moved: list[Path] = []
    try:
        staging.mkdir()
    except OSError as error:
        raise explain(error, target) from error
    try:
        check_space(staging, total)
        names = _write_shards(staging, shards, metadata, total, progress, durable)
        if fresh:
            staging.rename(target)
        else:
            # The index is the last name, so a folder with an index is complete.
            for name in names:
                (staging / name).rename(target / name)
                moved.append(target / name)
            staging.rmdir()
    except BaseException as error:
        for path in moved:
            path.unlink(missing_ok=True)
        import shutil

        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise explain(error, target) from error
        if isinstance(error, VitconvError):
            raise type(error)(str(error).replace(str(staging), str(target))) from error
        raise
    if durable:
        sync_folder(target)
        sync_folder(target.absolute().parent)
    return [target / name for name in names]


def share_out(outs: Sequence[Out], shard_bytes: int) -> list[list[Out]]:
    """Fill one shard after the other; a tensor larger than a shard gets its own, and the one being filled goes on.

    The rule, and so the shards, are those of huggingface_hub (`serialization/_base.py`).
    """
    shards: list[list[Out]] = []
    now: list[Out] = []
    size = 0
    for out in outs:
        if out.nbytes > shard_bytes:
            shards.append([out])
            continue
        if size + out.nbytes > shard_bytes:
            shards.append(now)
            now, size = [], 0
        now.append(out)
        size += out.nbytes
    return [*shards, now] if now or not shards else shards


def shard_name(number: int, count: int) -> str:
    """Return the name of a shard, counted from 1; a single one is no shard."""
    return f"model-{number:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"


def index_text(weight_map: Mapping[str, str], total: int) -> bytes:
    """Return the index of shards that hold `total` bytes of data, as transformers lays it out."""
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; shards need a folder")
    patterns = ("*.safetensors", "*.index.json", "pytorch_model*.bin")
    held = sorted({path.name for pattern in patterns for path in folder.glob(pattern)})
    if held:
        more = f" and {len(held) - 4} more" if len(held) > 4 else ""
        raise Refused(f"{folder} holds weights already ({', '.join(held[:4])}{more}); choose a new folder")


def _write_shards(
    folder: Path,
    shards: list[list[Out]],
    metadata: Mapping[str, str] | None,
    total: int,
    progress: Progress | None,
    durable: bool,
) -> list[str]:
    names: list[str] = []
    weight_map: dict[str, str] = {}
    before = 0
    for number, shard in enumerate(shards, 1):
        name = shard_name(number, len(shards))
        done = before
        report = None if progress is None else lambda now, _, done=done: progress(min(done + now, total), total)
        write_file(folder / name, file_order(shard), metadata, progress=report, durable=durable)
        weight_map.update((out.key, name) for out in shard)
        before += sum(out.nbytes for out in shard)
        names.append(name)
    if len(shards) > 1:
        with replacing(folder / INDEX, durable=durable) as fd:
            Writer(fd, 0, None).run([index_text(weight_map, total)])
        names.append(INDEX)
    return names
