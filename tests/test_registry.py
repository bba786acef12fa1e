"""The registry: folder first, entry points second, broken ones reported, the closest name for an unknown."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitconv import registry
from vitconv.errors import LayoutError, UsageError

KIND = registry.Kind("plants", "plant", "garden.plants", "PLANT")


@dataclass(frozen=True)
class Plant:
    name: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `garden.plants` with two entries and one shared module, and no plug-ins."""
    plants = tmp_path / "garden" / "plants"
    plants.mkdir(parents=True)
    (tmp_path / "garden" / "__init__.py").write_text("")
    (plants / "__init__.py").write_text("raise RuntimeError('listing must not import the package')\n")
    body = "from types import SimpleNamespace\nPLANT = SimpleNamespace(name={name!r})\n"
    (plants / "oak.py").write_text('"""A tree that grows old.\n\nMore of it."""\n' + body.format(name="oak"))
    (plants / "sea_kale.py").write_text("# no docstring\n" + body.format(name="sea-kale"))
    (plants / "_soil.py").write_text("raise RuntimeError('never imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield plants
    for name in [name for name in sys.modules if name.split(".")[0] == "garden"]:
        del sys.modules[name]


def plug_in(folder: Path, *points: tuple[str, str], package: str = "plug") -> None:
    """Install a package that adds entries, as pip leaves it: a dist-info folder beside the code."""
    info = folder.parents[1] / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points)
    (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[{KIND.group}]\n{lines}")


def importable(folder: Path) -> None:
    (folder / "__init__.py").write_text("")


def test_names_come_from_the_folder_without_importing_it(folder: Path) -> None:
    assert registry.folder_names(KIND) == ("oak", "sea-kale")
    assert "garden.plants" not in sys.modules


def test_entries_have_the_first_docstring_line_as_summary(folder: Path) -> None:
    assert registry.entries(KIND) == (
        registry.Entry("oak", "A tree that grows old", "vitconv"),
        registry.Entry("sea-kale", "", "vitconv"),
    )
    assert "garden.plants" not in sys.modules


def test_load_imports_the_one_module(folder: Path) -> None:
    importable(folder)
    assert registry.load(KIND, "sea-kale").name == "sea-kale"
    assert "garden.plants.oak" not in sys.modules


def test_known_name_does_not_look_at_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(folder)

    def look(group: str) -> bool:
        raise AssertionError("other packages are not asked about a name of the folder")

    monkeypatch.setattr(registry, "_announced", look)
    assert registry.load(KIND, "oak").name == "oak"
    assert list(registry.load_all(KIND, plugins=False)) == ["oak", "sea-kale"]


def test_missing_folder_has_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = registry.Kind("nothings", "nothing", "vitconv.nothings", "NOTHING")
    assert registry.entries(nothing) == ()
    assert registry.load_all(nothing) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oack", "unknown plant 'oack'. Did you mean 'oak'? Known: oak, sea-kale."),
        ("Sea-Kale", "unknown plant 'Sea-Kale'. Did you mean 'sea-kale'? Known: oak, sea-kale."),
        ("zzz", "unknown plant 'zzz'. Known: oak, sea-kale."),
    ],
)
def test_unknown_name_lists_known_and_closest(folder: Path, name: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.load(KIND, name)
    assert str(caught.value) == expected


def test_plug_in_is_found_by_its_entry_point_name(folder: Path) -> None:
    importable(folder)
    (folder / "_elsewhere.py").write_text("class fern: name = 'fern'\n")
    plug_in(folder, ("fern", "garden.plants._elsewhere:fern"))
    assert registry.load(KIND, "fern").name == "fern"
    assert list(registry.load_all(KIND)) == ["fern", "oak", "sea-kale"]
    assert registry.names(KIND) == ("fern", "oak", "sea-kale")
    assert registry.Entry("fern", "", "plug 1.0") in registry.entries(KIND)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (("moss", "garden.plants.moss:PLANT"), "ModuleNotFoundError"),
        (("soil", "garden.plants._soil:PLANT"), "RuntimeError: never imported"),
        (("ash", "garden.plants.oak:PLANT"), "it calls itself 'oak'"),
        (("oak", "garden.plants.sea_kale:PLANT"), "the name is taken"),
    ],
    ids=["no-such-module", "fails-at-import", "other-name", "taken-name"],
)
def test_broken_plug_in_is_reported_and_skipped(folder: Path, point: tuple[str, str], reason: str) -> None:
    importable(folder)
    plug_in(folder, point)
    warnings: list[str] = []
    found = registry.load_all(KIND, warn=warnings.append)
    assert list(found) == ["oak", "sea-kale"]
    assert found["oak"].name == "oak"
    assert len(warnings) == 1
    assert f"plant {point[0]!r} of plug 1.0" in warnings[0]
    assert reason in warnings[0]
    assert "skipped" in warnings[0]


