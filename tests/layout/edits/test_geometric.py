"""Tables of relative positions by a geometric sequence, as BEiT and timm have it: near offsets stay."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from vitconv.errors import Refused
from vitconv.layout.edits.geometric import axis_matrix, pull_back_offsets, resize_offsets

SIZES = [((7, 7), (11, 11)), ((5, 9), (9, 13)), ((27, 27), (47, 47)), ((13, 13), (7, 7)), ((5, 5), (41, 41))]
each_size = pytest.mark.parametrize(("source", "target"), SIZES, ids=[f"{a[0]}x{a[1]}-{b[0]}x{b[1]}" for a, b in SIZES])


def published(source: int, target: int) -> tuple[list[float], np.ndarray]:
    """Return the places of old and new offsets as BEiT's code finds them: bisection for the ratio, then its sums."""
    left, right = 1.01, 1.5
    while right - left > 1e-6:
        ratio = (left + right) / 2.0
        reach = (1.0 - ratio ** (source // 2)) / (1.0 - ratio)
        left, right = (left, ratio) if reach > target // 2 else (ratio, right)
    places, at = [], 1.0
    for i in range(source // 2):
        places.append(at)
        at += ratio ** (i + 1)
    half = target // 2.0
    return [-p for p in reversed(places)] + [0.0] + places, np.arange(-half, half + 0.1, 1.0)


@each_size
def test_it_is_the_cubic_spline_of_scipy(source: tuple[int, int], target: tuple[int, int]) -> None:
    interpolate = pytest.importorskip("scipy.interpolate")
    table = np.random.default_rng(0).standard_normal((source[0] * source[1], 2))
    (y, new_y), (x, new_x) = (published(s, t) for s, t in zip(source, target, strict=True))
    got = resize_offsets(table, source, target, "geometric").reshape(*target, 2)
    for head in range(2):
        spline = interpolate.RectBivariateSpline(y, x, table[:, head].reshape(source), s=0)
        want = spline(np.clip(new_y, y[0], y[-1]), np.clip(new_x, x[0], x[-1]))
        assert np.abs(got[..., head] - want).max() < 1e-12


@each_size
def test_its_linear_form_is_that_of_timm(source: tuple[int, int], target: tuple[int, int]) -> None:
    resize = pytest.importorskip("timm.layers.pos_embed_rel").resize_rel_pos_bias_table
    import torch

    table = torch.randn(source[0] * source[1] + 3, 2, generator=torch.Generator().manual_seed(0))
    old, new = (tuple((n + 1) // 2 for n in sides) for sides in (source, target))
    rows = target[0] * target[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = resize(table, new, (rows + 3, 2), old)
    got = resize_offsets(table[:-3].numpy(), source, target, "geometric-linear")
    assert np.abs(got - want[:-3].numpy()).max() < 2e-6


@each_size
@pytest.mark.parametrize("rule", ["geometric", "geometric-linear"])
def test_gradients_go_back_by_its_transpose(rule: str, source: tuple[int, int], target: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((source[0] * source[1], 2)), rng.standard_normal((target[0] * target[1], 2))
    there, back = resize_offsets(x, source, target, rule), pull_back_offsets(y, source, target, rule)
    assert abs((there * y).sum() - (x * back).sum()) < 1e-9 * np.abs(there * y).sum()


def test_near_offsets_keep_their_values() -> None:
    """At 0 and 1 the old places are the new ones: what a bicubic of the whole table moves, this leaves."""
    for degree in (1, 3):
        matrix = axis_matrix(27, 47, degree)
        for offset in (-1, 0, 1):
            assert np.abs(matrix[23 + offset] - np.eye(27)[13 + offset]).max() < 1e-6


def test_an_axis_that_keeps_its_length_stays() -> None:
    assert np.array_equal(axis_matrix(7, 7, 3), np.eye(7))


def test_a_cubic_through_three_offsets_is_refused() -> None:
    with pytest.raises(Refused, match="say rule=geometric-linear"):
        axis_matrix(3, 7, 3)
