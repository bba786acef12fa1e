"""The checksums of zip members: one flipped bit is seen, whichever member and thread it is in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitconv.io import threads
from vitconv.io.source import open_checkpoint


@pytest.fixture(params=["npz", "pth"])
def file(request, tmp_path: Path) -> Path:
    arrays = {f"w{i}": np.arange(300 * i, dtype=np.float32) for i in range(6)}
    path = tmp_path / f"a.{request.param}"
    if request.param == "npz":
        np.savez(path, **arrays)
    else:
        torch.save({k: torch.from_numpy(v) for k, v in arrays.items()}, path)
    return path


def test_a_whole_file_is_in_order(file: Path) -> None:
    with open_checkpoint(file) as found:
        assert found.damaged() == []


@pytest.mark.parametrize("processors", [1, 4])
@pytest.mark.parametrize("at", [1, 750, 1499])
def test_one_bit_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch, at: int, processors: int) -> None:
    monkeypatch.setattr(threads, "processors", lambda: processors)
    data = bytearray(file.read_bytes())
    place = data.index(np.arange(1500, dtype="<f4").tobytes())
    data[place + at * 4 + 3] ^= 0x10
    file.write_bytes(data)
    with open_checkpoint(file) as found:
        assert len(found.damaged()) == 1


def test_packed_members_are_left_to_inflating(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", w=np.arange(10))
    with open_checkpoint(tmp_path / "a.npz") as found:
        assert found.damaged() == []
