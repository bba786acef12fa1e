"""join-position: a table that is a sum over rows and columns, written out over places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitconv.errors import Refused, UsageError

FACTORS = ("embed.pos_y", "embed.pos_x")


def test_every_place_is_its_row_plus_its_column(random_network: Callable[..., Any]) -> None:
    net = random_network(FACTORS, rows=3, columns=5)
    out = net.edited("join-position")
    want = net["embed.pos_y"][:, None] + net["embed.pos_x"][None]
    assert np.array_equal(out["embed.pos"], want.reshape(15, -1))
    assert not set(FACTORS) & set(out.network.cells)
    assert (out.network.facts.grid, out.network.sizes["n"]) == ((3, 5), 15)
    applied = out.network.log[-1]
    assert applied.exact
    assert (applied.removed, applied.added) == (FACTORS, ("embed.pos",))


def test_the_gradient_goes_back_to_both(random_network: Callable[..., Any], dot: Callable[..., float]) -> None:
    net = random_network(FACTORS, rows=3, columns=5, dtype="F64")
    grad = np.random.default_rng(1).normal(0, 1, (15, 6))
    back = net.edited("join-position").pull_back({"embed.pos": grad})
    assert dot({"embed.pos": net.edited("join-position")["embed.pos"]}, {"embed.pos": grad}) == pytest.approx(
        dot(net.values, back), rel=1e-12
    )


@pytest.mark.parametrize(
    ("parts", "edit", "error", "match"),
    [
        (("embed.pos",), "join-position", UsageError, "no embed.pos_y and no embed.pos_x"),
        ((*FACTORS, "embed.pos"), "join-position", UsageError, "already"),
        (FACTORS, "resize-position:8x8,rule=bicubic", Refused, "say --edit join-position first"),
        ((*FACTORS, "embed.patch"), "resize-patch:8", Refused, "say --edit join-position first"),
    ],
)
def test_what_cannot_be_done(
    random_network: Callable[..., Any], parts: tuple[str, ...], edit: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        random_network(parts, rows=3, columns=5).edited(edit)
