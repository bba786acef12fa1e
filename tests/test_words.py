"""No tracked file holds a path of the machine it was written on, a package registry's host, or an unfinished spot."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The brackets keep this file from finding itself.
UNWANTED = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:w[o]rk|r[o]ot|h[o]me|o[p]t|f[a]rm)/[\w.-]"),
    "a folder that is not in the repository": re.compile(
        r"\bs[h]ared/(?:facts|cases|golden|seeds|prototypes|hooks|design)"
    ),
    "a host of a package registry": re.compile(
        r"\bp[y]pi\.org|p[y]thonhosted|d[o]wnload\.pytorch|r[e]gistry\.npmjs|d[e]b\.debian|p[r]oxy\.golang",
        re.IGNORECASE,
    ),
    "an unfinished spot": re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"),
    "a word about how this was written": re.compile(
        r"\bsub-?a[g]ents?\b|\bl[a]nguage model\b|\ba[s] an AI\b", re.IGNORECASE
    ),
}


def unwanted(name: str, text: str) -> list[str]:
    """Return "name:line: what it is" for every unwanted word of a text."""
    return [
        f"{name}:{number}: {what}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in UNWANTED.items()
        for match in pattern.finditer(line)
    ]


def tracked() -> dict[str, str]:
    """Return the text of every tracked file that is text."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        data = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in data:
            found[name] = data.decode("utf-8", "replace")
    return found


def test_no_tracked_file_has_an_unwanted_word() -> None:
    files = tracked()
    assert "pyproject.toml" in files
    assert [found for name, text in files.items() for found in unwanted(name, text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "see /wor" + "k/main/x.py",
        "in ../share" + "d/facts/perf.md",
        "pip install -i https://pyp" + "i.org/simple x",
        "# TO" + "DO: later",
        "x = 1  # FIX" + "ME",
    ],
)
def test_an_unwanted_word_is_found(text: str) -> None:
    assert len(unwanted("file.py", f"first line\n{text}\n")) == 1
    assert unwanted("file.py", f"first line\n{text}\n")[0].startswith("file.py:2: ")


@pytest.mark.parametrize("text", ["network/work", "the work goes on", "a shared folder", "todo is a Spanish word"])
def test_a_word_that_only_looks_like_it_is_let_through(text: str) -> None:
    assert unwanted("file.py", text) == []
