"""Find the tensors and the plain values in what a pickle holds, by the paths that lead to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitconv.errors import BadFile
from vitconv.io.contents import some
from vitconv.io.numpy_values import Memory, NotNumbersError, array, is_array, is_scalar, kept_as_array, scalar
from vitconv.io.records import External, Global, Mapping, Record
from vitconv.io.tensor import Stored
from vitconv.io.torch_tensors import FindStorage, UnreadableError, View, is_tensor, rebuild
from vitconv.io.training_state import is_training_state

_MAX_VISITS = 5_000_000
_MAX_DEPTH = 64
_MAX_LIST = 32
_MAX_TEXT = 1 << 16
_NOT_PLAIN = object()

Path = tuple[str, ...]


@dataclass
class Found:
    """Tensors and plain values by path, the bytes of arrays that lay inside the pickle, and remarks."""

    tensors: dict[Path, View] = field(default_factory=dict)
    scalars: dict[Path, object] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    notes: list[str] = field(default_factory=list)

    def stored(self) -> list[Stored]:
        """Return the tensors with their names."""
        return [Stored(p, v.dtype, v.shape, v.blob, v.start, v.strides) for p, v in self.tensors.items()]


def collect(root: object, find_storage: FindStorage, where: str, size: int) -> Found:
    """Walk the object of a pickle of `size` bytes.

    Dicts and objects are containers. A whole pickled torch module, or a TorchScript one, is one container whose keys
    are those of its state dict.

    Raises:
        BadFile: tensors that cannot be read, outside the state of an optimizer; or parts nested without end.
    """
    walk = _Walk(find_storage, where, min(_MAX_VISITS, 20_000 + 2 * size))
    walk.visit(root, (), 0)
    if walk.unreadable:
        problems = [f"{some('.'.join(path) for path in paths)}: {why}" for why, paths in walk.unreadable.items()]
        raise BadFile(f"{where}: tensors that cannot be read: {'; '.join(problems)[:1500]}")
    return walk.found


class _Walk:
    def __init__(self, find_storage: FindStorage, where: str, steps: int) -> None:
        self.find_storage = find_storage
        self.where = where
        self.found = Found()
        self.unreadable: dict[str, list[Path]] = {}
        self.steps = steps
        self.active: set[int] = set()

    def spend(self, steps: int, depth: int) -> None:
        """Count work, so that parts which repeat each other cannot make a small file endless."""
        self.steps -= steps
        if self.steps < 0 or depth > _MAX_DEPTH:
            raise BadFile(f"{self.where}: the pickle nests its parts deeper or more often than any checkpoint does")

    def visit(self, value: object, path: Path, depth: int) -> None:
        self.spend(1, depth)
        simple = plain(value)
        if simple is not _NOT_PLAIN:
            self.found.scalars[path] = simple
            return
        if id(value) in self.active or not isinstance(value, Mapping | Record | list | tuple | External):
            return
        self.active.add(id(value))
        if isinstance(value, Mapping):
            self.pairs(value.pairs, path, depth)
        elif isinstance(value, Record):
            self.record(value, path, depth)
        elif isinstance(value, External):
            self.found.notes.append(f"a bare storage was left out: {'.'.join(path)[:100]!a}")
        else:
            self.sequence(value, path, depth)
        self.active.discard(id(value))

    def sequence(self, values: list[object] | tuple[object, ...], path: Path, depth: int) -> None:
        self.spend(len(values) // 16, depth)
        # A long list of numbers is a log, not a setting; but an optimizer's says which parameters are in a group.
        numbers = all(isinstance(value, int | float | str | None) for value in values)
        if numbers and path and path[-1] in ("params", "param_names"):
            self.found.scalars[path] = list(values)
        if not numbers:
            for index, value in enumerate(values):
                self.visit(value, (*path, str(index)), depth + 1)

    def pairs(self, pairs: list[tuple[object, object]], path: Path, depth: int) -> None:
        self.spend(len(pairs), depth)
        last = {name_of(key): value for key, value in pairs}
        for name, value in last.items():
            self.visit(value, (*path, name), depth + 1)

    def tensor(self, path: Path, record: Record) -> None:
        try:
            if is_array(record):
                found = array(record, self.found.memory)
            else:
                found = kept_as_array(record, self.found.memory) or rebuild(record, self.find_storage)
        except UnreadableError as error:
            if isinstance(error, NotNumbersError) or is_training_state(path):
                self.found.notes.append(f"left out: {'.'.join(path)[:100]!a}, {error}")
            else:
                self.unreadable.setdefault(str(error), []).append(path)
            return
        if path in self.found.tensors:
            raise BadFile(f"{self.where}: two tensors are called {'.'.join(path)[:100]!a}")
        self.found.tensors[path or ("tensor",)] = found

    def record(self, record: Record, path: Path, depth: int) -> None:
        if is_tensor(record) or is_array(record):
            self.tensor(path, record)
            return
        state = state_of(record)
        self.spend(len(state.pairs) + len(record.args), depth)
        script = record.kind.startswith("__torch__")
        if script or (isinstance(state.get("_parameters"), Mapping | Record) and state.get("_modules") is not None):
            self.found.notes.append(f"a whole module of class {record.kind[:100]!a}: its state dict was read off")
            self.module(state, path, "", script, depth)
            return
        content = state.get("_content")
        if content is not None and record.kind.startswith("omegaconf."):
            self.visit(content, path, depth + 1)
            return
        pairs = [*_pairs_in_args(record), *state.pairs, *record.pairs]
        if record.kind == "collections.OrderedDict":
            # torch keeps the versions of modules as an attribute of the state dict.
            pairs = [pair for pair in pairs if pair[0] != "_metadata"]
        self.pairs(pairs, path, depth)
        values = record.items if record.items or pairs else record.args
        for index, value in enumerate(values):
            if plain(value) is _NOT_PLAIN:
                self.visit(value, (*path, str(index)), depth + 1)

    def module(self, state: Mapping, path: Path, prefix: str, script: bool, depth: int) -> None:
        """Read a module as its state_dict() would name things; plain attributes become scalars."""
        if script:
            parts = state.pairs
        else:
            parts = [pair for name in ("_parameters", "_buffers", "_modules") for pair in _pairs_of(state.get(name))]
            skipped = {name_of(name) for name in _items_of(state.get("_non_persistent_buffers_set"))}
            buffers = {name_of(name) for name, _ in _pairs_of(state.get("_buffers"))}
            parts = [pair for pair in parts if name_of(pair[0]) not in skipped & buffers]
            self.attributes(state, path, prefix)
        self.spend(1 + len(parts), depth)
        for name, value in {name_of(name): value for name, value in parts}.items():
            key = f"{prefix}{name}"
            if isinstance(value, Record) and (is_tensor(value) or is_array(value)):
                self.tensor((*path, key), value)
            elif isinstance(value, Record) and id(value) not in self.active:
                self.active.add(id(value))
                self.module(state_of(value), path, f"{key}.", value.kind.startswith("__torch__"), depth + 1)
                self.active.discard(id(value))
            elif script and plain(value) is not _NOT_PLAIN and value is not None and not name.startswith("_"):
                self.found.scalars[(*path, key)] = plain(value)
            elif script and isinstance(value, list | tuple):
                self.visit(value, (*path, key), depth + 1)

    def attributes(self, state: Mapping, path: Path, prefix: str) -> None:
        for name, value in state.pairs:
            if isinstance(name, str) and not name.startswith("_") and plain(value) is not _NOT_PLAIN:
                self.found.scalars[(*path, f"{prefix}{name}")] = plain(value)


def name_of(key: object) -> str:
    """Return the text that stands for a key of a dict in a path."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, int | float | bytes):
        return str(key)
    if isinstance(key, tuple):
        return ",".join(name_of(part) for part in key[:8] if not isinstance(part, tuple))
    if isinstance(key, Global):
        return str(key)
    return f"<{type(key).__name__.lower()}>"


