"""Read the header of a safetensors file, strictly: every byte of the data belongs to exactly one tensor.

The format is described in the README of the repository huggingface/safetensors; the order of the checks is our own.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import prod

from vitconv.errors import BadFile
from vitconv.io.contents import Contents, some
from vitconv.io.file import File
from vitconv.io.header import MAX_HEADER
from vitconv.io.tensor import ITEMSIZE, Blob, Stored

_MAX_ELEMENTS = 1 << 60
# torch/distributed/checkpoint/_hf_utils.py: where each tensor of this file begins in the whole one.
_SHARDING = "DCP_SHARDING_INFO"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# The shortest entry of a header takes more than this many bytes.
_SHORTEST_ENTRY = 45


def read(file: File) -> Contents:
    """Read names, dtypes, shapes and byte ranges.

    Raises:
        BadFile: the header is damaged, or does not fit the file.
    """
    if file.size < 10:
        raise BadFile(f"{file.path}: {file.size} bytes are too few for a safetensors file; it is cut short")
    length = int.from_bytes(file.read(0, 8), "little")
    if length == 0:
        raise BadFile(
            f"{file.path}: the first 8 bytes, the length of the header, are zeros; the file was damaged when it was"
            " written, uploaded or copied: take it again"
        )
    if length > MAX_HEADER:
        raise BadFile(f"{file.path}: the header claims {length} bytes, safetensors allows {MAX_HEADER}")
    if length > file.size - 8:
        raise BadFile(
            f"{file.path}: the header claims {length} bytes, the file has {file.size} in all; it is damaged or cut"
            " short"
        )
    raw = file.read(8, length)
    entries = _parse(file, raw)
    metadata = _metadata(file, entries.pop("__metadata__", None))
    if _SHARDING in metadata:
        raise BadFile(
            f"{file.path}: one rank's pieces of a distributed checkpoint, no whole tensors; join the files of all ranks"
            " first (torch.distributed.checkpoint._consolidate_hf_safetensors.consolidate_safetensors_files)"
        )
    tensors = _tensors(file, entries, 8 + length)
    return Contents("safetensors", [*tensors, *_aliases(tensors, metadata)], metadata, header=raw)


def _aliases(tensors: list[Stored], metadata: dict[str, str]) -> list[Stored]:
    """Return the tensors that `safetensors.torch.save_model` left out as copies of others, by its metadata."""
    if not metadata:
        return []
    held = {stored.key: stored for stored in tensors}
    names = {key: of for key, of in metadata.items() if of in held and key not in held}
    return [replace(held[of], path=(key,)) for key, of in names.items()]


class _TwiceError(ValueError):
    pass


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        left = dict.fromkeys(found, 1)
        twice = [name for name, _ in pairs if left.pop(name, None) is None]
        raise _TwiceError(f"it names {some(dict.fromkeys(twice))} twice")
    return found


def _parse(file: File, raw: bytes) -> dict[str, object]:
    try:
        text = raw.decode("utf-8")
        _hold_small(raw)
        entries = json.loads(text, object_pairs_hook=_no_twins)
    except RecursionError as error:
        raise BadFile(f"{file.path}: the header is nested too deeply; it is damaged or hostile") from error
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise BadFile(f"{file.path}: the header is not valid JSON: {reason}") from error
    if not text.startswith("{") or not isinstance(entries, dict):
        raise BadFile(f"{file.path}: the header is not a JSON object")
    return entries


def _hold_small(raw: bytes) -> None:
    """Refuse a header whose objects would take far more memory than its text."""
    if len(raw) < 1 << 16:
        return
    skeleton = _STRING.sub(b"", raw)
    objects = skeleton.count(b"{")
    if objects > 2 + len(raw) // _SHORTEST_ENTRY or skeleton.count(b"[") > 2 * objects:
        raise ValueError("it nests lists or objects that no tensor needs")


def _metadata(file: File, found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadFile(f"{file.path}: __metadata__ must map texts to texts")
    _check_text(file, [text for pair in found.items() for text in pair])
    return found


def _check_text(file: File, texts: list[str]) -> None:
    bad = [text for text in texts if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)]
    if bad:
        raise BadFile(f"{file.path}: not valid Unicode in the header: {some(bad)}")


def _tensors(file: File, entries: dict[str, object], base: int) -> list[Stored]:
    """Check all entries, and report the faults of one kind together."""
    faults: dict[str, list[str]] = {}
    found: list[tuple[int, int, Stored]] = []
    _check_text(file, list(entries))
    for key, entry in entries.items():
        try:
            begin, end, dtype, shape = _entry(entry)
        except ValueError as error:
            faults.setdefault(str(error), []).append(key)
            continue
        size = prod(shape) * ITEMSIZE[dtype]
        if size != end - begin:
            faults.setdefault("shape and dtype do not give the size of the byte range", []).append(key)
        found.append((begin, end, Stored((key,), dtype, shape, Blob(0, base + begin, size))))
    if faults:
        problems = "; ".join(f"{reason}: {some(keys)}" for reason, keys in faults.items())
        raise BadFile(f"{file.path}: {problems[:1500]}")
    found.sort(key=lambda item: item[:2])
    _check_cover(file, [(begin, end, stored.key) for begin, end, stored in found], file.size - base)
    return [stored for _, _, stored in found]


def _entry(entry: object) -> tuple[int, int, str, tuple[int, ...]]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("an entry must hold dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        known = "" if isinstance(dtype, str) else " (a text is expected)"
        raise ValueError(f"dtype {some([dtype])} is not supported{known}")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise ValueError("a shape must be a list of whole numbers from 0 on")
    if len(shape) > 64 or prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise ValueError("a shape is impossibly large")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise ValueError("data_offsets must be two whole numbers from 0 on")
    begin, end = offsets
    if begin > end:
        raise ValueError("data_offsets end before they begin")
    return begin, end, dtype, tuple(shape)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ELEMENTS


def _check_cover(file: File, ranges: list[tuple[int, int, str]], size: int) -> None:
    position = 0
    before: str | None = None
    for begin, end, key in ranges:
        if end > size:
            raise BadFile(
                f"{file.path}: {some([key])} ends at byte {end} of the data, the file has {size}; it is cut short"
            )
        if begin != position:
            kind = "overlaps" if begin < position else f"leaves a hole of {begin - position} bytes after"
            raise BadFile(f"{file.path}: {some([key])} {kind} {some([before]) if before is not None else 'the header'}")
        position, before = end, key
    if position != size:
        left = size - position
        raise BadFile(
            f"{file.path}: the last {left} bytes belong to no tensor, so safetensors' own reader refuses the file too;"
            f" the tensors are whole: cut the rest off (truncate -s {file.size - left} FILE)"
        )
