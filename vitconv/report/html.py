"""A report as one HTML file: no request leaves it, it follows light and dark, and it can be printed."""

from __future__ import annotations

import base64
import hashlib
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
    script = (folder / "page.js").read_text(encoding="utf-8") if any(s.sortable for s in report.sections) else ""
    text: str = page.render(
        report=report,
        all_facts=fact_grid(report.facts, report.sides),
        facts=fact_grid(tuple(f for f in report.facts if f.differs), report.sides),
        same_facts=fact_grid(tuple(f for f in report.facts if report.sides and not f.differs), report.sides),
        environment=fact_grid(report.environment, ()),
        grid=grid,
        written=written,
        marks=MARKS,
        svg=lambda chart: Markup(as_svg(chart)),  # noqa: S704 - the drawing escapes its own text
        colours=COLOURS,
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        # The page may run this script and no other.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return text
