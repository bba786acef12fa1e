"""A small state dict with awkward members, and the two questions asked of every opened file."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vitconv.errors import VitconvError
from vitconv.io.sink import Chunk, Out
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import Stored

sys.path.insert(0, str(Path(__file__).parent))

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
}


def raw(tensor: Any) -> bytes:
    """Return the bytes of a torch tensor in C order."""
    import torch

    dense = tensor.detach().contiguous().reshape(-1)
    return bytes(dense.view(torch.uint8).numpy()) if dense.numel() else b""


@pytest.fixture
def state() -> dict[str, Any]:
    """Every dtype, 0-d, empty, transposed, channels-last, expanded, sliced, shared and cut from one buffer."""
    import torch

    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name in NAMES:
        bits = torch.randint(0, 256, (3 * 4 * 8,), dtype=torch.uint8)
        if name == "bool":
            bits = bits % 2
        found[f"kind.{name}"] = bits.view(getattr(torch, name))[:12].reshape(3, 4).clone()
    base = torch.randn(6, 5)
    buffer = torch.randn(20)
    found |= {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "transposed": base.t(),
        "base": base,
        "tied": base,
        "sliced": torch.randn(8, 8)[1::2, 2:5],
        "channels_last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 3).expand(4, 3),
        "cut.0": buffer[:5],
        "cut.1": buffer[5:20].reshape(3, 5),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    return found


@pytest.fixture
def assert_holds() -> Callable[..., None]:
    """Return a check that a checkpoint holds exactly these torch tensors under a container, bit for bit."""

    def check(ckpt: Checkpoint, state: dict[str, Any], container: tuple[str, ...] = ()) -> None:
        held = {stored.key: stored for stored in ckpt.tensors if stored.path[:-1] == container}
        assert set(held) == set(state)
        for key, tensor in state.items():
            stored = held[key]
            assert (stored.dtype, stored.shape) == (NAMES[str(tensor.dtype)[6:]], tuple(tensor.shape)), key
            wanted = raw(tensor)
            assert bytes(ckpt.read(stored)) == wanted, key
            middle = len(wanted) // 2
            pieces = ckpt.read_range(stored, 0, middle) + ckpt.read_range(stored, middle, len(wanted))
            assert pieces == wanted, key
            segment = ckpt.segment(stored)
            if segment is not None:
                assert os.pread(segment.fd, segment.nbytes, segment.offset) == wanted, key

    return check


@pytest.fixture
def source(tmp_path: Path, state: dict[str, Any]) -> Iterator[Checkpoint]:
    """The state dict, saved by torch and opened."""
    import torch

    torch.save(state, tmp_path / "source.pth")
    with open_checkpoint(tmp_path / "source.pth") as ckpt:
        yield ckpt


@pytest.fixture
def outs_of() -> Callable[..., list[Out]]:
    """Return a maker of outputs that copy a checkpoint, as byte ranges where it has them, or as buffers when `held`."""

    def make(ckpt: Checkpoint, held: bool = False) -> list[Out]:
        def chunks(stored: Stored) -> list[Chunk]:
            segment = None if held else ckpt.segment(stored)
            return [segment or ckpt.read(stored)]

        return [Out(s.key, s.dtype, s.shape, lambda s=s: chunks(s)) for s in ckpt.tensors]  # type: ignore[misc]

    return make


@pytest.fixture
def survives(tmp_path: Path) -> Callable[[bytes], bool]:
    """Return a check that hostile bytes are opened and read, or refused in one line, quickly and in little memory.

    It says whether they could be opened. A file called `ran` in the working folder would betray that something was run.
    """
    marker = Path("ran")

    def check(data: bytes, name: str = "hostile.bin") -> bool:
        path = tmp_path / name
        path.write_bytes(data)
        opened = False
        started = time.monotonic()
        tracemalloc.start()
        try:
            with open_checkpoint(path) as ckpt:
                opened = True
                for stored in ckpt.tensors:
                    stop = min(stored.nbytes, 1 << 16)
                    assert len(ckpt.read_range(stored, 0, stop)) == stop
        except VitconvError as error:
            text = str(error)
            assert text
            assert "\n" not in text
            assert len(text) < 4000
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert time.monotonic() - started < 20
        assert peak < 24 * 2**20 + 120 * len(data), f"{peak} bytes for a file of {len(data)}"
        assert not marker.exists()
        return opened

    return check
