"""fold-cls-position and its chosen inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import Refused, UsageError


def test_class_row_added_exactly(random_network: Callable[..., Any]) -> None:
    # Recipe C13: 17 rows, 4 registers; after the fold 16 rows, cls' = cls + pos[0] exactly, registers untouched.
    net = random_network(("embed.cls", "embed.pos_cls", "embed.pos", "embed.reg"), d=32)
    out = net.edited("fold-cls-position")
    assert np.array_equal(out["embed.cls"], net["embed.cls"] + net["embed.pos_cls"])
    assert "embed.pos_cls" not in out.network.cells
    assert out["embed.pos"].shape == (16, 32)
    assert out.network.cells["embed.reg"] == net.network.cells["embed.reg"]
    applied = out.network.log[-1]
    assert applied.exact
    assert applied.removed == ("embed.pos_cls",)


def test_every_prefix_row_is_folded(random_network: Callable[..., Any]) -> None:
    names = [f"embed.{p}{t}" for t in ("cls", "dist", "reg") for p in ("", "pos_")]
    net = random_network((*names, "embed.pos"))
    out = net.edited("fold-cls-position")
    for t in ("cls", "dist", "reg"):
        assert np.array_equal(out[f"embed.{t}"], net[f"embed.{t}"] + net[f"embed.pos_{t}"])
    only = net.edited("fold-cls-position:tokens=cls+dist")
    assert [n for n in only.network.cells if "pos_" in n] == ["embed.pos_reg"]


def test_unfold_chooses_zero_and_folds_back_to_the_same_bits(random_network: Callable[..., Any]) -> None:
    net = random_network(("embed.cls", "embed.pos"))
    out = net.edited("unfold-cls-position")
    assert not out["embed.pos_cls"].any()
    assert out.network.cells["embed.cls"] == net.network.cells["embed.cls"]
    assert out.network.log[-1].added == ("embed.pos_cls",)
    again = out.edited("fold-cls-position")
    assert again["embed.cls"].tobytes() == net["embed.cls"].tobytes()


@pytest.mark.parametrize(
    ("parts", "edit", "error", "match"),
    [
        (("embed.cls",), "fold-cls-position", UsageError, "no embed.pos_cls, embed.pos_dist, embed.pos_reg"),
        (("embed.pos_cls",), "fold-cls-position", Refused, "no token embed.cls.*--edit drop:embed.pos_cls"),
        (("embed.cls", "embed.pos_cls"), "fold-cls-position:tokens=dist", UsageError, "no embed.pos_dist"),
        (("embed.cls", "embed.pos_cls"), "unfold-cls-position", UsageError, "embed.pos_cls is there already"),
        (("embed.pos",), "unfold-cls-position", UsageError, "no embed.cls"),
        (("embed.cls",), "unfold-cls-position:tokens=class", UsageError, "cls, dist, reg, joined by"),
    ],
)
def test_what_cannot_be_done(
    random_network: Callable[..., Any], parts: tuple[str, ...], edit: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        random_network(parts).edited(edit)


@pytest.mark.parametrize("edits", [["fold-cls-position"], ["fold-cls-position", "unfold-cls-position"]])
def test_the_function_and_its_gradients_stay(model: Callable[..., Any], edits: list[str]) -> None:
    before = model()
    out = before.held.edited(*edits)
    after = before.function(out, pos_cls="embed.pos_cls" in out.network.cells)
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = before.vit(x), after(x)
    assert torch.equal(a, b)
    a.square().sum().backward()
    b.square().sum().backward()
    back = out.pull_back({n: p.grad.numpy() for n, p in after.named_parameters()})
    if len(edits) > 1:
        # The token's gradient goes to both, since the new row is a constant.
        assert np.array_equal(back["embed.cls"], back["embed.pos_cls"])
    for name, p in before.vit.named_parameters():
        assert np.allclose(back[name], p.grad.numpy(), rtol=1e-12, atol=1e-12), name


def test_a_forgotten_fold_would_be_seen(model: Callable[..., Any]) -> None:
    before = model()
    out = before.held.edited("drop:embed.pos_cls")
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a = before.vit(x)
    assert (a - before.function(out, pos_cls=False)(x)).abs().max() > 1e-3 * a.abs().max()
    assert not out.network.log[-1].exact
