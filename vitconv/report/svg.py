"""Draw a chart as an SVG that stands inside a page and takes its colours from the page.

A plotting library would be the heaviest dependency of the package, would fix the colours of one of light
and dark, and would write text as outlines that nobody can search or copy. A line chart with a band needs
little.
"""

from __future__ import annotations

import math
from html import escape

from vitconv.report.axis import Axis, linear_axis, log_axis
from vitconv.report.document import Band, Chart, Series
from vitconv.report.values import written

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 60
COLOURS = 6
# As wide as a line, in units of the drawing.
_WIDE = 2.0


def as_svg(chart: Chart) -> str:
    """Return the chart as one `<svg>` element; lines have the classes c0 to c5, bands b0 to b5, in order.

    Each value has a tooltip. What is not finite is a cross at the upper edge; what a logarithmic axis
    cannot show, zero and below, sits hollow on the lower edge.
    """
    across, up = _axes(chart)
    parts = [_frame(chart, across, up)]
    parts += [_band(band, k, across, up) for k, band in enumerate(chart.bands)]
    for k, series in enumerate(chart.series):
        over = any(_same(series, other, up) for other in chart.series[:k])
        parts.append(_line(series, k, chart, across, up, over=over))
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {_height(across)}" role="img" aria-label="{_text(chart.title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _axes(chart: Chart) -> tuple[Axis, Axis]:
    values = [y for series in chart.series for _, y in series.points]
    values += [edge for band in chart.bands for _, low, high in band.points for edge in (low, high)]
    up = log_axis(values) if chart.log else linear_axis(values)
    if chart.ticks:
        # Some names are left out where they would not fit; the last is always there.
        last = len(chart.ticks) - 1
        step = max(1, math.ceil(len(chart.ticks) / 16))
        shown = [k for k in range(0, last + 1, step) if k == 0 or last - k >= step] + ([last] if last else [])
        across = Axis(
            low=0.0 if last else -0.5,
            high=float(last) or 0.5,
            log=False,
            ticks=tuple(float(k) for k in shown),
            labels=tuple(chart.ticks[k] for k in shown),
        )
    else:
        across = linear_axis([x for series in chart.series for x, _ in series.points], most=10)
    return across, up


def _frame(chart: Chart, across: Axis, up: Axis) -> str:
    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick, label in zip(up.ticks, up.labels, strict=True):
        y = _y(up, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_text(label)}</text>')
    tilted = _tilted(across)
    for tick, label in zip(across.ticks, across.labels, strict=True):
        x = _x(across, tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        if tilted:
            place = f'text-anchor="end" transform="translate({x + 4:.1f} {base + 15}) rotate(-28)"'
        else:
            place = f'text-anchor="middle" x="{x:.1f}" y="{base + 18}"'
        parts.append(f'<text class="tick" {place}>{_text(label)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>')
    parts.append(
        f'<text class="label" x="{right}" y="{_height(across) - 6}" text-anchor="end">{_text(chart.x_label)}</text>'
    )
    parts.append(
        f'<text class="label" text-anchor="end" transform="translate(14 {TOP}) rotate(-90)">'
        f"{_text(chart.y_label)}</text>"
    )
    return "".join(parts)


def _tilted(across: Axis) -> bool:
    # Long names side by side would run into each other.
    return max((len(label) for label in across.labels), default=0) * len(across.labels) > 84


def _height(across: Axis) -> int:
    return HEIGHT if _tilted(across) else HEIGHT - 18


def _band(band: Band, index: int, across: Axis, up: Axis) -> str:
    upper = [f"{_x(across, x):.1f},{_y(up, high):.1f}" for x, _, high in band.points]
    lower = [f"{_x(across, x):.1f},{_y(up, low):.1f}" for x, low, _ in reversed(band.points)]
    return (
        f'<polygon class="band b{index % COLOURS}" points="{" ".join(upper + lower)}">'
        f"<title>{_text(band.name)}</title></polygon>"
    )


def _same(one: Series, other: Series, up: Axis) -> bool:
    """Say whether a line would hide another: as many points, none further apart than a line is wide."""
    if len(one.points) != len(other.points):
        return False
    pairs = zip(one.points, other.points, strict=True)
    return all(
        a[0] == b[0] and math.isfinite(a[1]) and math.isfinite(b[1]) and abs(_y(up, a[1]) - _y(up, b[1])) < _WIDE
        for a, b in pairs
    )


def _line(series: Series, index: int, chart: Chart, across: Axis, up: Axis, *, over: bool = False) -> str:
    # Drawn in dashes where it lies on another, which shows between them.
    colour = f"c{index % COLOURS}{' over' if over else ''}"
    runs: list[list[str]] = [[]]
    marks = []
    for x, y in series.points:
        place = _x(across, x)
        where = chart.ticks[round(x)] if chart.ticks and 0 <= round(x) < len(chart.ticks) else f"{x:g}"
        title = f"<title>{_text(series.name)}, {_text(where)}: {written(y, 'number')}</title>"
        if not math.isfinite(y):
            # The line breaks: nothing may look as if a value had been drawn through.
            runs.append([])
            cross = f"M{place - 5:.1f} {TOP - 5}l10 10m0 -10l-10 10"
            marks.append(f'<path class="mark lost {colour}" d="{cross}">{title}</path>')
            # Beside the cross, on the side where the chart is.
            side, anchor = (-10, "end") if place > WIDTH / 2 else (10, "start")
            marks.append(
                f'<text class="lost-name" x="{place + side:.1f}" y="{TOP + 4}" text-anchor="{anchor}">'
                f"{written(y)}</text>"
            )
            continue
        height = _y(up, y)
        runs[-1].append(f"{place:.1f},{height:.1f}")
        hollow = " hollow" if up.log and y <= 0 else ""
        marks.append(f'<circle class="mark {colour}{hollow}" cx="{place:.1f}" cy="{height:.1f}" r="3">{title}</circle>')
    lines = [f'<polyline class="line {colour}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1]
    return "".join(lines + marks)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - BOTTOM - TOP)


def _text(text: str) -> str:
    return escape(written(text))
