"""A report as one HTML file: no request leaves it, it follows light and dark, and it can be printed."""

from __future__ import annotations

from pathlib import Path

from vitconv.report.document import Report
from vitconv.report.svg import COLOURS, as_svg
from vitconv.report.table import MARKS, fact_grid, grid
from vitconv.report.values import written


def as_html(report: Report) -> str:
    """Return the report as one self-contained HTML page.

    Everything that is not part of the page's own template is escaped: names come out of foreign files.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = Path(__file__).parent
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = engine.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    style = (folder / "page.css").read_text(encoding="utf-8")
    text: str = page.render(
        report=report,
        facts=fact_grid(report.facts, report.sides),
        environment=fact_grid(report.environment, ()),
        grid=grid,
        written=written,
        marks=MARKS,
        svg=lambda chart: Markup(as_svg(chart)),  # noqa: S704 - the drawing escapes its own text
        colours=COLOURS,
        style=Markup(style),  # noqa: S704 - a file of this package
    )
    return text
