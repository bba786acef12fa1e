"""The table of what each layout was proved against: every layout is in it, and what it says was run is there to be run.

A trace names the repository and commit, or the release, whose code made it; a library's release is the one that is
installed and that the tests of parity run.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from safetensors import safe_open

from vitconv.cli._dialects_page import PROVED, proved
from vitconv.io.source import open_checkpoint
from vitconv.registry import DIALECTS, load_all

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
# Known by their own test suites, under the repository's name.
INSTALLED = ("timm", "transformers", "torchvision", "torch")
UNRUN = "not run"


def traces() -> dict[Path, str]:
    """Return {trace: all that its metadata say}."""
    found = {}
    for path in sorted(GOLDEN.rglob("*.safetensors")):
        with safe_open(path, "np") as f:
            found[path] = " ".join((f.metadata() or {}).values())
    return found


TRACES = traces()
TRACED = {name: text for name, text in PROVED.items() if "traces of" in text}


def test_every_layout_says_what_it_was_proved_against() -> None:
    layouts = load_all(DIALECTS, plugins=False)
    assert [name for name in layouts if not proved(name)] == []
    assert [name for name in PROVED if name not in layouts] == []


@pytest.mark.parametrize("name", TRACED)
def test_the_traces_that_it_names_are_there(name: str) -> None:
    """Each commit, or release, that an entry names stands in the facts of a trace, or in a trace's own name."""
    text = TRACED[name].partition("traces of")[2]
    named = re.findall(r"\(([\w.-]+/[\w.-]+) ([0-9a-f]{7})", text)
    releases = re.findall(r"(?<![\w.-])\d+\.\d+\.\d+(?:\.\w+)?", text.partition("jax")[0])
    assert named or releases
    for repository, commit in named:
        of = [p for p, said in TRACES.items() if commit in said]
        assert of, f"{name}: no trace of {repository} {commit}"
    for release in releases:
        of = [p for p, said in TRACES.items() if release in said or release in p.name]
        assert of, f"{name}: no trace of {release}"


@pytest.mark.parametrize("name", [n for n, text in PROVED.items() if any(text.startswith(f"{x} ") for x in INSTALLED)])
def test_the_library_that_it_names_is_the_one_that_runs(name: str) -> None:
    library, release = re.match(r"(\w+) ([\d.]+\d)", PROVED[name]).groups()
    assert metadata.version(library).partition("+")[0] == release


@pytest.mark.parametrize("name", [n for n, text in PROVED.items() if UNRUN in text])
def test_what_was_not_run_has_no_trace(name: str) -> None:
    """A layout with a trace is to say so."""
    held = []
    for path in GOLDEN.rglob("*"):
        if path.suffix in (".pth", ".npz") and name in path.stem:
            with open_checkpoint(path) as c:
                held.append((path.name, len(c.tensors)))
    assert not held
    assert not [p for p in TRACES if p.stem.startswith(name)]
