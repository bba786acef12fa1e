"""make-position: the table of sines and cosines that a code makes anew, by the rule that is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitconv.errors import Refused, UsageError
from vitconv.inits.base.sincos import Table
from vitconv.layout.sincos import KINDS, sincos

PARTS = ("embed.patch",)


@pytest.mark.parametrize("rule", KINDS)
def test_it_is_the_table_of_the_rule(rule: str, random_network: Callable[..., Any]) -> None:
    net = random_network(PARTS, d=16, dtype="F64").told(grid=(3, 5), position="sincos")
    out = net.edited(f"make-position:rule={rule}")
    assert np.array_equal(out["embed.pos"], sincos(rule, (3, 5), 16))
    assert out.network.sizes["n"] == 15
    assert out.network.log[-1].exact


def test_mocov3_is_mae_on_the_turned_grid() -> None:
    turned = sincos("mae", (5, 3), 16).reshape(5, 3, 16).transpose(1, 0, 2).reshape(15, 16)
    assert np.array_equal(sincos("moco-v3", (3, 5), 16), turned)


@pytest.mark.parametrize(("rule", "kind"), [("mae", "mae"), ("big-vision", "big_vision")])
def test_init_schemes_draw_the_same_tables(rule: str, kind: str) -> None:
    drawn = Table(kind, 6, 4, 16).values().numpy()
    assert np.abs(drawn - sincos(rule, (6, 4), 16)).max() < 1e-7
    assert np.abs(drawn - sincos("moco-v3", (6, 4), 16)).max() > 0.1


@pytest.mark.parametrize(
    ("parts", "facts", "edit", "error", "match"),
    [
        ((*PARTS, "embed.pos"), {"grid": (4, 4)}, "make-position:mae", UsageError, "has positions already"),
        (PARTS, {}, "make-position:mae", Refused, "--set grid=HxW"),
        (PARTS, {"grid": (4, 4), "position": "rope"}, "make-position:mae", Refused, "position=rope"),
        (PARTS, {"grid": (4, 4)}, "make-position:rule=simple", UsageError, "one of mae, moco-v3, big-vision"),
        (PARTS, {"grid": (4, 4)}, "make-position", UsageError, "needs rule"),
    ],
)
def test_what_cannot_be_done(
    random_network: Callable[..., Any],
    parts: tuple[str, ...],
    facts: dict[str, Any],
    edit: str,
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        random_network(parts, d=16).told(**facts).edited(edit)


def test_unsaid_it_is_no_exact_edit(random_network: Callable[..., Any]) -> None:
    out = random_network(PARTS, d=16).told(grid=(4, 4)).edited("make-position:mae")
    assert not out.network.log[-1].exact
    assert out.network.facts.position == "sincos"
