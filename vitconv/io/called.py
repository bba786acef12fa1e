"""What a pickle wants to call besides torch's own: classes that hold data, or functions that would do something.

Nothing is called here. But who loads such a file with torch runs the functions, so they are named.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitconv.io.allowed import known
from vitconv.io.contents import some
from vitconv.io.records import Global

# Lower-case names that make data: of the standard library, numpy, and what pickles of objects begin with.
_MAKES_DATA = frozenset(
    (
        "copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__", "copy_reg.__newobj__",
        "collections.defaultdict", "collections.deque", "datetime.datetime", "datetime.date", "datetime.time",
        "datetime.timedelta", "datetime.timezone", "functools.partial", "re._compile", "logging.getLogger",
        "array._array_reconstructor", "types.SimpleNamespace", "builtins.complex", "builtins.iter", "builtins.reversed",
        "builtins.enumerate", "builtins.zip", "builtins.type", "__builtin__.type", "zoneinfo.ZoneInfo._unpickle",
        "torch.dtype", "torch.layout", "torch.memory_format", "torch._C._distributed_c10d.ProcessGroup",
    )
)  # fmt: skip
_LIBRARIES = ("numpy", "torch", "pandas", "scipy", "sklearn", "omegaconf", "jax", "tensorflow")
_PREFIXES = (
    "_rebuild",
    "_reconstruct",
    "_unpickle",
    "__",
    "_frombuffer",
    "scalar",
    "dtype",
    "ndarray",
    "_new_",
    "_make",
)
# Libraries whose own rebuilders run code that lies in the pickle.
_RUN_CODE = ("torch.fx", "torch.package", "torch._dynamo", "torch._inductor")


def called_notes(called: Iterable[Global]) -> list[str]:
    """Return what is to be said of the calls: the functions as a warning, classes of others in short."""
    foreign = sorted({str(found) for found in called if not known(found) and not _makes_data(found)})
    objects = [name for name in foreign if _is_class(name)]
    functions = [name for name in foreign if name not in objects]
    out = []
    if functions:
        out.append(
            f"warning: the pickle wants to call functions that make no data: {some(functions, 12)}; nothing of it was"
            " run here, but torch.load(weights_only=False) would run it: find out where the file is from"
        )
    others = [name for name in objects if name.partition(".")[0] not in (*_LIBRARIES, "collections", "argparse")]
    if others:
        out.append(f"objects of other code were passed over: {some(others, 12)}")
    return out


def _makes_data(found: Global) -> bool:
    name, top, last = str(found), found.module.partition(".")[0], found.name.rpartition(".")[2]
    if name in _MAKES_DATA or (top in ("pathlib", "decimal", "fractions", "uuid") and _is_class(name)):
        return "." not in found.name or name in _MAKES_DATA
    ours = top in _LIBRARIES and not found.module.startswith(_RUN_CODE)
    return ours and (last.startswith(_PREFIXES) or last.endswith("_ctor"))


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()
