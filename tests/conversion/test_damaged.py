"""A file that is not what its own checksum says: an npz is refused, a torch file is told of under --prove."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vitconv.conversion.convert import convert
from vitconv.conversion.prepare import Order
from vitconv.errors import BadFile

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits" / "vit_digits.safetensors"


def flipped(path: Path, tensor: torch.Tensor) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(tensor.numpy().tobytes()) + 7] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_npz_is_refused_and_nothing_written(tmp_path: Path) -> None:
    state = load_file(DIGITS)
    np.savez(tmp_path / "a.npz", **{k: v.numpy() for k, v in state.items()})
    convert(tmp_path / "a.npz", tmp_path / "whole.safetensors", Order(to="xformers"))
    flipped(tmp_path / "a.npz", state["blocks.1.attn.qkv.weight"])
    with pytest.raises(BadFile, match=r"blocks\.1\.attn\.qkv\.weight.*damaged.*checksum"):
        convert(tmp_path / "a.npz", tmp_path / "out.safetensors", Order(to="xformers"))
    assert not (tmp_path / "out.safetensors").exists()


def test_a_damaged_torch_file_is_told_of_under_prove(tmp_path: Path) -> None:
    state = load_file(DIGITS)
    torch.save(state, tmp_path / "a.pth")
    _, done = convert(tmp_path / "a.pth", tmp_path / "whole.safetensors", Order(to="xformers", prove=True))
    assert not [n for n in done.notes if "checksum" in n]
    flipped(tmp_path / "a.pth", state["blocks.1.attn.qkv.weight"])
    _, done = convert(tmp_path / "a.pth", tmp_path / "out.safetensors", Order(to="xformers", prove=True))
    assert [n for n in done.notes if "checksum" in n]
