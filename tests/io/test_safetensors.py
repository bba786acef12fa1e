from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vitconv.errors import BadFile, VitconvError
from vitconv.io.source import open_checkpoint


def build(header: Any, data: bytes = b"", length: int | None = None, pad: bytes = b"") -> bytes:
    """Return a file with this header, given as a value or as raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += pad
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: object = 0, end: object = 8, dtype: object = "F32", shape: object = (2,)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_reference_writes(tmp_path: Path, state, assert_holds) -> None:
    dense = {key: value.detach().contiguous().clone() for key, value in state.items()}
    safetensors.torch.save_file(dense, tmp_path / "a.safetensors", metadata={"format": "pt", "é": "\n"})
    with open_checkpoint(tmp_path / "a.safetensors") as ckpt:
        assert ckpt.format == "safetensors"
        assert ckpt.metadata == {"format": "pt", "é": "\n"}
        assert_holds(ckpt, dense)
        offsets = [stored.blob.offset for stored in ckpt.tensors]
        assert offsets == sorted(offsets)
        assert all(ckpt.segment(stored) is not None for stored in ckpt.tensors)
        assert len(ckpt.digest) == 64


def test_digest_tells_headers_apart(tmp_path: Path) -> None:
    digests = set()
    for shape in ((2,), (1, 2), (2, 1)):
        path = tmp_path / "a.safetensors"
        path.write_bytes(build({"w": entry(shape=shape)}, bytes(8)))
        with open_checkpoint(path) as ckpt:
            digests.add(ckpt.digest)
    assert len(digests) == 3


GOOD = {"w": entry(), "v": entry(8, 12, "I32", [])}

BAD = {
    "header longer than the file": (build(GOOD, bytes(12), length=10_000), "claims 10000 bytes"),
    "header of 2^63 bytes": (build(GOOD, bytes(12), length=2**63), "claims"),
    "header cut": (build(GOOD, b"", length=40), "not valid JSON"),
    "no object": (build(b"[1, 2]  "), "no kind of checkpoint"),
    "space before the object": (build(b" {}     "), "no kind of checkpoint"),
    "text after the object": (build(b"{} x    "), "not valid JSON"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not valid JSON"),
    "named twice": (build(b'{"w": 1, "v": 2, "w": 3, "w": 4}'), "names 'w' twice"),
    "a field twice": (build(b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "'dtype' twice"),
    "deep": (build(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nest"),
    "deep and short": (build(b'{"w":' + b"[" * 20_000 + b"]" * 20_000 + b"}"), "nest"),
    "wide": (build(b'{"w":[' + b"{}," * 50_000 + b"{}]}"), "nests lists or objects"),
    "NaN": (build(b'{"w": NaN}'), "'w'"),
    "a very long number": (build(b'{"w": ' + b"1" * 10_000 + b"}"), "not valid JSON"),
    "lone surrogate": (build(b'{"\\ud800": ' + json.dumps(entry()).encode() + b"}", bytes(8)), "Unicode"),
    "metadata no texts": (build({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata a list": (build({"__metadata__": []}), "__metadata__"),
    "entry a number": (build({"w": 3}), "an entry must hold"),
    "entry with more": (build({"w": {**entry(), "x": 1}}, bytes(8)), "an entry must hold"),
    "no dtype": (build({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "an entry must hold"),
    "dtype unknown": (build({"w": entry(dtype="Q4_0")}, bytes(8)), "'Q4_0' is not supported"),
    "dtype a list": (build({"w": entry(dtype=["F32"])}, bytes(8)), "is not supported"),
    "shape a number": (build({"w": entry(shape=2)}, bytes(8)), "a shape must be"),
    "shape negative": (build({"w": entry(shape=[-2, -1])}, bytes(8)), "a shape must be"),
    "shape a float": (build({"w": entry(shape=[2.0])}, bytes(8)), "a shape must be"),
    "shape a bool": (build({"w": entry(0, 4, shape=[True])}, bytes(4)), "a shape must be"),
    "shape a text": (build({"w": entry(shape=["2"])}, bytes(8)), "a shape must be"),
    "shape huge": (build({"w": entry(shape=[2**59, 2**59, 0], end=0)}), "impossibly large"),
    "shape of 1000 axes": (build({"w": entry(shape=[1] * 1000, end=4)}, bytes(4)), "impossibly large"),
    "shape not the size": (build({"w": entry(shape=[3])}, bytes(8)), "do not give the size"),
    "offsets one": (build({"w": {**entry(), "data_offsets": [0]}}, bytes(8)), "data_offsets must"),
    "offsets float": (build({"w": entry(0.0, 8)}, bytes(8)), "data_offsets must"),
    "offsets negative": (build({"w": entry(-8, 0)}, bytes(8)), "data_offsets must"),
    "offsets reversed": (build({"w": entry(8, 0)}, bytes(8)), "end before they begin"),
    "beyond the file": (build(GOOD, bytes(8)), "it is cut short"),
    "overlap": (build({"w": entry(), "v": entry(4, 12)}, bytes(12)), "overlaps 'w'"),
    "the same range": (build({"w": entry(), "v": entry()}, bytes(8)), "overlaps"),
    "hole": (build({"w": entry(), "v": entry(12, 20)}, bytes(20)), "hole of 4 bytes after 'w'"),
    "hole at the start": (build({"w": entry(4, 12)}, bytes(12)), "hole of 4 bytes after the header"),
    "bytes left over": (
        build({"w": entry()}, bytes(9)),
        "last 1 bytes belong to no tensor, so safetensors",
    ),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD.keys())
def test_damaged_headers(survives, tmp_path: Path, data: bytes, words: str) -> None:
    assert not survives(data, "bad.safetensors")
    with pytest.raises(BadFile) as caught:
        open_checkpoint(tmp_path / "bad.safetensors")
    assert words in str(caught.value)


def test_the_good_twin_of_the_damaged_ones_opens(survives) -> None:
    assert survives(build(GOOD, bytes(12)))
    assert survives(build({}, b""))
    assert survives(build(GOOD, bytes(12), pad=b" " * 5))
    assert survives(build({"a": entry(0, 0, shape=[0]), "b": entry(0, 0, shape=[3, 0]), "c": entry()}, bytes(8)))


def test_faults_of_a_kind_are_reported_together(tmp_path: Path) -> None:
    header = {f"w{i}": entry(dtype="Q4_0") for i in range(10)} | {"v": entry(shape=[-1])}
    (tmp_path / "a").write_bytes(build(header, bytes(8)))
    with pytest.raises(VitconvError, match=r"'w0', 'w1', 'w2', 'w3' and 6 more; a shape must be.*'v'"):
        open_checkpoint(tmp_path / "a")


def reference_takes(path: Path) -> bool:
    try:
        safetensors.torch.load_file(path)
    except Exception:
        return False
    return True


def test_what_only_we_refuse(tmp_path: Path) -> None:
    """The reference refuses the same damage, but for what it happens to read past."""
    path = tmp_path / "a"
    taken = set()
    for name, (data, _) in BAD.items():
        path.write_bytes(data)
        if reference_takes(path):
            taken.add(name)
    assert taken == {"space before the object", "entry with more", "shape of 1000 axes"}


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"w": torch.ones(1000)}, path)
    with open_checkpoint(path) as ckpt:
        with path.open("r+b") as file:
            file.truncate(2000)
        with pytest.raises(BadFile, match=r"'w'.*cut short"):
            ckpt.read(ckpt.tensors[0])
