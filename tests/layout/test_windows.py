"""Sides of windows from tables and facts, how codebases shift them, and the buffers that follow from both."""

from __future__ import annotations

import numpy as np
import pytest

from vitconv.errors import LayoutError
from vitconv.layout.buffers import agrees, buffer, mask_of, window_of
from vitconv.layout.windows import RULES, contested, of_offsets, of_places, padded, part, shift_of, square, ways


@pytest.mark.parametrize(
    ("rows", "told", "grid", "window"),
    [
        (169, (None, None), None, (7, 7)),
        (169, (56, None), None, (7, 7)),
        (91, (4, 7), None, (4, 7)),
        (91, (7, None), None, (7, 4)),
        (91, (None, 7), None, (4, 7)),
        (91, (None, None), (4, 9), (4, 7)),
        (91, (None, None), (9, 9), None),
        (91, (None, None), None, None),
        (81, (2, 14), None, (2, 14)),
        (3, (None, None), (1, 5), (1, 2)),
    ],
)
def test_a_table_of_offsets_says_its_window(
    rows: int, told: tuple[int | None, int | None], grid: tuple[int, int] | None, window: tuple[int, int] | None
) -> None:
    assert of_offsets(rows, told, grid) == window


def test_a_table_of_places_says_its_window() -> None:
    assert of_places(49) == (7, 7)
    assert of_places(48, (6, None)) == (6, 8)
    assert of_places(48) is None
    assert of_places(50, (None, None), (5, 10)) == (5, 10)
    assert square((None, 4)) == (4, 4)
    assert square((None, None)) is None
    assert ways(91) == [(1, 46), (4, 7), (7, 4), (46, 1)]


def test_codebases_part_only_where_they_do() -> None:
    assert not contested((4, 4), (8, 16))
    assert not contested((4, 4), (4, 4))
    assert contested((4, 4), (4, 8))
    assert [shift_of((4, 4), (4, 8), rule) for rule in RULES] == [(0, 0), (0, 2), (0, 2), (0, 0), (2, 2)]
    assert [shift_of((4, 4), (8, 4), rule) for rule in RULES] == [(0, 0), (2, 0), (2, 0), (2, 2), (2, 2)]
    assert [shift_of((4, 6), (8, 8), rule) for rule in RULES] == [(2, 3)] * 5
    assert padded((4, 4), (8, 10))
    assert contested((4, 4), (8, 10))
    # Dense prediction shifts any map; where several windows lie along both sides all shift alike.
    for grid in ((4, 4), (3, 3)):
        assert [shift_of((4, 4), grid, rule) for rule in RULES] == [(0, 0)] * 4 + [(2, 2)]
        assert part((4, 4), grid, "mmseg", "microsoft")
    assert not part((4, 4), (8, 10), "mmseg", "microsoft")
    assert part((4, 4), (8, 10), "mmseg", "timm")
    # Zeros along a side that one window covers lie the same in all of them.
    assert not padded((4, 4), (3, 8))


WINDOWS = [((2, 2), (4, 8)), ((4, 2), (8, 6)), ((3, 3), (6, 9)), ((2, 4), (6, 8))]


@pytest.mark.parametrize(("window", "grid"), WINDOWS)
def test_buffers_of_windows_and_maps_that_are_no_squares(window: tuple[int, int], grid: tuple[int, int]) -> None:
    swin = pytest.importorskip("timm.models.swin_transformer")
    rel = pytest.importorskip("timm.layers.pos_embed_rel")
    block = swin.SwinTransformerBlock(8, grid, 2, window_size=window, shift_size=tuple(w // 2 for w in window))
    mask, index = block.get_attn_mask().numpy(), rel.gen_relative_position_index(window).numpy()
    sides, size = (f"{a}x{b}" for a, b in (window, grid))
    assert np.array_equal(buffer(f"shift-mask:{size}:{sides}", mask.shape), mask)
    assert np.array_equal(buffer(f"relative-index:{sides}", index.shape), index)
    assert np.array_equal(buffer(f"relative-index-flat:{sides}", (index.size,)), index.reshape(-1))
    assert (mask_of(mask), window_of(index), window_of(index.reshape(-1))) == ((window, grid), window, window)
    assert agrees("shift-mask", mask)
    assert agrees("relative-index", index)
    assert not agrees("shift-mask", mask + 1)
    assert not agrees("relative-index", index.T + 1)


def test_coordinates_of_a_window_that_is_no_square() -> None:
    made = buffer("coords:0", (1, 7, 3, 2))
    assert made[0, -1, -1].tolist() == pytest.approx([np.log2(9) / 3, np.log2(9) / 3])
    assert agrees("coords", made)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("relative-index", (6, 6)),
        ("relative-index:2x2", (6, 6)),
        ("shift-mask:4x4", (2, 4, 4)),
        ("shift-mask:4x4:2x3", (4, 4, 4)),
        ("coords:0", (1, 4, 3, 2)),
    ],
)
def test_shapes_that_cannot_be_are_refused(value: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError):
        buffer(value, shape)
