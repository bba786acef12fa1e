"""change-classes: what the rows hold is said, for both classifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitconv.errors import UsageError


@pytest.mark.parametrize(("classes", "how", "kept"), [(3, "keep-first", 3), (8, "keep-first", 5), (7, "zeros", 0)])
def test_rows(random_network: Callable[..., Any], classes: int, how: str, kept: int) -> None:
    net = random_network(("head", "head_dist", "norm"))
    out = net.edited(f"change-classes:classes={classes},how={how}")
    for name in ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias"):
        assert out[name].shape == (classes, *net[name].shape[1:])
        assert out[name][:kept].tobytes() == net[name][:kept].tobytes()
        assert not out[name][kept:].any()
    assert out.network.sizes["o"] == classes
    assert out.network.cells["norm.weight"] == net.network.cells["norm.weight"]
    assert f"the first {kept} rows kept, {5 - kept} lost, {classes - kept} new ones of zeros" in out.last
    assert not out.network.log[-1].exact


def test_nothing_to_do(random_network: Callable[..., Any]) -> None:
    net = random_network()
    out = net.edited("change-classes:classes=5,how=keep-first")
    assert out.network.cells == net.network.cells
    assert not net.edited("change-classes:classes=5,how=zeros")["head.weight"].any()


def test_the_way_is_never_chosen_in_silence(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"needs how \(keep-first.*zeros"):
        random_network().edited("change-classes:classes=10")


def test_no_classifier(random_network: Callable[..., Any]) -> None:
    net = random_network(("norm",))
    with pytest.raises(UsageError, match=r"--edit fill:head\.weight=0,head\.bias=0,o=10"):
        net.edited("change-classes:classes=10,how=zeros")
    made = net.edited("fill:head.weight=0,head.bias=0,o=10")
    assert made["head.weight"].shape == (10, 6)


@pytest.mark.parametrize("classes", [3, 8])
def test_the_adjoint(random_network: Callable[..., Any], dot: Callable[..., float], classes: int) -> None:
    net = random_network(("head", "head_dist"), dtype="F64", block=())
    out = net.edited(f"change-classes:classes={classes},how=keep-first")
    grads = {n: np.random.default_rng(3).normal(size=c.shape) for n, c in out.network.cells.items()}
    assert dot(out.values, grads) == pytest.approx(dot(net.values, out.pull_back(grads)), rel=1e-12)
