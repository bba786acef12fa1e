"""What a command imports: no torch, timm, numpy or rich before there is work for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vitconv.cli.main import verbs

ROOT = Path(__file__).parents[1]
DIGITS = str(ROOT / "fixtures" / "digits" / "vit_digits.safetensors")

SLOW = frozenset(
    {"torch", "torchvision", "triton", "timm", "transformers", "numpy", "rich", "jinja2", "yaml", "safetensors", "onnx"}
)

# {out} is a file in a new folder. A verb that is not in this installation is left out.
COMMANDS = [
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "dialects", "--json"],
    ["completion", "zsh"],
    ["inspect", DIGITS],
    ["inspect", DIGITS, "--json"],
    ["show", "timm"],
    ["show", "timm", "xformers"],
    ["diff", DIGITS, DIGITS],
    ["convert", DIGITS, "{out}", "--to", "xformers"],
    ["convert", DIGITS, "{out}", "--to", "xformers", "--dry-run"],
    *([verb, "--help"] for verb in verbs()),
]
PRESENT = [command for command in COMMANDS if command[0].startswith("-") or command[0] in verbs()]

# The last line of stdout is the exit code and what was imported.
PROBE = """
import sys
from vitconv.cli.main import run
code = run(sys.argv[1:])
print()
print(code, *sorted({name.split('.')[0] for name in sys.modules} & SLOW))
"""


def imported_by(code: str, arguments: list[str]) -> tuple[int, frozenset[str]]:
    """Run the code in a new interpreter and return the exit code and the slow libraries that it imported."""
    code = code.replace("SLOW", repr(set(SLOW)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    exit_code, *names = done.stdout.splitlines()[-1].split()
    return int(exit_code), frozenset(names)


def readable(command: list[str]) -> str:
    return " ".join(Path(part).name for part in command)


@pytest.mark.parametrize("command", PRESENT, ids=readable)
def test_a_command_imports_nothing_slow(command: list[str], tmp_path: Path) -> None:
    arguments = [part.format(out=tmp_path / "out.safetensors") for part in command]
    assert imported_by(PROBE, arguments) == (0, frozenset())


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("vitconv/*/__init__.py")))
def test_a_package_imports_nothing_slow(name: str) -> None:
    code = f"import sys, vitconv.{name}\nprint(0, *sorted({{n.split('.')[0] for n in sys.modules}} & SLOW))"
    assert imported_by(code, []) == (0, frozenset())


@pytest.mark.parametrize("library", ["numpy", "rich.table"])
def test_a_slow_import_is_seen(library: str) -> None:
    pytest.importorskip(library.split(".")[0])
    assert imported_by(f"import {library}{PROBE}", ["--version"]) == (0, frozenset({library.split(".")[0]}))
