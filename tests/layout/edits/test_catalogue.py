"""How edits are written, listed, ordered and evaluated."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitconv.errors import LayoutError, Refused, UsageError
from vitconv.layout.edits import EDITS, parse_edit
from vitconv.layout.edits.catalogue import describe_edits
from vitconv.layout.edits.compute import evaluate, reachable
from vitconv.layout.network import Made


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cast:BF16", {"dtype": "BF16"}),
        ("cast:dtype=BF16, overflow=inf", {"dtype": "BF16", "overflow": "inf"}),
        ("drop:head*", {"pattern": "head*"}),
        ("drop:*.{q,v}.bias", {"pattern": "*.{q,v}.bias"}),
        ("fill:blocks.{i}.attn.k.bias=0,norm.bias=ones", {"names": {"blocks.{i}.attn.k.bias": 0.0, "norm.bias": 1.0}}),
        ("resize-position:16", {"to": (16, 16)}),
        ("resize-position:to=16x20,from=14x14", {"to": (16, 20), "from": (14, 14)}),
        ("resize-patch:8x6,how=bicubic", {"patch": (8, 6), "how": "bicubic"}),
        ("fold-layer-scale", {}),
        ("fold-cls-position:tokens=cls+reg", {"tokens": ("cls", "reg")}),
    ],
)
def test_parsing(text: str, values: dict[str, Any]) -> None:
    assert parse_edit(text).values == values


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "fold-layerscale",
            "no edit is called 'fold-layerscale'; there are: drop, fill.*did you mean fold-layer-scale",
        ),
        ("cast:F16,overfow=inf", r"cast has no parameter 'overfow=inf'; it has: dtype \(one of"),
        ("cast:F16,F32", "cast has no parameter 'F32'"),
        ("cast:F16,dtype=F32", "dtype is given twice"),
        ("cast", r"cast needs dtype \(one of F64, F32, F16, BF16\), as in --edit cast:dtype=BF16"),
        ("fold-deepnorm:alpha=2", "fold-deepnorm has no parameter 'alpha=2'; it has: none"),
        ("resize-position:to=14x", "to=14x: expected a height and a width, as 14x14"),
        ("resize-position:to=0", "to=0: expected a height"),
        ("resize-position:to=8,rule=cubic", "rule=cubic: expected one of bicubic, bicubic-antialias"),
        ("change-classes:classes=1.5,how=zeros", "classes=1.5: expected a whole number above zero"),
    ],
)
def test_parse_errors_list_what_exists(text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        parse_edit(text)
    assert f"--edit {text}" in str(caught.value)


def test_every_edit_is_described() -> None:
    rows = describe_edits()
    assert [r["edit"] for r in rows] == list(EDITS)
    for row in rows:
        assert all(row.values())
        parse_edit(row["example"].removeprefix("--edit "))


def test_all_texts_are_read_before_the_first_edit(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="no edit is called 'cats'"):
        random_network().edited("drop:nothing", "cats:F16")


def test_edits_apply_in_the_order_given(random_network: Callable[..., Any]) -> None:
    net = random_network()
    after = net.edited("cast:BF16", "fold-cls-position")
    before = net.edited("fold-cls-position", "cast:BF16")
    assert [a.edit for a in after.network.log] == ["cast", "fold-cls-position"]
    # Rounding before the addition is another result than after it.
    assert not np.array_equal(after["embed.cls"], before["embed.cls"])


def test_only_what_is_used_is_reachable(random_network: Callable[..., Any]) -> None:
    net = random_network(block=())
    casts = ["cast:BF16,only=head.weight", "cast:F64,only=head.weight"]
    out = net.edited("change-classes:classes=4,how=zeros", "drop:head.bias", *casts)
    tags = list(reachable(out.network))
    assert [t.partition("#")[0] for t in tags] == ["=head.weight"] * 3
    assert len(out.network.made) == 4


def test_a_computed_tensor_of_another_shape_is_caught(random_network: Callable[..., Any]) -> None:
    net = random_network()
    made = Made("broken", (), (3,), "F32", lambda _: np.zeros(4, np.float32))
    out = type(net)(net.network.with_made("norm.bias", made), net.data)
    with pytest.raises(LayoutError, match=r"was planned as \(3,\) and came out as \(4,\)"):
        out["norm.bias"]


def test_gradients_without_an_adjoint_are_refused(random_network: Callable[..., Any]) -> None:
    net = random_network()
    cell = net.network.cells["norm.bias"]
    made = Made("squared", (cell,), cell.shape, "F32", lambda x: x[0] ** 2)
    out = type(net)(net.network.with_made("norm.bias", made), net.data)
    with pytest.raises(Refused, match=r"norm.bias \(squared\) has no adjoint"):
        out.pull_back({"norm.bias": np.ones(6)})
    with pytest.raises(LayoutError, match=r"the gradient of norm\.weight has shape"):
        net.pull_back({"norm.weight": np.ones(5)})


def test_one_tensor_is_read_at_a_time(random_network: Callable[..., Any]) -> None:
    net = random_network()
    out = net.edited("cast:F64", "cast:F16")
    asked: list[str] = []

    def read(cell: Any) -> bytes:
        asked.append(cell.name)
        return net.read(cell)

    evaluate(out.network, out.network.cells["blocks.1.mlp.up.weight"].view.tensor, read)
    assert asked == ["blocks.1.mlp.up.weight"]


def test_a_reader_may_give_arrays_of_bits(random_network: Callable[..., Any]) -> None:
    net = random_network(dtype="BF16")
    out = net.edited("fold-cls-position")
    tag = out.network.cells["embed.cls"].view.tensor
    bits = {n: np.frombuffer(net.data[f"file.{n}"], "<u2").reshape(c.shape) for n, c in net.network.cells.items()}
    assert bytes(evaluate(out.network, tag, lambda c: bits[c.name])) == bytes(evaluate(out.network, tag, out.read))


def test_the_order_of_edits_does_not_touch_the_original(random_network: Callable[..., Any]) -> None:
    net = random_network()
    kept = dataclasses.replace(net.network)
    net.edited("change-channels:1", "cast:F16")
    assert net.network == kept


def test_reading_edits_imports_nothing_slow() -> None:
    code = (
        "import sys; from vitconv.layout.edits import apply_all, EDITS, parse_edit; parse_edit('cast:F16')\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
