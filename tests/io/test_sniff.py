from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitconv.errors import BadFile, UsageError
from vitconv.io.source import open_checkpoint


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("sys_info"))
    return buffer.getvalue()


def zipped(**parts: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 343000000\n"
# Members of what torch.export.save of torch 2.14 writes.
EXPORTED = {"a/data/weights/weight_0": b"1234", "a/models/model.json": b"{}", "a/archive_format": b"pt2"}
WRONG = {
    "empty": (b"", "empty (0 bytes)"),
    "git-lfs": (LFS, "git-lfs pointer of 71 bytes, not the weights; run git lfs pull"),
    "web page": (b"\n<!DOCTYPE html><html>Access denied", "web page of 35 bytes"),
    "web page, no doctype": (b"<html><body>404", "web page"),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied", "web page"),
    "gzip": (gzip.compress(b"x"), "gzip"),
    "tar": (tar(), "tar archive"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "gguf": (b"GGUF\x03" + bytes(64), "GGUF"),
    "array": (npy([1.0]), "single numpy array"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(9), "picture"),
    "tensorrt": (b"ftrt" + bytes(64), "an engine of TensorRT"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "a model of TensorFlow Lite"),
    "executorch": (b"\x1c\0\0\0ET12" + bytes(64), "a program of ExecuTorch (.pte)"),
    "openvino": (b"<?xml version='1.0'?>\n<net name='vit'>", "a network of OpenVINO"),
    "text": (b"hello\nthere", "text of 11 bytes, not a checkpoint; it begins 'hello there'"),
    "json": (b'{"a": 1}   ', "text of 11 bytes"),
    "noise": (bytes(range(200, 256)), "no kind of checkpoint that is known; 56 bytes that begin c8 c9"),
    "one byte": (b"\x80", "no kind of checkpoint"),
    "nine zeros": (bytes(9), "no kind of checkpoint"),
    "other zip": (zipped(a=b"x"), "neither a torch file nor an npz file; it holds 'a'"),
    "torch.export": (
        zipped(**EXPORTED),
        "a program of torch.export (.pt2); save its weights by themselves: torch.save(",
    ),
    "torch.export before 2.8": (zipped(**{"serialized_exported_program.json": b"{}"}), "a program of torch.export"),
    "keras": (zipped(**{"config.json": b"{}", "model.weights.h5": b"\x89HDF"}), "a model of Keras (.keras); save"),
    "core ml": (zipped(**{"m.mlpackage/Data/com.apple.CoreML/model.mlmodel": b"x"}), "a model of Core ML"),
    "zipped folder": (zipped(**{"run/model.safetensors": b"x", "run/config.json": b"{}"}), "unpack it first (it holds"),
    "empty zip": (zipped(), "it holds nothing"),
    "plain pickle": (b"\x80\x04]\x94.", "a pickle without torch's mark"),
}


@pytest.mark.parametrize(("data", "words"), WRONG.values(), ids=WRONG.keys())
def test_one_clear_error(survives, tmp_path: Path, data, words) -> None:
    # The name says nothing: the content decides.
    assert not survives(data, "model.safetensors")
    with pytest.raises(BadFile) as caught:
        open_checkpoint(tmp_path / "model.safetensors")
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone: there is no such file"):
        open_checkpoint(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"cannot be opened|no such file"):
        open_checkpoint("a\0b")
    with pytest.raises(UsageError, match=r"no such file|cannot be opened"):
        open_checkpoint(tmp_path / ("x" * 5000))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a plain file"):
        open_checkpoint(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a plain file"):
        open_checkpoint("/dev/null")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read(tmp_path: Path) -> None:
    (tmp_path / "x").touch(mode=0)
    with pytest.raises(UsageError, match="Permission"):
        open_checkpoint(tmp_path / "x")


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(LFS)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(BadFile):
            open_checkpoint(tmp_path / "x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
