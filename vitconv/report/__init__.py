"""The one place that formats: rows in, text, JSON, Markdown, JUnit or HTML out."""

from vitconv.report.document import (
    Band,
    Chart,
    Column,
    Fact,
    Report,
    Row,
    Section,
    Series,
    Verdict,
    worst,
)
from vitconv.report.output import SUFFIXES, deliver, emit, rendered, save
from vitconv.report.progress import progress_bar

__all__ = [
    "SUFFIXES",
    "Band",
    "Chart",
    "Column",
    "Fact",
    "Report",
    "Row",
    "Section",
    "Series",
    "Verdict",
    "deliver",
    "emit",
    "progress_bar",
    "rendered",
    "save",
    "worst",
]
