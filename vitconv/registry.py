"""Find dialects, init schemes, checks and hosts by name: in a folder first, then in other packages.

A module `hf_vit.py` in the folder of a kind is the entry `hf-vit`, and holds it in one constant. So names
and one-line summaries are read off the folder without importing anything; a module is imported when its
entry is asked for. Entry points cost a look at every installed package, so they are read only when a name
is not in the folder, or all are listed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.errors import LayoutError, UsageError
from vitconv.record import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """One kind of entry: what it is called, the folder it lives in, the constant that holds it."""

    plural: str
    singular: str
    package: str
    constant: str

    @property
    def group(self) -> str:
        """Return the entry-point group of other packages."""
        return f"vitconv.{self.plural}"


@dataclass(frozen=True)
class Entry:
    """One entry without its object; `origin` is "vitconv", or the package that adds it and its version."""

    name: str
    summary: str
    origin: str


DIALECTS = Kind("dialects", "dialect", "vitconv.dialects", "DIALECT")
INITS = Kind("inits", "init scheme", "vitconv.inits", "SCHEME")
CHECKS = Kind("checks", "check", "vitconv.checks", "CHECK")
HOSTS = Kind("hosts", "host", "vitconv.hosts", "HOST")
KINDS = (DIALECTS, INITS, CHECKS, HOSTS)


def warn_on_stderr(message: str) -> None:
    """Write one warning line to stderr."""
    sys.stderr.write(f"warning: {message}\n")


def folder_names(kind: Kind) -> tuple[str, ...]:
    """List the names of the entries in the kind's own folder, sorted, importing none of them.

    A module whose name starts with an underscore is shared by its neighbours and is no entry.
    """
    return tuple(sorted(_modules(kind.package)))


def file_beside(kind: Kind, name: str) -> Path:
    """Return the path of a data file in the kind's own folder."""
    return Path(next(iter(_modules(kind.package).values()))).with_name(name)


def names(kind: Kind) -> tuple[str, ...]:
    """List all names of a kind, those of other packages included, sorted, importing none of them."""
    return tuple(sorted({*folder_names(kind), *(point.name for point in _points(kind))}))


def entries(kind: Kind) -> tuple[Entry, ...]:
    """List all entries of a kind with summary and origin, sorted by name, importing none of them."""
    own = _modules(kind.package)
    found = [Entry(name, summary(Path(path)), "vitconv") for name, path in own.items()]
    found += [Entry(point.name, "", _origin(point)) for point in _points(kind) if point.name not in own]
    return tuple(sorted(found, key=lambda entry: entry.name))


def summary(path: Path) -> str:
    """Return the first sentence line of a module's docstring, read from its source; "" if there is none."""
    text = path.read_text(encoding="utf-8").lstrip()
    if not text.startswith('"""'):
        return ""
    return text[3:].split('"""', 1)[0].strip().split("\n", 1)[0].rstrip(".")


def load(kind: Kind, name: str) -> Any:
    """Return the entry of a kind by name.

    Raises:
        UsageError: no entry has this name; the message lists the known ones and the closest; or a plug-in
        has the
            name and cannot be loaded.
    """
    own = _modules(kind.package)
    if name in own:
        return _from_folder(kind, name, own[name])
    points = _points(kind)
    for point in points:
        if point.name == name:
            try:
                return _from_point(point)
            except Exception as error:
                raise UsageError(f"{_broken(kind, point, error)}; repair or remove that package") from error
    raise unknown(kind.singular, name, sorted({*own, *(point.name for point in points)}))


def load_all(
    kind: Kind, *, plugins: bool = True, only: Container[str] | None = None, warn: Warn = warn_on_stderr
) -> dict[str, Any]:
    """Return all entries of a kind by name; a plug-in that cannot be had is reported and skipped.

    Set `plugins` to False to leave other packages alone, which spares a look at every installed package. `only` names
    those of the folder to load, when not all; other packages' are loaded in any case.
    """
    own = _modules(kind.package)
    found = {name: _from_folder(kind, name, path) for name, path in own.items() if only is None or name in only}
    for point in _points(kind) if plugins else ():
        if point.name in own or point.name in found:
            warn(f"{kind.singular} {point.name!r} of {_origin(point)} is skipped: the name is taken")
            continue
        try:
            found[point.name] = _from_point(point)
        except Exception as error:
            warn(f"{_broken(kind, point, error)}; it is skipped")
    return dict(sorted(found.items()))


def unknown(what: str, name: str, known: list[str] | tuple[str, ...]) -> UsageError:
    """Return the error for a name that is not known, with the closest and all known names."""
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(known) if known else "none"
    return UsageError(f"unknown {what} {name!r}.{hint} Known: {listed}.")


def _modules(package: str) -> dict[str, str]:
    # The folder is read without importing the package. A package that is not there has no entries.
    from importlib.util import find_spec

    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    # Plain listings: every command asks several times, and pathlib's patterns took a tenth of a start.
    return {
        name[:-3].replace("_", "-"): f"{folder}{os.sep}{name}"
        for folder in folders
        for name in sorted(_listed(folder))
        if name.endswith(".py") and not name.startswith("_")
    }


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")  # noqa: PTH208 - names alone
    except OSError:
        return []


def _from_folder(kind: Kind, name: str, path: str) -> Any:
    file = path.rpartition(os.sep)[2]
    module = import_module(f"{kind.package}.{file.removesuffix('.py')}")
    entry = getattr(module, kind.constant, None)
    if entry is None:
        raise LayoutError(f"{file} in {kind.package} has no {kind.constant}; define it, or start the name with '_'")
    said = getattr(entry, "name", name)
    if said != name:
        raise LayoutError(f"{file} in {kind.package} holds the {kind.singular} {said!r}; expected the name {name!r}")
    return entry


def _points(kind: Kind) -> list[EntryPoint]:
    if not _announced(kind.group):
        return []
    from importlib.metadata import entry_points

    # A package found on two paths shows its entry points twice; two packages with one name stay two.
    return sorted({(point.name, point.value): point for point in entry_points(group=kind.group)}.values())


def _announced(group: str) -> bool:
    # Whether any installed package names the group. importlib.metadata would say so too, but its import alone
    # costs a third of what a command may, and nearly always the answer is no.
    header = f"[{group}]".encode()
    for folder in sys.path:
        if Path(folder).is_file():
            return True  # a zip file: not for a quick look
        for name in _listed(folder):
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    said = Path(folder, name, "entry_points.txt").read_bytes()
                except OSError:
                    continue
                if header in said:
                    return True
    return False


def _from_point(point: EntryPoint) -> Any:
    entry = point.load()
    if getattr(entry, "name", point.name) != point.name:
        raise LayoutError(f"it calls itself {entry.name!r}")
    return entry


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _broken(kind: Kind, point: EntryPoint, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"
    return f"{kind.singular} {point.name!r} of {_origin(point)} cannot be loaded ({reason})"
