"""Read the `.metadata` of a distributed checkpoint of torch: which pieces of which tensors lie where.

It is a pickle, and is walked like any other: nothing that it names is imported or called. Layout: repository
pytorch/pytorch, `torch/distributed/checkpoint/metadata.py` and `filesystem.py`, 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath

from vitconv.errors import BadFile
from vitconv.io.allowed import check
from vitconv.io.contents import some
from vitconv.io.records import Mapping, Record
from vitconv.io.tensor import ITEMSIZE
from vitconv.io.torch_tensors import UnreadableError, sizes, torch_dtype
from vitconv.io.unpickle import unpickle

_MAX_BLOCKS = 4096
_OURS = ("torch.distributed.checkpoint.", "torch.serialization._get_layout", "pathlib.")
# Parts of a training state that stand for the whole when no nesting is recorded.
_CONTAINERS = frozenset(
    ("app", "model", "module", "state_dict", "teacher", "student", "ema", "model_ema", "optim", "optimizer",
     "optimizers", "train_state", "lr_scheduler", "scheduler", "dataloader", "state", "param_groups")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored piece: where it begins in the tensor and its sizes, and the bytes of a file that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its containers and key, dtype and shape, and its pieces."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass
class Catalogue:
    """All tensors by their flat name, other values as the piece that holds them, and what could not be understood."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    values: dict[tuple[str, ...], Piece] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()


def read_catalogue(raw: bytes, where: str) -> Catalogue:
    """Read the bytes of a `.metadata` file; `where` names it in messages.

    Raises:
        BadFile: damaged or hostile, or no catalogue.
    """
    done = unpickle(raw, where)
    foreign = tuple(name for name in check(done.globals, where) if not name.startswith(_OURS))
    root = _attributes(done.root)
    described, places = root.get("state_dict_metadata"), root.get("storage_data")
    if not isinstance(described, Mapping) or not isinstance(places, Mapping):
        raise BadFile(f"{where}: this is no catalogue of a distributed checkpoint of torch; it is damaged")
    found = Catalogue(foreign=foreign)
    try:
        stored = _places(places, where)
    except UnreadableError as error:
        raise BadFile(f"{where}: the catalogue says no place for one of its tensors; it is damaged") from error
    nested = _nesting(root.get("planner_data"))
    for name, value in described.pairs:
        if not isinstance(name, str) or not isinstance(value, Record):
            raise BadFile(f"{where}: the catalogue names a tensor by what is no text; it is damaged")
        path = nested.get(name) or _split(name)
        if value.kind.endswith(".BytesStorageMetadata"):
            piece = stored.get((name, ()))
            if piece is not None:
                found.values[path] = piece
            continue
        try:
            entry = _entry(name, path, _attributes(value), stored)
        except (UnreadableError, BadFile) as error:
            found.faults.setdefault(str(error), []).append(name)
            continue
        found.tensors[name] = entry
    return found


def _entry(name: str, path: tuple[str, ...], said: Mapping, stored: dict[tuple[str, tuple[int, ...]], Piece]) -> Entry:
    properties, shape, chunks = said.get("properties"), sizes(said.get("size")), said.get("chunks")
    state = properties.state if isinstance(properties, Record) else None
    if isinstance(state, Mapping):
        state = (state.get("dtype"),)
    if not isinstance(state, tuple) or not state or not isinstance(chunks, list):
        raise UnreadableError("its description is incomplete")
    dtype = torch_dtype(state[0])
    pieces: list[Piece] = []
    lost = 0
    for chunk in chunks:
        inner = _attributes(chunk)
        offsets, extent = sizes(inner.get("offsets")), sizes(inner.get("sizes"))
        if not prod(extent):
            continue
        place = stored.get((name, offsets))
        if place is None:
            lost += 1
            continue
        if place.nbytes < prod(extent) * ITEMSIZE[dtype]:
            raise BadFile("a piece is stored in fewer bytes than it has")
        pieces.append(Piece(offsets, extent, place.file, place.at, place.nbytes))
    if lost:
        raise BadFile(f"{lost} of {len(chunks)} pieces were never stored")
    pieces.sort(key=lambda piece: piece.offsets)
    if not _covers(shape, pieces):
        raise BadFile("the pieces do not make up the tensor: some are missing or overlap")
    return Entry(path, dtype, shape, tuple(pieces))


