"""Whatever the bytes are: opened, or refused in one line; never another error, a hang, an execution, or much memory.

HYPOTHESIS_PROFILE=thorough tries far more.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# `survives` keeps no state between examples.
fuzz = settings(
    max_examples=settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def weights() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"w": torch.randn(3, 4), "t": torch.randn(4, 3).t(), "ids": torch.arange(5), "s": torch.tensor(1.0)}


def torch_file(**options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": weights(), "epoch": 3, "args": {"lr": 0.1, "arr": np.ones(3)}}, buffer, **options)
    return buffer.getvalue()


def npz_file(save: Callable[..., None]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, a=np.ones((2, 3), np.float32), b=np.asfortranarray(np.ones((3, 2))))
    return buffer.getvalue()


def packed() -> bytes:
    buffer = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(torch_file()))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    return buffer.getvalue()


def onnx_file() -> bytes:
    onnx = pytest.importorskip("onnx")
    tensors = [
        onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), name) for name in ("a.weight", "onnx::MatMul_1")
    ]
    nodes = [onnx.helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["y"], "/b/MatMul")]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], tensors)).SerializeToString()


VALID: dict[str, Callable[[], bytes]] = {
    "safetensors": lambda: safetensors.torch.save({k: v.contiguous() for k, v in weights().items()}, {"a": "b"}),
    "torch zip": torch_file,
    "torch zip, protocol 5": lambda: torch_file(pickle_protocol=5),
    "torch legacy": lambda: torch_file(_use_new_zipfile_serialization=False),
    "torch zip, packed": packed,
    "npz": lambda: npz_file(np.savez),
    "npz, packed": lambda: npz_file(np.savez_compressed),
    "onnx": onnx_file,
}


@lru_cache
def valid(kind: str) -> bytes:
    return VALID[kind]()


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "number", "cut", "double", "drop", "swap"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=6,
)


def edit(data: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    found = bytearray(data)
    for what, place, value in edits:
        at = int(place * len(found))
        if what == "flip" and found:
            found[at] ^= 1 << value % 8
        elif what == "set" and found:
            found[at] = value % 256
        elif what == "number":
            width = (2, 4, 8)[value % 3]
            found[at : at + width] = (value >> 3).to_bytes(8, "little")[:width]
        elif what == "cut":
            del found[at:]
        elif what == "double":
            found[at:at] = found[at : at + value % 64]
        elif what == "drop":
            del found[at : at + value % 16]
        elif what == "swap":
            other = value % max(1, len(found))
            found[at : at + 8], found[other : other + 8] = found[other : other + 8], found[at : at + 8]
    return bytes(found)


@pytest.mark.parametrize("kind", VALID)
def test_the_files_are_valid_before_they_are_changed(survives, kind) -> None:
    assert survives(valid(kind))


@pytest.mark.parametrize("kind", VALID)
@fuzz
@given(edits=EDITS)
def test_changed_files(survives, kind, edits) -> None:
    survives(edit(valid(kind), edits))


def repack(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Change the members of a zip, and leave the zip itself in order, so that the change is reached."""
    buffer = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(data))
    with zipfile.ZipFile(buffer, "w") as target:
        for info in source.infolist():
            target.writestr(info.filename, change(info.filename, source.read(info)))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["torch zip", "torch zip, protocol 5", "npz"])
@fuzz
@given(edits=EDITS)
def test_changed_members_of_a_sound_zip(survives, kind, edits) -> None:
    members = (".pkl", ".npy")
    survives(repack(valid(kind), lambda name, data: edit(data, edits) if name.endswith(members) else data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
SIZE = st.integers(-2, 12) | st.sampled_from([2**31, 2**63, 2**64, True, None, 1.0, "1"])
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BF16", "f32", "", 4, None]),
        "shape": st.lists(SIZE, max_size=4) | SIZE,
        "data_offsets": st.lists(SIZE, min_size=1, max_size=3) | SIZE,
    },
    optional={"more": JSON},
)


@fuzz
@given(
    entries=st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "\ud800", ""]), ENTRY | JSON, max_size=3),
    data=st.binary(max_size=64),
    wrong=st.sampled_from([0, 0, 0, 1, -1, 2**40, -100]),
)
def test_made_up_safetensors_headers(survives, entries, data, wrong) -> None:
    text = json.dumps(entries).encode()
    survives(((len(text) + wrong) % 2**64).to_bytes(8, "little") + text + data)


OPCODES = st.lists(
    st.sampled_from(
        [bytes([code]) for code in range(256)]
        + [
            b"K\x01", b"K\x00", b"X\x01\x00\x00\x00a", b"ctorch._utils\n_rebuild_tensor_v2\n",
            b"ctorch\nFloatStorage\n", b"X\x07\x00\x00\x00storage", b"X\x01\x00\x00\x000", b"q\x00", b"h\x00", b"}",
            b"]",
            b"(", b"t", b"\x85", b"\x86", b"R", b"b", b"Q", b"s", b"u", b"e", b"ccollections\nOrderedDict\n", b")",
            b"cnumpy.core.multiarray\nscalar\n", b"cnumpy\ndtype\n", b"c__torch__\nNet\n", b"\x81", b"N", b"2",
            b"X\x08\x00\x00\x00_modules", b"X\x0b\x00\x00\x00_parameters", b"cpathlib\nPosixPath\n",
        ]
    ),
    max_size=40,
)  # fmt: skip


@fuzz
@given(parts=OPCODES, start=st.sampled_from([b"\x80\x02", b"\x80\x04", b""]), zipped=st.booleans())
def test_made_up_pickles(survives, parts, start, zipped) -> None:
    data = start + b"".join(parts) + b"."
    if zipped:
        data = repack(valid("torch zip"), lambda name, old: data if name.endswith(".pkl") else old)
    survives(data)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.just(torch.Size([2])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.text(max_size=4) | st.integers(0, 3) | st.none() | st.tuples(st.integers()), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@fuzz
@given(value=VALUES, zipped=st.booleans(), protocol=st.integers(2, 5))
def test_torch_files_of_any_plain_value_open(survives, value, zipped, protocol) -> None:
    buffer = io.BytesIO()
    torch.save(
        {"model": weights(), "more": value}, buffer, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol
    )
    assert survives(buffer.getvalue())


@fuzz
@given(
    data=st.binary(max_size=200), start=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x08\x07:", b"\x80\x02"])
)
def test_noise(survives, data, start) -> None:
    survives(start + data)


class TestTheCheckHasTeeth:
    """What `survives` is there to notice, it notices."""

    def test_another_error(self, survives, monkeypatch) -> None:
        monkeypatch.setattr("vitconv.io.safetensors._parse", lambda *_: {}["missing"])
        with pytest.raises(KeyError):
            survives(valid("safetensors"))

    def test_an_execution(self, survives, monkeypatch, tmp_path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("vitconv.io.allowed.known", lambda _: (tmp_path / "ran").touch())
        with pytest.raises(AssertionError):
            survives(valid("torch zip"))

    def test_memory(self, survives, monkeypatch) -> None:
        monkeypatch.setattr("vitconv.io.sniff._refuse_known", lambda *_: bytearray(40 << 20) and None)
        with pytest.raises(AssertionError, match="bytes for a file of"):
            survives(pickle.dumps([]))

    def test_several_lines(self, survives, monkeypatch) -> None:
        monkeypatch.setattr(
            "vitconv.io.sniff._unknown", lambda file, head: __import__("vitconv").errors.BadFile("a\nb")
        )
        with pytest.raises(AssertionError):
            survives(b"noise of any kind")
