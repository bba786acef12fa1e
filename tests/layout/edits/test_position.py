"""resize-position: asks for grid and rule, touches nothing but the grid, and keeps sizes and facts consistent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.interpolate import RULES, resize_grid

PREFIXED = ("embed.cls", "embed.dist", "embed.reg", "embed.pos_cls", "embed.pos_dist", "embed.pos_reg", "embed.pos")


def test_sizes_and_facts_follow(random_network: Callable[..., Any]) -> None:
    net = random_network().told(grid=(4, 4), image_size=(16, 16))
    out = net.edited("resize-position:to=6x5,rule=bicubic-antialias")
    assert out["embed.pos"].shape == (30, 6)
    assert (out.network.sizes["n"], out.network.facts.grid, out.network.facts.image_size) == (30, (6, 5), (24, 20))
    assert np.array_equal(out["embed.pos"], resize_grid(net["embed.pos"], (4, 4), (6, 5), "bicubic-antialias"))
    assert "from 4x4 to 6x5 by bicubic-antialias (timm resample_abs_pos_embed" in out.last
    applied = out.network.log[-1]
    assert not applied.exact
    assert applied.adjoint == "the transpose of the interpolation"


def test_rows_of_other_tokens_are_untouched(random_network: Callable[..., Any]) -> None:
    net = random_network(PREFIXED, block=()).told(grid=(4, 4))
    out = net.edited("resize-position:6x6,rule=bicubic")
    for name in set(net.network.cells) - {"embed.pos"}:
        assert out.network.cells[name] == net.network.cells[name]
    assert "embed.pos_cls, embed.pos_dist, embed.pos_reg untouched" in out.last


def test_a_square_count_is_not_assumed_to_be_a_square(random_network: Callable[..., Any]) -> None:
    # Recipes C10 and C19: 16 rows may be 4x4 or 2x8.
    with pytest.raises(
        Refused, match=r"16 rows, and nothing says on which grid; say --set grid=4x4 \(if it is square\)"
    ):
        random_network().edited("resize-position:to=6x6,rule=bicubic")
    with pytest.raises(Refused, match=r"12 rows.*--set grid=HxW \(12 is not a square\)"):
        random_network(n=12).edited("resize-position:to=6x6,rule=bicubic")


def test_the_stated_grid_decides(random_network: Callable[..., Any]) -> None:
    net = random_network()
    wide = net.told(grid=(2, 8)).edited("resize-position:to=4x8,rule=bicubic")
    told = net.edited("resize-position:to=4x8,rule=bicubic,from=2x8")
    assert np.array_equal(wide["embed.pos"], told["embed.pos"])
    square = net.told(grid=(4, 4)).edited("resize-position:to=4x8,rule=bicubic")
    assert np.abs(square["embed.pos"] - wide["embed.pos"]).max() > 0.5


def test_a_grid_that_does_not_fit_is_refused(random_network: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match="a grid of 3x5 has 15 places, the position table 16 rows"):
        random_network().told(grid=(3, 5)).edited("resize-position:to=6x6,rule=bicubic")


def test_the_rule_is_asked_for_or_that_of_the_source(random_network: Callable[..., Any]) -> None:
    net = random_network().told(grid=(4, 4))
    with pytest.raises(Refused, match="say rule=NAME") as caught:
        net.edited("resize-position:to=6x6")
    assert all(rule in str(caught.value) for rule in RULES)
    known = net.told(position_resize="bicubic-offset").edited("resize-position:to=6x6")
    assert np.array_equal(known["embed.pos"], resize_grid(net["embed.pos"], (4, 4), (6, 6), "bicubic-offset"))
    assert "bicubic-offset" in known.last


def test_the_same_grid_changes_nothing(random_network: Callable[..., Any]) -> None:
    net = random_network().told(grid=(4, 4))
    out = net.edited("resize-position:to=4x4")
    assert out.network.cells == net.network.cells
    assert out.network.log[-1].exact
    # The same count on another shape is another grid.
    turned = net.edited("resize-position:to=2x8,rule=bilinear")
    assert np.abs(turned["embed.pos"] - net["embed.pos"]).max() > 0.1


def test_no_table(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="no position table"):
        random_network(("embed.cls",)).edited("resize-position:to=6x6,rule=bicubic")


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_tables_are_interpolated_in_float32(random_network: Callable[..., Any], dtype: str) -> None:
    import torch
    from timm.layers import resample_abs_pos_embed

    net = random_network(dtype=dtype).told(grid=(4, 4))
    out = net.edited("resize-position:to=6x6,rule=bicubic-antialias")
    assert out.network.cells["embed.pos"].dtype == dtype
    half = torch.from_numpy(np.array(net["embed.pos"])).to(torch.float16 if dtype == "F16" else torch.bfloat16)
    theirs = resample_abs_pos_embed(half[None], [6, 6], [4, 4], num_prefix_tokens=0)[0].float().numpy()
    assert np.array_equal(out["embed.pos"], theirs)


def test_the_adjoint(random_network: Callable[..., Any], dot: Callable[..., float]) -> None:
    net = random_network(dtype="F64").told(grid=(4, 4))
    out = net.edited("resize-position:to=6x5,rule=bicubic", "fold-cls-position", "resize-position:to=3x3,rule=bilinear")
    grads = {n: np.random.default_rng(3).normal(size=c.shape) for n, c in out.network.cells.items()}
    back = out.pull_back(grads)
    assert set(back) == set(net.network.cells)
    assert dot(out.values, grads) == pytest.approx(dot(net.values, back), rel=1e-12)
    back["embed.pos"] = back["embed.pos"] * 1.001
    assert dot(out.values, grads) != pytest.approx(dot(net.values, back), rel=1e-6)