def _covers(shape: tuple[int, ...], pieces: list[Piece]) -> bool:
    """Say whether pieces, sorted by their offsets, fill the tensor exactly once."""
    volume = 0
    for piece in pieces:
        if len(piece.offsets) != len(shape) or len(piece.sizes) != len(shape):
            return False
        if any(o + n > size for o, n, size in zip(piece.offsets, piece.sizes, shape, strict=True)):
            return False
        volume += prod(piece.sizes)
    if volume != prod(shape):
        return False
    # Of boxes of the right volume together, none overlaps exactly when none is left open.
    along = [i for i in range(len(shape)) if any(p.sizes[i] != shape[i] for p in pieces)]
    if len(along) > 1:
        if len(pieces) > _MAX_BLOCKS:
            raise BadFile(f"cut into {len(pieces)} blocks along {len(along)} axes, more than any such is")
        return all(not _meet(a, b) for i, a in enumerate(pieces) for b in pieces[i + 1 :])
    return not along or all(a.offsets[along[0]] + a.sizes[along[0]] <= b.offsets[along[0]] for a, b in pairwise(pieces))


def _meet(a: Piece, b: Piece) -> bool:
    return all(x < y + m and y < x + n for x, n, y, m in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True))


def _places(places: Mapping, where: str) -> dict[tuple[str, tuple[int, ...]], Piece]:
    found: dict[tuple[str, tuple[int, ...]], Piece] = {}
    wild: list[str] = []
    for index, info in places.pairs:
        key, value = _attributes(index), _attributes(info)
        name, file = key.get("fqn"), value.get("relative_path")
        at, nbytes = value.get("offset"), value.get("length")
        if not isinstance(name, str) or not isinstance(file, str) or type(at) is not int or type(nbytes) is not int:
            raise BadFile(f"{where}: the catalogue says no place for one of its tensors; it is damaged")
        if at < 0 or nbytes < 0 or PurePosixPath(file).name != file or "\\" in file or "\0" in file:
            wild.append(file)
        if value.get("transform_descriptors"):
            raise BadFile(
                f"{where}: its files are packed ({some([str(value.get('transform_descriptors'))])}); save it without"
                " stream transforms"
            )
        offsets = key.get("offset")
        start = () if offsets is None else sizes(offsets)
        found[(name, start)] = Piece(start, (), file, at, nbytes)
    if wild:
        raise BadFile(f"{where}: the catalogue names files outside its folder: {some(wild)}; that is refused")
    return found


def _attributes(value: object) -> Mapping:
    """Return the attributes of a pickled dataclass."""
    state = value.state if isinstance(value, Record) else None
    return state if isinstance(state, Mapping) else Mapping()


def _nesting(value: object) -> dict[str, tuple[str, ...]]:
    """Return the path of every flat name, as the default planner records it."""
    found: dict[str, tuple[str, ...]] = {}
    for name, path in _pairs(value):
        if isinstance(name, str) and isinstance(path, tuple) and path and all(isinstance(p, str | int) for p in path):
            found[name] = tuple(str(p) for p in path)
    return found


def _pairs(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping | Record):
        yield from value.pairs


def _split(name: str) -> tuple[str, ...]:
    """Guess the containers of a flat name that nothing says more about: known words at its start."""
    parts = name.split(".")
    count = 0
    while count < len(parts) - 1 and parts[count] in _CONTAINERS:
        count += 1
    if "optim" in parts[:count] or "optimizer" in parts[:count]:
        # The state of one parameter: its own name holds dots, the last part says which number it is.
        return (*parts[:count], ".".join(parts[count:-1]), parts[-1]) if len(parts) > count + 1 else tuple(parts)
    return (*parts[:count], ".".join(parts[count:]))
