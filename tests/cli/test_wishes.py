"""How values of options are read."""

from __future__ import annotations

import pytest

from vitconv.cli._wishes import bytes_of
from vitconv.cli.main import run
from vitconv.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500_000_000), ("2GiB", 2 << 30), ("1000", 1000), ("1.5 kB", 1500), ("0", 0)]
)
def test_a_size(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "inf", "1e400", "nan", "5XB", "MB", "five"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        bytes_of(text)


@pytest.mark.parametrize(
    "words",
    [["convert", "", "out", "--to", "timm"], ["convert", "a", "", "--to", "timm"], ["inspect", ""], ["diff", "a", ""]],
    ids=["source", "output", "inspect", "diff"],
)
def test_an_empty_name_is_not_the_folder(words: list[str], capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert "the name is empty" in capsys.readouterr().err