def plain(value: object) -> object:
    """Return a number, text, None or short list as it is or as a plain value; `_NOT_PLAIN` for anything else."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else _NOT_PLAIN
    if isinstance(value, list | tuple):
        if len(value) <= _MAX_LIST and all(
            part is None or isinstance(part, bool | int | float | str) for part in value
        ):
            return list(value)
        return _NOT_PLAIN
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, Record):
        return _plain_record(value)
    return _NOT_PLAIN


def plain_or_none(value: object) -> tuple[bool, object]:
    """Return (True, value) for a number, a text, None, or a list of them of any length, else (False, None)."""
    if isinstance(value, list | tuple) and all(isinstance(part, bool | int | float | str | None) for part in value):
        return True, list(value)
    found = plain(value)
    return (False, None) if found is _NOT_PLAIN else (True, found)


def _plain_record(record: Record) -> object:
    if is_scalar(record):
        return scalar(record)
    texts = [arg for arg in record.args if isinstance(arg, str | int | float)]
    if record.kind in ("torch.device", "torch.Size") and record.args:
        return _NOT_PLAIN if isinstance(record.args[0], Record) else plain(record.args[0])
    if record.kind.startswith("pathlib.") and len(texts) == len(record.args):
        return "/".join(str(text) for text in texts).replace("//", "/")
    if record.kind.startswith("omegaconf.") and isinstance(record.state, Mapping) and len(record.state.pairs) < 16:
        value = record.state.get("_val")
        if value is not None and not isinstance(value, Record):
            return plain(value)
    # An enum member, or a text or number of a class of its own.
    bare = record.state is None and not record.pairs and not record.items
    if bare and len(record.args) == 1 and len(texts) == 1 and record.kind.partition(".")[0] not in ("torch", "numpy"):
        return texts[0]
    return _NOT_PLAIN


def state_of(record: Record) -> Mapping:
    """Return the attributes of an object as its pickled state gives them."""
    state = record.state
    if isinstance(state, tuple) and len(state) == 2:
        return Mapping([pair for part in state if isinstance(part, Mapping) for pair in part.pairs])
    return state if isinstance(state, Mapping) else Mapping()


def _pairs_of(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Record):
        return [*_pairs_in_args(value), *value.pairs]
    return value.pairs if isinstance(value, Mapping) else []


def _pairs_in_args(record: Record) -> list[tuple[object, object]]:
    """Return the pairs that Python 2 wrote as the argument of an OrderedDict."""
    if record.kind != "collections.OrderedDict" or not record.args or not isinstance(record.args[0], list):
        return []
    return [(pair[0], pair[1]) for pair in record.args[0] if isinstance(pair, list | tuple) and len(pair) == 2]


def _items_of(value: object) -> list[object]:
    if not isinstance(value, Record):
        return []
    inner = value.args[0] if value.args and isinstance(value.args[0], list | tuple) else ()
    return [*value.items, *inner]
