"""resize-patch: kernel, grid and positions as one operation, and what each way does to the response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, interpolate

from vitconv.errors import Refused, UsageError

WEIGHT = "embed.patch.weight"


def response(kernel: np.ndarray, image: torch.Tensor) -> torch.Tensor:
    w = torch.from_numpy(np.array(kernel))
    return conv2d(image.to(w.dtype), w, stride=w.shape[2:])


@pytest.mark.parametrize(("old", "new"), [((4, 4), (6, 6)), ((16, 16), (14, 14)), ((8, 8), (4, 6)), ((4, 4), (8, 8))])
def test_pinv_equals_timm(random_network: Callable[..., Any], old: tuple[int, int], new: tuple[int, int]) -> None:
    from timm.layers.patch_embed import resample_patch_embed

    net = random_network((WEIGHT,), p=old[0], q=old[1])
    out = net.edited(f"resize-patch:patch={new[0]}x{new[1]}")
    theirs = resample_patch_embed(torch.from_numpy(np.array(net[WEIGHT])), list(new)).numpy()
    # timm inverts in float32, here it is done in float64.
    assert np.abs(out[WEIGHT] - theirs).max() < 5e-5 * np.abs(theirs).max()
    assert (out.network.sizes["p"], out.network.sizes["q"]) == new


@pytest.mark.parametrize("how", ["pinv", "pinv-bilinear"])
def test_a_larger_patch_gives_the_same_response_to_larger_images(random_network: Callable[..., Any], how: str) -> None:
    # The promise of FlexiViT: load a B/4 kernel at patch 6, and on patches enlarged alike the result matches.
    net = random_network((WEIGHT,), dtype="F64")
    out = net.edited(f"resize-patch:6,how={how}")
    patch = torch.randn(5, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kind = {"mode": "bicubic", "antialias": True} if how == "pinv" else {"mode": "bilinear"}
    large = interpolate(patch, size=(6, 6), **kind)
    a, b = response(net[WEIGHT], patch), response(out[WEIGHT], large)
    assert (a - b).abs().max() < 1e-12 * a.abs().max()
    plain = net.edited("resize-patch:6,how=bicubic")
    assert (a - response(plain[WEIGHT], large)).abs().max() > 0.1 * a.abs().max()


def test_a_constant_image_keeps_its_response(random_network: Callable[..., Any]) -> None:
    # Recipe D04: patch 4 -> 6, within 1 %; the plain kernel grows by (6/4)^2.
    net = random_network((WEIGHT,))
    one, large = torch.ones(1, 3, 4, 4), torch.ones(1, 3, 6, 6)
    before = response(net[WEIGHT], one)
    for how in ("pinv", "pinv-bilinear", "bicubic"):
        after = response(net.edited(f"resize-patch:patch=6,how={how}")[WEIGHT], large)
        drift = ((after - before).abs().max() / before.abs().max()).item()
        assert drift > 1 if how == "bicubic" else drift < 1e-5, how
    assert "its response grows by about 2.25" in net.edited("resize-patch:patch=6,how=bicubic").last


def test_plain_bicubic_equals_torch(random_network: Callable[..., Any]) -> None:
    net = random_network((WEIGHT,), dtype="F64", p=16, q=16)
    out = net.edited("resize-patch:patch=14,how=bicubic")
    w = torch.from_numpy(np.array(net[WEIGHT]))
    theirs = interpolate(w, size=(14, 14), mode="bicubic", align_corners=False).numpy()
    assert np.abs(out[WEIGHT] - theirs).max() < 1e-13


def test_positions_go_along(random_network: Callable[..., Any]) -> None:
    # Recipe D05: patch 8 at image 16: grid 2x2, with the class row 5 rows.
    net = random_network(p=4, q=4, n=16).told(grid=(4, 4), position_resize="bicubic-antialias")
    out = net.edited("resize-patch:patch=8")
    assert out[WEIGHT].shape == (6, 3, 8, 8)
    assert len(out["embed.pos"]) + 1 == 5
    assert (out.network.facts.grid, out.network.facts.image_size) == ((2, 2), (16, 16))
    assert {x: out.network.sizes[x] for x in "pqn"} == {"p": 8, "q": 8, "n": 4}
    assert "images stay 16x16 pixels; position table resized from 4x4 to 2x2 by bicubic-antialias" in out.last
    alone = net.edited("resize-position:to=2x2")
    assert np.array_equal(alone["embed.pos"], out["embed.pos"])


def test_the_grid_may_stay_instead(random_network: Callable[..., Any]) -> None:
    net = random_network().told(grid=(4, 4))
    out = net.edited("resize-patch:patch=8x6,keep=grid")
    assert out.network.cells["embed.pos"] == net.network.cells["embed.pos"]
    assert (out.network.facts.grid, out.network.facts.image_size) == ((4, 4), (32, 24))
    assert "the grid stays 4x4, so images are now 32x24 pixels" in out.last


def test_what_is_not_known_is_asked_for(random_network: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match=r"--edit resize-patch: the position table has 16 rows.*--set grid=4x4"):
        random_network().edited("resize-patch:patch=8,rule=bicubic")
    with pytest.raises(Refused, match="--edit resize-patch: libraries resize positions in different ways"):
        random_network().told(grid=(4, 4)).edited("resize-patch:patch=8")
    with pytest.raises(Refused, match="images of 16x16 pixels cannot be cut into patches of 5x5; say keep=grid"):
        random_network().told(grid=(4, 4)).edited("resize-patch:patch=5,rule=bicubic")
    with pytest.raises(UsageError, match=r"has no embed\.patch\.weight"):
        random_network(("norm",)).edited("resize-patch:patch=8")


def test_the_same_patch_changes_nothing(random_network: Callable[..., Any]) -> None:
    net = random_network()
    out = net.edited("resize-patch:patch=4")
    assert out.network.cells == net.network.cells
    assert out.network.log[-1].exact


@pytest.mark.parametrize("how", ["pinv", "pinv-bilinear", "bicubic"])
@pytest.mark.parametrize("patch", ["6", "3x2"])
def test_the_adjoint(random_network: Callable[..., Any], dot: Callable[..., float], how: str, patch: str) -> None:
    net = random_network((WEIGHT,), dtype="F64", block=())
    out = net.edited(f"resize-patch:patch={patch},how={how}")
    grads = {WEIGHT: np.random.default_rng(3).normal(size=out.network.cells[WEIGHT].shape)}
    assert dot(out.values, grads) == pytest.approx(dot(net.values, out.pull_back(grads)), rel=1e-12)