def test_second_plug_in_of_one_name_is_reported(folder: Path) -> None:
    importable(folder)
    (folder / "_elsewhere.py").write_text("class fern: name = 'fern'\nclass other: name = 'fern'\n")
    plug_in(folder, ("fern", "garden.plants._elsewhere:fern"))
    plug_in(folder, ("fern", "garden.plants._elsewhere:other"), package="plug_two")
    warnings: list[str] = []
    assert "fern" in registry.load_all(KIND, warn=warnings.append)
    assert len(warnings) == 1
    assert "the name is taken" in warnings[0]


def test_broken_plug_in_asked_for_by_name_is_an_error(folder: Path) -> None:
    importable(folder)
    plug_in(folder, ("moss", "garden.plants.moss:PLANT"))
    with pytest.raises(
        UsageError, match=r"plant 'moss' of plug 1.0 cannot be loaded .*; repair or remove that package"
    ):
        registry.load(KIND, "moss")


def test_warnings_go_to_stderr_by_default(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    importable(folder)
    plug_in(folder, ("moss", "garden.plants.moss:PLANT"))
    registry.load_all(KIND)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warning: plant 'moss'")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("TREE = 1\n", "has no PLANT"),
        ("class PLANT: name = 'beech'\n", "holds the plant 'beech'; expected the name 'elm'"),
    ],
    ids=["no-constant", "other-name"],
)
def test_own_module_that_is_wrong_is_an_error(folder: Path, source: str, expected: str) -> None:
    importable(folder)
    (folder / "elm.py").write_text(source)
    with pytest.raises(LayoutError, match=expected):
        registry.load(KIND, "elm")


@pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.plural)
def test_every_own_entry_loads_under_its_file_name(kind: registry.Kind) -> None:
    found = registry.load_all(kind, plugins=False)
    assert tuple(found) == registry.folder_names(kind)
    for name, entry in found.items():
        assert getattr(entry, "name", name) == name


@pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.plural)
def test_every_own_entry_has_a_summary(kind: registry.Kind) -> None:
    assert [entry.name for entry in registry.entries(kind) if not entry.summary] == []


@pytest.mark.parametrize(
    "work",
    ["", "registry.load_all(registry.DIALECTS)", "[registry.entries(kind) for kind in registry.KINDS]"],
    ids=["import", "load-all", "list"],
)
def test_without_plug_ins_nothing_slow_is_imported(work: str) -> None:
    slow = {"importlib.metadata", "difflib", "torch", "numpy", "click"}
    code = f"import sys\nfrom vitconv import registry\n{work}\nprint(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_zip_file_on_the_path_is_asked_the_slow_way(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "plug.zip", "w") as archive:
        archive.writestr("plug-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
        archive.writestr("plug-1.0.dist-info/entry_points.txt", f"[{KIND.group}]\nfern = plug:fern\n")
    monkeypatch.syspath_prepend(str(tmp_path / "plug.zip"))
    assert registry.names(KIND) == ("fern", "oak", "sea-kale")
