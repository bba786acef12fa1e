"""change-channels against timm's adapt_input_conv, and what each way does to the response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from vitconv.errors import Refused, UsageError

WEIGHT = "embed.patch.weight"


def response(kernel: np.ndarray, image: torch.Tensor) -> torch.Tensor:
    w = torch.from_numpy(np.array(kernel))
    return conv2d(image.to(w.dtype), w, stride=w.shape[2:])


def test_sum_answers_gray_images_as_before(random_network: Callable[..., Any]) -> None:
    # Recipe D01: conv1(gray) == conv3(gray repeated) to 1e-6; the mean gives exactly a third of it.
    net = random_network((WEIGHT,), dtype="F64")
    gray = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    three = response(net[WEIGHT], gray.repeat(1, 3, 1, 1))
    default, named = net.edited("change-channels:channels=1"), net.edited("change-channels:1,how=sum")
    assert default.last == named.last
    assert "the sum of all 3" in default.last
    assert (response(default[WEIGHT], gray) - three).abs().max() < 1e-6 * three.abs().max()
    mean = net.edited("change-channels:channels=1,how=mean")
    assert np.array_equal(mean[WEIGHT], default[WEIGHT] / 3)
    assert (response(mean[WEIGHT], gray) - three).abs().max() > 0.5 * three.abs().max()


def test_an_equal_count_is_a_copy(random_network: Callable[..., Any]) -> None:
    # Recipe D02, 13 -> 13: where timm 1.0.31 raises.
    net = random_network((WEIGHT,), c=13)
    out = net.edited("change-channels:channels=13")
    assert out.network.cells == net.network.cells
    assert out.network.log[-1].exact
    assert "13 channels already" in out.last


def test_repeated_channels_are_scaled(random_network: Callable[..., Any], held: Callable[..., Any]) -> None:
    # Recipe D02, 13 -> 26 of ones: 0.5 everywhere.
    ones = held({WEIGHT: np.ones((2, 13, 4, 4))}).edited("change-channels:channels=26")
    assert ones[WEIGHT].shape == (2, 26, 4, 4)
    assert (ones[WEIGHT] == 0.5).all()
    assert "repeated in turn and scaled by 13/26 = 0.5" in ones.last
    net = random_network((WEIGHT,), dtype="F64")
    gray = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = response(net[WEIGHT], gray.repeat(1, 3, 1, 1))
    b = response(net.edited("change-channels:channels=6")[WEIGHT], gray.repeat(1, 6, 1, 1))
    assert (a - b).abs().max() < 1e-12 * a.abs().max()


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 6, 12])
def test_equal_to_timm(random_network: Callable[..., Any], channels: int) -> None:
    from timm.models._manipulate import adapt_input_conv

    net = random_network((WEIGHT,))
    how = ",how=repeat" if channels == 2 else ""
    out = net.edited(f"change-channels:channels={channels}{how}")
    theirs = adapt_input_conv(channels, torch.from_numpy(np.array(net[WEIGHT]))).numpy()
    assert np.allclose(out[WEIGHT], theirs, rtol=0, atol=5e-7)
    assert out.network.sizes["c"] == channels


def test_fewer_channels_are_asked_about(random_network: Callable[..., Any]) -> None:
    # Recipe D02, 4 -> 3: where timm 1.0.31 gives back four.
    net = random_network((WEIGHT,), c=4)
    with pytest.raises(Refused, match="4 channels to 3 can be done in more than one way; say how=first"):
        net.edited("change-channels:channels=3")
    assert np.array_equal(net.edited("change-channels:channels=3,how=first")[WEIGHT], net[WEIGHT][:, :3])
    scaled = net.edited("change-channels:channels=3,how=repeat")
    assert np.allclose(scaled[WEIGHT], net[WEIGHT][:, :3] * 4 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        ("channels=2,how=sum", "how=sum gives one channel, 2 are asked for"),
        ("channels=5,how=first", "how=first keeps 5 of 3 channels"),
        ("channels=0", "a whole number above zero"),
        ("channels=2,how=random", "one of sum, mean, repeat, first"),
    ],
)
def test_what_makes_no_sense(random_network: Callable[..., Any], edit: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        random_network((WEIGHT,)).edited(f"change-channels:{edit}")


def test_normalisation_of_images_is_no_longer_known(random_network: Callable[..., Any]) -> None:
    net = random_network((WEIGHT,)).told(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    out = net.edited("change-channels:channels=1")
    assert out.network.facts.mean is None
    assert out.network.facts.std is None
    assert "image mean and std of 3 channels no longer apply" in out.last


@pytest.mark.parametrize("edit", ["1,how=sum", "1,how=mean", "7", "2,how=first", "2,how=repeat"])
def test_the_adjoint(random_network: Callable[..., Any], dot: Callable[..., float], edit: str) -> None:
    net = random_network((WEIGHT,), dtype="F64", block=())
    out = net.edited(f"change-channels:{edit}")
    grads = {WEIGHT: np.random.default_rng(3).normal(size=out.network.cells[WEIGHT].shape)}
    assert dot(out.values, grads) == pytest.approx(dot(net.values, out.pull_back(grads)), rel=1e-12)
