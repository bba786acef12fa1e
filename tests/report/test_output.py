"""Where a report goes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from vitconv.report import SUFFIXES, Report, emit, rendered, save

STARTS = {".html": "<!doctype html>", ".json": "{", ".md": "# a.safe", ".txt": "a.safe", ".xml": "<?xml"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_names_the_form(full: Report, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix.upper()}"
    save(full, path)
    text = path.read_text(encoding="utf-8")
    assert text == rendered(full, suffix)
    assert text.startswith(STARTS[suffix])
    assert text.endswith("\n") or suffix == ".html"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_report_gives_the_same_bytes(full: Report, suffix: str) -> None:
    assert rendered(full, suffix) == rendered(full, suffix)


def test_an_unknown_suffix_is_refused(full: Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no report form for '.pdf'; known: .html, .json"):
        save(full, tmp_path / "report.pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(full: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save(full, path)
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def test_stdout_is_the_default(full: Report, capsys: pytest.CaptureFixture[str]) -> None:
    emit(full, as_json=True)
    assert json.loads(capsys.readouterr().out)["schema"] == "vitconv.verify"


def test_json_to_a_stream(full: Report) -> None:
    stream = io.StringIO()
    emit(full, as_json=True, stream=stream)
    assert stream.getvalue() == rendered(full, ".json")
