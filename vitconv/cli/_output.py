"""Where a verb's report goes; JSON and files also say the command and what it ran in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

from vitconv.report.document import Fact, Report

# Said where the verb loaded them: no other version had a part in it.
_LIBRARIES = ("numpy", "torch", "timm", "torchvision", "transformers", "safetensors", "triton")


def emit(report: Report, *, as_json: bool = False) -> None:
    """Write the report to stdout: text for a person, or JSON."""
    from vitconv.report.output import emit as write

    write(signed(report) if as_json else report, as_json=as_json)


def deliver(report: Report, *, as_json: bool = False, path: Path | None = None) -> None:
    """Write the report to stdout, and to a file too when one is given, in the form that its suffix names."""
    emit(report, as_json=as_json)
    if path is not None:
        save(report, path)


def save(report: Report, path: Path) -> None:
    """Write the report to a file, whole or not at all, in the form that its suffix names."""
    from vitconv.report.output import save as write

    write(signed(report), path)


@contextmanager
def aside() -> Iterator[None]:
    """Send to stderr what a user's own module prints: stdout holds the result alone, which a program may read."""
    with redirect_stdout(sys.stderr):
        yield


def signed(report: Report) -> Report:
    """Return the report with the command that was typed and the versions it ran with, unless it says them itself."""
    from vitconv.cli._options import command_line

    return replace(report, command=report.command or command_line(), environment=report.environment or _surroundings())


def _surroundings() -> tuple[Fact, ...]:
    import platform

    from vitconv import __version__

    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    found = {"vitconv": __version__, "python": platform.python_version(), "system": platform.system(), **loaded}
    return tuple(Fact(name, (str(version),)) for name, version in found.items() if version)
