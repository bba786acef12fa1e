"""Where a report goes: to a stream as text or JSON, or to a file in the form that its suffix names."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TextIO

from vitconv.report.document import Report

# Suffix to the module and the function that write the form; loaded when asked for.
_FORMS = {
    ".html": ("vitconv.report.html", "as_html"),
    ".json": ("vitconv.report.json", "as_json"),
    ".md": ("vitconv.report.markdown", "as_markdown"),
    ".txt": ("vitconv.report.text", "plain"),
    ".xml": ("vitconv.report.junit", "as_junit"),
}

SUFFIXES = tuple(_FORMS)


def emit(report: Report, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Write the report to the stream, stdout unless given: text for a person, or JSON."""
    stream = stream if stream is not None else sys.stdout
    if as_json:
        stream.write(rendered(report, ".json"))
    else:
        from vitconv.report.text import print_text

        print_text(report, stream)


def deliver(report: Report, *, as_json: bool = False, path: Path | None = None) -> None:
    """Write the report to stdout, and to a file too when one is given, in the form that its suffix names."""
    emit(report, as_json=as_json)
    if path is not None:
        save(report, path)


def rendered(report: Report, suffix: str) -> str:
    """Return the report in the form that the suffix names.

    Raises:
        ValueError: no form has this suffix.
    """
    if suffix not in _FORMS:
        raise ValueError(f"no report form for {suffix!r}; known: {', '.join(SUFFIXES)}")
    module, function = _FORMS[suffix]
    text: str = getattr(import_module(module), function)(report)
    return text


def save(report: Report, path: Path) -> None:
    """Write the report to a file, whole or not at all, in the form that its suffix names.

    Raises:
        ValueError: no form has this suffix.
        OSError: the file cannot be written.
    """
    text = rendered(report, path.suffix.lower())
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
