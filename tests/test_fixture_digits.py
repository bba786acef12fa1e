"""The digits fixture says the truth: timm rebuilds it from its folder, and it classifies as its README says."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "fixtures" / "digits"


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 1_000_000


def test_the_weights_are_timms_names_in_float32() -> None:
    with (FOLDER / "vit_digits.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    del header["__metadata__"]
    assert len(header) == 56
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    assert header["blocks.3.attn.qkv.weight"]["shape"] == [192, 64]


def test_timm_rebuilds_it_and_gives_the_logits() -> None:
    timm = pytest.importorskip("timm")
    import numpy as np
    import torch

    model = timm.create_model(f"local-dir:{FOLDER}", pretrained=True).eval()
    held_out = np.load(FOLDER / "held_out.npz")
    with torch.inference_mode():
        logits = model(torch.from_numpy(held_out["images"])).numpy()
    # Made on another machine: sums in another order, so close and not equal.
    np.testing.assert_allclose(logits, held_out["logits"], rtol=0, atol=1e-4)
    right = (held_out["logits"].argmax(1) == held_out["labels"]).sum()
    assert right == 350
    assert (logits.argmax(1) == held_out["labels"]).sum() == right


@pytest.mark.parametrize("key", ["blocks.0.attn.qkv.bias", "blocks.3.mlp.fc2.bias", "norm.weight", "cls_token"])
def test_it_was_really_trained(key: str) -> None:
    # timm starts biases at 0, norms at 1 and the class token near 0.
    numpy = pytest.importorskip("safetensors.numpy")
    tensor = numpy.load_file(FOLDER / "vit_digits.safetensors")[key]
    start = 1.0 if key == "norm.weight" else 0.0
    assert abs(tensor - start).max() > 0.01
