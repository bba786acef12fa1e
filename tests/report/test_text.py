"""Text: plain columns in a pipe, rich on a terminal, colour only where wanted."""

from __future__ import annotations

import io
import sys

import pytest

from vitconv.report import Column, Report, Row, Section, emit
from vitconv.report.text import plain

EXPECTED = """\
a.safetensors against b.pth
differs: The outputs part by 2.1e-4.

              timm        xformers
  ----------  ----------  ----------
  eps         1e-6        1e-5
  parameters  86 567 656  86 567 656

Same function?
  stage       error    time  status   detail
  ---------  ------  ------  -------  -----------------------------
  logits     2.1e-4  1.25 s  FAIL     first apart at blocks.0.norm1
  mapped          0   50 ms  ok
  onnx            -       -  skipped  onnxruntime is not installed
  gradients     inf     2 s  WARN     one of 12
  Decided in float64.

Names
  key                                                size
  ----------------------------------------------  -------
  <script>alert('x')</script>|`*_\\x1b[31m&\\u202e  1.54 kB
  embed.pos                                       86.6 MB

environment
  torch  2.14.1

command: vitconv verify a.safetensors b.pth
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(report: Report, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", **environment}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    emit(report, stream=terminal)
    return terminal.getvalue()


def test_plain_text(full: Report) -> None:
    assert plain(full) == EXPECTED


def test_a_pipe_gets_plain_text_and_rich_is_not_needed(full: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = io.StringIO()
    emit(full, stream=stream)
    assert stream.getvalue() == plain(full)


def test_a_terminal_gets_colour(full: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(full, monkeypatch)
    assert "\x1b[1;31m" in text
    for word in ("a.safetensors against b.pth", "differs", "first apart at blocks.0.norm1", "86 567 656", "2.14.1"):
        assert word in text


def test_no_color_is_honoured(full: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(full, monkeypatch, NO_COLOR="1")
    assert "31m" not in text.replace("\\x1b[31m", "")
    assert "first apart at blocks.0.norm1" in text


def test_a_terminal_without_rich_gets_plain_text(full: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert shown(full, monkeypatch) == plain(full)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_name_from_a_file_cannot_drive_the_terminal(
    full: Report, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    text = shown(full, monkeypatch, NO_COLOR="1", COLUMNS="200") if terminal else plain(full)
    assert "`*_\\x1b[31m&\\u202e" in text
    assert "\u202e" not in text


def test_a_narrow_terminal_folds_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "blocks.0." + "very_long_name_" * 8
    section = Section("s", "S", (Column("key", "key", "code"), Column("n", "n", "count")), (Row((key, 12345678)),))
    text = shown(Report("vitconv.x", "x", sections=(section,)), monkeypatch, NO_COLOR="1", COLUMNS="40")
    assert max(len(line) for line in text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()) <= 40
    assert key in "".join(line.strip().split("  ")[0].strip() for line in text.splitlines())
    assert "12 345 678" in text


def test_a_stream_that_cannot_encode_gets_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    emit(Report("vitconv.x", "naïve → x"), stream=stream)
    stream.flush()
    assert raw.getvalue() == b"na\\xefve \\u2192 x\n"
