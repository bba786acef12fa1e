"""Tell what kind of file it is from its first bytes, never from its name."""

from __future__ import annotations

import re

from vitconv.errors import BadFile
from vitconv.io.file import File

_HEAD = 512
_TORCH_MARK = b"L119547037146038801333356L\n."
# A map of at most 15 entries, the first key a short text.
_MSGPACK = re.compile(rb"[\x81-\x8f][\xa1-\xbf][A-Za-z_]\w*")
_WRONG: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "packed by gzip; unpack it first (gunzip)"),
    (b"BZh", "packed by bzip2; unpack it first (bunzip2)"),
    (b"\xfd7zXZ\x00", "packed by xz; unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd; unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes; save the weights as .npz or safetensors"),
    (b"GGUF", "a GGUF file, which holds quantised weights; take the original checkpoint"),
    (b"\x93NUMPY", "a single numpy array, not a checkpoint; .npz files hold named arrays"),
    (b"\x7fELF", "a program, not a checkpoint"),
    (b"\x89PNG", "a picture, not a checkpoint"),
    (b"\xff\xd8\xff", "a picture, not a checkpoint"),
    (b"%PDF", "a PDF document, not a checkpoint"),
    (b"ftrt", "an engine of TensorRT, made for one machine; take the checkpoint that it was made from"),
    (b"PAR1", "a Parquet table, not a checkpoint"),
)


# Flatbuffers have their mark behind the first four bytes.
_WRONG_AT_4: tuple[tuple[bytes, str], ...] = (
    (b"TFL3", "a model of TensorFlow Lite; take the checkpoint that it was made from"),
    (b"ET12", "a program of ExecuTorch (.pte); take the checkpoint that it was made from"),
)


def kind_of(file: File) -> str:
    """Return "zip", "safetensors", "pickle" or "onnx".

    Raises:
        BadFile: the file is empty, a git-lfs pointer, a web page, packed, or of a kind that holds no checkpoint.
    """
    if file.size == 0:
        raise BadFile(f"{file.path}: the file is empty (0 bytes); download or copy it again")
    head = file.read(0, min(file.size, _HEAD))
    _refuse_known(file, head)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    # A length, then the brace that begins the header.
    if len(head) > 8 and head[8:9] == b"{":
        return "safetensors"
    # A pickle begins with its protocol, but for protocol 0 and 1, where torch's own mark is the first number.
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if head.startswith(_TORCH_MARK):
        return "pickle"
    # The first field of an ONNX model is its IR version, a small number.
    if len(head) > 8 and head[0] == 0x08 and 0 < head[1] < 0x20:
        return "onnx"
    raise _unknown(file, head)


def _refuse_known(file: File, head: bytes) -> None:
    if head.startswith(b"version https://git-lfs"):
        raise BadFile(f"{file.path}: this is a git-lfs pointer of {file.size} bytes, not the weights; run git lfs pull")
    for magic, what in _WRONG:
        if head.startswith(magic):
            raise BadFile(f"{file.path}: this is {what}")
    for magic, what in _WRONG_AT_4:
        if head[4:8] == magic:
            raise BadFile(f"{file.path}: this is {what}")
    if head[257:262] == b"ustar" or head.startswith((b"sys_info", b"storages\x00", b"tensors\x00")):
        raise BadFile(
            f"{file.path}: this is a tar archive; unpack it first. If torch.save of 2017 or before wrote it, load it"
            " with torch and save it again"
        )
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<?xml") and b"<net" in start:
        raise BadFile(f"{file.path}: this is a network of OpenVINO; take the checkpoint that it was made from")
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        raise BadFile(f"{file.path}: this is a web page of {file.size} bytes, not the weights; the download went wrong")


def _unknown(file: File, head: bytes) -> BadFile:
    text = head.decode("utf-8", "replace").strip()
    if text and all((char.isprintable() and char != "\ufffd") or char in "\r\n\t" for char in text):
        first = " ".join(text.split())[:60]
        return BadFile(f"{file.path}: this is a text of {file.size} bytes, not a checkpoint; it begins {first!a}")
    if _MSGPACK.match(head):
        return BadFile(
            f"{file.path}: this looks like a msgpack file, as Flax writes; read it with flax.serialization and save the"
            " parameters as .npz"
        )
    return BadFile(
        f"{file.path}: no kind of checkpoint that is known; {file.size} bytes that begin {head[:8].hex(' ')}. Read are"
        " safetensors, torch (.pth, .pt, .bin), TorchScript, npz and ONNX files"
    )
