"""Edits on a trained file, written and loaded strictly by timm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitconv.conversion.convert import Order, convert
from vitconv.errors import Refused
from vitconv.layout.edits.interpolate import resize_grid

DIGITS = Path(__file__).parents[3] / "fixtures" / "digits"
SOURCE = DIGITS / "vit_digits.safetensors"


def images(n: int = 64) -> torch.Tensor:
    held_out = np.load(DIGITS / "held_out.npz")
    return torch.from_numpy(held_out["images"][:n].astype(np.float32))


def load(path: Path, **changes: object) -> torch.nn.Module:
    import json

    import timm
    from safetensors.torch import load_file

    args = json.loads((DIGITS / "config.json").read_text())
    model = timm.create_model(args["architecture"], num_classes=10, **{**args["model_args"], **changes})
    model.load_state_dict(load_file(path), strict=True)
    return model.eval()


def edited(tmp_path: Path, *edits: str, to: str = "timm", **order: object) -> Path:
    out = tmp_path / "out.safetensors"
    convert(SOURCE, out, Order(to, edits=edits, **order))
    return out


def test_gray_to_colour_and_back_gives_the_same_logits(tmp_path: Path) -> None:
    x = images()
    with torch.no_grad():
        before = load(SOURCE)(x)
        colour = load(edited(tmp_path, "change-channels:channels=3"), in_chans=3)(x.repeat(1, 3, 1, 1))
        again = load(edited(tmp_path, "change-channels:3", "change-channels:1"))(x)
    for after in (colour, again):
        assert (after - before).abs().max() < 1e-5 * before.abs().max()


def test_a_larger_patch_on_larger_images(tmp_path: Path) -> None:
    x = images()
    large = torch.nn.functional.interpolate(x, scale_factor=2, mode="bicubic", antialias=True)
    args = {"img_size": 16, "patch_size": 4}
    with torch.no_grad():
        before = load(SOURCE)(x)
        pinv = load(edited(tmp_path, "resize-patch:patch=4,keep=grid"), **args)(large)
        plain = load(edited(tmp_path, "resize-patch:patch=4,keep=grid,how=bicubic"), **args)(large)
    assert (pinv.argmax(1) == before.argmax(1)).float().mean() > 0.9
    assert (pinv - before).abs().mean() < 0.2 * (plain - before).abs().mean()


def test_patch_and_positions_as_one_operation(tmp_path: Path) -> None:
    out = edited(tmp_path, "resize-patch:patch=4,rule=bicubic-antialias")
    model = load(out, patch_size=4)
    source = load(SOURCE)
    assert model.pos_embed.shape == (1, 1 + 4, 64)
    rows = source.pos_embed[0, 1:].detach().numpy()
    assert np.array_equal(
        model.pos_embed[0, 1:].detach().numpy(), resize_grid(rows, (4, 4), (2, 2), "bicubic-antialias")
    )
    assert torch.equal(model.pos_embed[0, 0], source.pos_embed[0, 0])


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_a_cast_equals_torch(tmp_path: Path, dtype: str) -> None:
    from safetensors.torch import load_file

    kind = {"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}[dtype]
    before, after = load_file(SOURCE), load_file(edited(tmp_path, dtype=dtype))
    assert list(before) and before.keys() == after.keys()
    for key, x in before.items():
        assert torch.equal(after[key].view(torch.uint8), x.to(kind).view(torch.uint8)), key


def test_an_overflow_leaves_no_file(tmp_path: Path) -> None:
    wishes = {"edits": ("fill:blocks.{i}.ls1=1e7", "fold-layer-scale"), "dtype": "F16"}
    with pytest.raises(Refused, match=r"past F16's largest value, 65504, in blocks"):
        convert(SOURCE, tmp_path / "out.safetensors", Order("timm", **wishes))
    assert list(tmp_path.iterdir()) == []
