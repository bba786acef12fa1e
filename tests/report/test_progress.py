"""Progress: a bar on a terminal for long work, and nothing anywhere else."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from vitconv.report import progress, progress_bar


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_sees_nothing() -> None:
    stream = io.StringIO()
    with progress_bar("copying", stream=stream) as told:
        told(1, 2)
        told(2, 2)
    assert stream.getvalue() == ""


def test_short_work_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    stream = Terminal()
    with progress_bar("copying", stream=stream) as told:
        told(1, 2)
    assert stream.getvalue() == ""


def test_long_work_sees_a_bar_that_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    stream = Terminal()

    def work() -> None:
        with progress_bar("copying [x]", stream=stream) as told:
            told(500_000, 2_000_000)
            told(1_000_000, 2_000_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "copying [x]" in stream.getvalue()
    assert "0.5/2.0 MB" in stream.getvalue() or "1.0/2.0 MB" in stream.getvalue()
    # The cursor is shown again and the line is erased.
    assert "\x1b[?25h" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


def test_without_rich_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    stream = Terminal()
    with progress_bar("copying", stream=stream) as told:
        told(1, 2)
        told(2, 2)
    assert stream.getvalue() == ""


def test_rich_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys\nfrom vitconv.report import progress_bar\n"
        "with progress_bar('x') as told: told(1, 2)\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
