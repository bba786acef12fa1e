"""Imports go downwards only, as one table says; and what is slow to import is imported where it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vitconv"

# An area may import itself, what stands beside it here, and what those may import in turn. Nothing but
# `python -m vitconv` may import cli.
BELOW = {
    "errors": (),
    "record": (),
    "report": ("record",),
    "layout": ("errors", "record"),
    "io": ("errors", "record"),
    "registry": ("errors", "record"),
    "dialects": ("layout",),
    "kernels": ("errors",),
    "configs": ("layout",),
    "vit": ("layout", "kernels"),
    "conversion": ("layout", "io", "registry", "configs"),
    "inits": ("layout", "registry"),
    "initialise": ("inits", "conversion", "vit", "configs"),
    "hosts": ("vit", "layout", "registry", "configs"),
    "parity": ("hosts", "conversion", "registry"),
    "testing": ("parity",),
    "loading": ("hosts", "conversion"),
    "checks": ("hosts", "inits", "parity", "initialise"),
    "demo": ("hosts", "conversion", "dialects"),
    "bench": ("checks", "dialects", "report"),
    "__main__": ("cli",),
    "cli": ("bench", "demo", "initialise", "checks", "dialects", "report", "loading"),
}

# Importing these takes a tenth of a second to several seconds.
SLOW = frozenset(
    {"torch", "torchvision", "triton", "timm", "transformers", "numpy", "rich", "jinja2", "yaml", "safetensors", "onnx"}
)
QUICK_AREAS = frozenset(
    {"", "errors", "record", "layout", "io", "conversion", "cli", "registry", "report", "configs", "dialects"}
)


def allowed(area: str) -> frozenset[str]:
    """Return the areas that an area may import: itself and all below it."""
    found = {area}
    for below in BELOW[area]:
        found |= allowed(below)
    return frozenset(found)


def area_of(module: str) -> str:
    """Return the area of a dotted name: "layout" of "vitconv.layout.rule", "" of the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(tree: ast.AST, areas: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import; `from vitconv import layout` is an import of vitconv.layout."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "vitconv":
            for alias in node.names:
                yield node.lineno, f"vitconv.{alias.name}" if alias.name in areas else "vitconv"
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def upward_imports(sources: dict[str, str]) -> list[str]:
    """Return what breaks the table; sources: path below the package, as "layout/rule.py", to its text."""
    areas = frozenset(BELOW)
    problems = []
    for path, text in sorted(sources.items()):
        area = Path(path).parts[0].removesuffix(".py")
        if path == "__init__.py":
            continue  # the root loads public names of any area when they are asked for
        if area not in areas:
            problems.append(f"{path}: the area {area!r} has no place in the table")
            continue
        for line, name in imported(ast.parse(text), areas):
            if name.split(".")[0] == "vitconv" and area_of(name) not in {*allowed(area), ""}:
                problems.append(f"{path}:{line}: {area} imports {name}")
    return problems


def eager_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of imports that run when the module is imported, those for type checkers left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (found for child in node.orelse for found in eager_imports(child))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."
        else:
            yield from eager_imports(node)


def slow_imports(sources: dict[str, str]) -> list[str]:
    """Return imports of slow libraries at module level in the areas where start-up counts."""
    problems = []
    for path, text in sorted(sources.items()):
        area = "" if path == "__init__.py" else Path(path).parts[0].removesuffix(".py")
        if area not in QUICK_AREAS and not path.endswith("__init__.py"):
            continue
        module = ast.Module(body=ast.parse(text).body, type_ignores=[])
        for line, name in eager_imports(module):
            if name.split(".")[0] in SLOW:
                problems.append(f"{path}:{line}: imports {name} at module level")
    return problems


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    found = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(found) > 20
    return found


def test_imports_go_downwards(sources: dict[str, str]) -> None:
    assert upward_imports(sources) == []


def test_slow_libraries_are_imported_where_they_are_used(sources: dict[str, str]) -> None:
    assert slow_imports(sources) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("layout/rule.py", "from vitconv.io.source import open_checkpoint"),
        ("layout/rule.py", "def f():\n    import vitconv.conversion"),
        ("io/sink.py", "from vitconv import layout"),
        ("conversion/plan.py", "from vitconv.cli.main import cli"),
        ("checks/audit.py", "from vitconv.report import Report"),
        ("dialects/timm.py", "from vitconv.registry import load"),
        ("vit/model.py", "if TYPE_CHECKING:\n    from vitconv.hosts import Host"),
        ("utils.py", ""),
    ],
    ids=["from", "in-function", "from-root", "cli", "report", "sideways", "for-types", "no-such-area"],
)
def test_an_upward_import_is_found(path: str, text: str) -> None:
    assert len(upward_imports({path: text})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("layout/rule.py", "from vitconv.errors import LayoutError\nfrom vitconv.layout.shape import Shape"),
        ("parity/compare.py", "from vitconv.layout.semantics import Semantics"),
        ("cli/list.py", "from vitconv.report import emit\nfrom vitconv import __version__"),
        ("__init__.py", "from vitconv.conversion import convert"),
    ],
    ids=["down", "further-down", "cli", "root"],
)
def test_a_downward_import_is_let_through(path: str, text: str) -> None:
    assert upward_imports({path: text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "try:\n    import numpy.typing\nexcept ImportError:\n    pass",
        "class A:\n    from rich import box",
    ],
    ids=["plain", "in-try", "in-class"],
)
def test_an_eager_import_is_found(text: str) -> None:
    assert len(slow_imports({"io/source.py": text})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import torch",
        "if TYPE_CHECKING:\n    import torch",
        "class A:\n    def f(self):\n        import numpy",
    ],
    ids=["in-function", "for-types", "in-method"],
)
def test_an_import_where_it_is_used_is_let_through(text: str) -> None:
    assert slow_imports({"io/source.py": text}) == []


def test_the_table_has_no_circle() -> None:
    for area in BELOW:
        assert all(area not in allowed(below) for below in BELOW[area])
