"""F11: BEiT on another grid: tables of relative positions by the geometric rule, the rows of the class token kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import bits, equal, save, tensors, vitconv

from vitconv.layout.edits.geometric import resize_offsets

Image = int | tuple[int, int]


def beit(image: Image = 16, *, shared: bool = False, absolute: bool = False, seed: int = 0) -> Any:
    """Return a tiny BEiT of timm's on a grid of patches of 4, every parameter drawn."""
    models = pytest.importorskip("timm.models")
    tables = {"use_rel_pos_bias": not shared, "use_shared_rel_pos_bias": shared, "use_abs_pos_emb": absolute}
    sizes = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5, "init_values": 0.1}
    net = models.Beit(img_size=image, **sizes, **tables)
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=gen))
    return net.eval()


def tables(state: dict[str, torch.Tensor]) -> list[str]:
    return [k for k in state if k.endswith("relative_position_bias_table")]


@pytest.mark.parametrize("shared", [False, True], ids=["per-block", "shared"])
def test_f11_a_table_is_resized_geometrically_and_the_last_rows_stay(tmp_path: Path, shared: bool) -> None:
    source = save(tmp_path / "s.safetensors", beit(shared=shared).state_dict())
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "beit", "--edit", "resize-window:to=6")
    assert answer.code == 3
    assert "rule=geometric" in answer.err
    answer = vitconv("convert", source, out, "--to", "beit", "--edit", "resize-window:to=6,rule=geometric")
    assert answer.code == 0, answer.text
    assert "resized from 4x4 by geometric; the three rows of the class token untouched" in answer.out
    here, there = tensors(source), tensors(out)
    assert len(tables(here)) == (1 if shared else 2)
    for key, x in here.items():
        if key not in tables(here):
            assert bits(x) == bits(there[key])
            continue
        assert there[key].shape == (121 + 3, 2)
        assert bits(there[key][-3:]) == bits(x[-3:])
        want = resize_offsets(x[:-3].numpy(), (7, 7), (11, 11), "geometric")
        assert np.abs(there[key][:-3].numpy() - want).max() < 1e-6
    beit(24, shared=shared, seed=1).load_state_dict(there, strict=True)


def test_f11_the_linear_resize_that_was_reported_is_another_one(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", beit().state_dict())
    made = {}
    for rule in ("geometric", "geometric-linear", "bilinear", "bicubic"):
        out = tmp_path / f"{rule}.safetensors"
        assert vitconv("convert", source, out, "--to", "beit", "--edit", f"resize-window:to=6,rule={rule}").code == 0
        made[rule] = tensors(out)[tables(tensors(out))[0]]
    for rule in ("bilinear", "bicubic"):
        assert (made["geometric"] - made[rule]).abs().max() > 0.05
    # Offset zero: one row of the old table, whole, by the geometric rules alone.
    zero = tensors(source)[tables(tensors(source))[0]][24]
    assert (made["geometric"][60] - zero).abs().max() < 1e-6
    assert (made["bilinear"][60] - zero).abs().max() < 1e-6
    one = tensors(source)[tables(tensors(source))[0]][25]
    assert (made["geometric"][61] - one).abs().max() < 1e-6
    assert (made["bilinear"][61] - one).abs().max() > 1e-3


@pytest.mark.parametrize("to", ["4x6", "6x8"])
def test_f11_a_grid_that_is_no_square(tmp_path: Path, to: str) -> None:
    source = save(tmp_path / "s.safetensors", beit().state_dict())
    out, back = tmp_path / "out.safetensors", tmp_path / "back.safetensors"
    answer = vitconv("convert", source, out, "--to", "beit", "--edit", f"resize-window:to={to},rule=geometric")
    assert answer.code == 0, answer.text
    rows, columns = map(int, to.split("x"))
    image = (4 * rows, 4 * columns)
    net = beit(image, seed=1)
    net.load_state_dict(tensors(out), strict=True)
    with torch.no_grad():
        assert torch.isfinite(net(torch.zeros(1, 3, *image))).all()
    # The written file says its grid, so that the way back needs no more words.
    answer = vitconv("convert", out, back, "--to", "beit", "--edit", "resize-window:to=4,rule=geometric")
    assert answer.code == 0, answer.text
    assert f"resized from {to}" in answer.out


def test_f11_the_grid_of_a_table_that_is_no_square_is_asked_for(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", beit((16, 24)).state_dict())
    out = tmp_path / "out.safetensors"
    edit = "resize-window:to=6,rule=geometric"
    answer = vitconv("convert", source, out, "--to", "beit", "--edit", edit)
    assert answer.code == 3
    assert "77 rows, those of no square window; say the window it has, as from=4x8" in answer.err
    assert vitconv("convert", source, out, "--to", "beit", "--edit", f"{edit},from=4x6").code == 0
    assert vitconv("convert", source, out, "--to", "beit", "--edit", edit, "--set", "grid=4x6").code == 0
    answer = vitconv("convert", source, tmp_path / "x.safetensors", "--to", "beit", "--edit", f"{edit},from=5x5")
    assert answer.code == 3


def test_f11_a_grid_that_is_there_already_changes_nothing(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", beit().state_dict())
    out = tmp_path / "out.safetensors"
    assert vitconv("convert", source, out, "--to", "beit", "--edit", "resize-window:to=4").code == 0
    assert equal(tensors(source), tensors(out))


def test_f11_a_table_of_positions_beside_it_comes_first(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", beit(absolute=True).state_dict())
    out = tmp_path / "out.safetensors"
    window, position = "resize-window:to=6,rule=geometric", "resize-position:to=6x6,rule=bicubic"
    answer = vitconv("convert", source, out, "--to", "beit", "--edit", window)
    assert answer.code == 3
    assert "--edit resize-position:to=6x6" in answer.err
    told = ("--set", "grid=4x4", "--edit", position, "--edit", window)
    answer = vitconv("convert", source, out, "--to", "beit", *told)
    assert answer.code == 0, answer.text
    beit(24, absolute=True, seed=1).load_state_dict(tensors(out), strict=True)
