"""Charts: ticks a person would choose, and values where they belong."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from vitconv.report import Band, Chart, Series
from vitconv.report.axis import linear_axis, log_axis
from vitconv.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, as_svg


def chart(*series: tuple[float, ...], log: bool = True, ticks: tuple[str, ...] = (), bands=()) -> Chart:
    return Chart(
        "t",
        "x",
        "y",
        tuple(Series(f"s{k}", tuple((float(x), y) for x, y in enumerate(ys))) for k, ys in enumerate(series)),
        bands,
        ticks,
        log,
    )


def circles(svg: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(svg)
    return [(float(mark.get("cx", "")), float(mark.get("cy", ""))) for mark in root.iter("circle")]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1.0, 3.4], ("1", "1.5", "2", "2.5", "3", "3.5")),
        ([0.0, 12.0], ("0", "2.5", "5", "7.5", "10", "12.5")),
        ([5.0, 5.0], ("4.4", "4.6", "4.8", "5", "5.2", "5.4", "5.6")),
        ([-0.3, 0.1], ("-0.3", "-0.2", "-0.1", "0", "0.1")),
        ([], ("0", "0.2", "0.4", "0.6", "0.8", "1")),
        ([math.nan, 1.0, math.inf, 2.0], ("1", "1.2", "1.4", "1.6", "1.8", "2")),
    ],
)
def test_linear_ticks(values, labels) -> None:
    assert linear_axis(values).labels == labels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([2e-7, 3e-5], ("1e-7", "1e-6", "1e-5", "1e-4")),
        ([0.02, 30.0], ("0.01", "0.1", "1", "10", "100")),
        ([1e-16, 1.0], ("1e-16", "1e-13", "1e-10", "1e-7", "1e-4", "0.1")),
        ([1.0], ("1", "10")),
        ([0.0, -1.0, math.nan], ("1", "10")),
    ],
)
def test_log_ticks(values, labels) -> None:
    assert log_axis(values).labels == labels


@pytest.mark.parametrize("axis", [linear_axis([0, 10]), log_axis([1e-3, 1e3])], ids=["linear", "log"])
def test_places(axis) -> None:
    assert axis.place(axis.low) == 0
    assert axis.place(axis.high) == pytest.approx(1)
    assert axis.place(axis.high * 10) == 1
    middle = 5 if not axis.log else 1
    assert axis.place(middle) == pytest.approx(0.5)


def test_values_are_drawn_in_their_places() -> None:
    points = circles(as_svg(chart((1e-4, 1e-2, 1.0), log=True)))
    assert [x for x, _ in points] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    assert [y for _, y in points] == [HEIGHT - BOTTOM, pytest.approx((TOP + HEIGHT - BOTTOM) / 2), TOP]


def test_a_line_breaks_at_what_is_not_finite_and_says_so() -> None:
    svg = as_svg(chart((1.0, 2.0, math.nan, 2.0, 1.0), log=False))
    root = ElementTree.fromstring(svg)
    assert [len(line.get("points", "").split()) for line in root.iter("polyline")] == [2, 2]
    lost = [mark for mark in root.iter("path") if "lost" in mark.get("class", "")]
    assert [mark.findtext("title") for mark in lost] == ["s0, 2: NaN"]
    assert "NaN" in [text.text for text in root.iter("text")]


def test_zero_on_a_logarithmic_axis_is_hollow_on_the_edge() -> None:
    svg = as_svg(chart((0.0, 1e-3)))
    assert svg.count("hollow") == 1
    assert circles(svg)[0][1] == HEIGHT - BOTTOM


def test_a_band_goes_there_and_back() -> None:
    band = Band("null", ((0.0, 1.0, 10.0), (1.0, 1.0, 100.0)))
    svg = as_svg(chart((1.0, 100.0), bands=(band,)))
    polygon = next(ElementTree.fromstring(svg).iter("polygon"))
    places = [tuple(map(float, pair.split(","))) for pair in polygon.get("points", "").split()]
    assert [x for x, _ in places] == [LEFT, WIDTH - RIGHT, WIDTH - RIGHT, LEFT]
    assert places[1][1] == TOP
    assert places[2][1] == places[3][1] == HEIGHT - BOTTOM
    assert polygon.findtext("title") == "null"


@pytest.mark.parametrize("count", [1, 2, 12, 15, 40, 100])
def test_names_below_the_axis_are_few_and_the_last_is_there(count: int) -> None:
    names = tuple(f"block {k}" for k in range(count))
    svg = as_svg(chart(tuple(1.0 + k for k in range(count)), ticks=names))
    shown = re.findall(r">(block \d+)<", svg)
    assert shown[0] == "block 0"
    assert shown[-1] == names[-1]
    assert len(shown) <= 17
    assert len(circles(svg)) == count


def test_a_name_is_escaped() -> None:
    hostile = Chart("<b>", "x", "y", (Series("<i>&", ((0.0, 1.0),)),))
    root = ElementTree.fromstring(as_svg(hostile))
    assert root.get("aria-label") == "<b>"
    assert next(root.iter("circle")).findtext("title") == "<i>&, 0: 1"


@pytest.mark.parametrize(
    ("second", "over"),
    [
        ((1.0, 2.0, 4.0), True),
        ((1.0, 2.001, 4.0), True),
        ((1.0, 2.5, 4.0), False),
        ((1.0, 2.0), False),
        ((1.0, math.nan, 4.0), False),
    ],
    ids=["the-same", "next-to-it", "elsewhere", "shorter", "lost"],
)
def test_a_line_that_lies_on_another_is_dashed(second: tuple[float, ...], over: bool) -> None:
    svg = as_svg(chart((1.0, 2.0, 4.0), second, log=False))
    assert ('class="line c1 over"' in svg) is over
    assert "c0 over" not in svg
