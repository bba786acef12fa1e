from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitconv.errors import BadFile
from vitconv.io.source import open_checkpoint

SAVERS = pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "packed"])


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {
        "params/Transformer/encoderblock_0/kernel": rng.standard_normal((3, 4, 5), np.float32),
        "fortran": np.asfortranarray(rng.standard_normal((4, 3, 2))),
        "half": rng.standard_normal(5).astype(np.float16),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
        "strided": np.arange(20, dtype=np.uint16)[::3],
    }
    for kind in ("u1", "u4", "u8", "i1", "i2", "i4"):
        found[kind] = rng.integers(0, 100, (2, 3)).astype(kind)
    return found


@SAVERS
def test_every_bit_comes_back(tmp_path: Path, arrays, save) -> None:
    save(tmp_path / "a.npz", **arrays)
    with open_checkpoint(tmp_path / "a.npz") as ckpt:
        assert ckpt.format == "npz"
        assert [stored.path for stored in ckpt.tensors] == [(key,) for key in arrays]
        for stored, array in zip(ckpt.tensors, arrays.values(), strict=True):
            assert stored.shape == array.shape
            assert bytes(ckpt.read(stored)) == array.tobytes("C")
            assert stored.itemsize == array.itemsize
            assert ckpt.read_range(stored, 0, stored.nbytes // 2) == array.tobytes("C")[: stored.nbytes // 2]
            plain = save is np.savez and stored.contiguous
            assert (ckpt.segment(stored) is not None) == plain
        assert {stored.key for stored in ckpt.tensors if not stored.contiguous} == {"fortran"}


@SAVERS
def test_bfloat16_comes_as_void(tmp_path: Path, save) -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    save(tmp_path / "a.npz", w=bits.view("V2"))
    with open_checkpoint(tmp_path / "a.npz") as ckpt:
        assert (ckpt.tensors[0].dtype, ckpt.tensors[0].shape) == ("BF16", (2,))
        assert bytes(ckpt.read(ckpt.tensors[0])) == bits.tobytes()
        assert any("bfloat16" in note and "'w'" in note for note in ckpt.notes)


@SAVERS
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([{}], object), "objects"),
        (np.ones(2, ">f4"), "big-endian"),
        (np.ones(2, np.complex128), "is not supported"),
        (np.zeros(2, [("a", "<f4"), ("b", "<i4")]), "is not supported"),
    ],
    ids=["objects", "big-endian", "complex128", "records"],
)
def test_arrays_that_are_no_tensors(tmp_path: Path, save, array, words) -> None:
    save(tmp_path / "a.npz", good=np.ones(2), bad=array)
    with pytest.raises(BadFile) as caught:
        open_checkpoint(tmp_path / "a.npz")
    assert words in str(caught.value)
    assert "'bad.npy'" in str(caught.value)


@SAVERS
def test_texts_are_left_out_aloud(tmp_path: Path, save) -> None:
    save(tmp_path / "a.npz", good=np.ones(2), version=np.array("1.0"), day=np.array("2020-01-01", "M8[D]"))
    with open_checkpoint(tmp_path / "a.npz") as ckpt:
        assert [stored.key for stored in ckpt.tensors] == ["good"]
        assert ckpt.notes == ("left out, being texts or dates: 'version.npy', 'day.npy'",)


def header(text: str, data: bytes = bytes(8), version: int = 1, length: int | None = None) -> bytes:
    raw = text.encode("latin-1")
    width = 2 if version == 1 else 4
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(width, "little") + raw + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
BAD = {
    "no magic": b"xxxxxxxxxxxxxxxxxx",
    "nothing": b"",
    "version 9": header(GOOD, version=9),
    "cut": header(GOOD)[:40],
    "header longer than the file": header(GOOD, length=60_000),
    "evaluated": header("{'descr': __import__('os').mkdir('ran'), 'fortran_order': False, 'shape': (2,), }"),
    "deep": header("{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 5000 + ")" * 5000 + ", }"),
    "negative": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }"),
    "huge": header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
    "too many": header("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"),
    "too few": header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"),
    "float": header("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,), }"),
    "no order": header("{'descr': '<f4', 'shape': (2,), }"),
    "empty dtype": header("{'descr': '', 'fortran_order': False, 'shape': (2,), }"),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "packed"])
def test_damaged_arrays(survives, tmp_path: Path, monkeypatch, data, method) -> None:
    monkeypatch.chdir(tmp_path)
    for body, fine in ((data, False), (header(GOOD), True), (header(GOOD, version=2), True)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("w.npy", body)
        assert survives(buffer.getvalue()) == fine


def test_a_packed_array_of_zeros_takes_no_memory_until_it_is_asked_for(survives) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, w=np.zeros(20_000_000, np.float32))
    assert len(buffer.getvalue()) < 200_000
    assert survives(buffer.getvalue())
