"""Find the state of an optimizer in a checkpoint: what it keeps per parameter, and its parameter groups.

As `torch.optim.Optimizer.state_dict` lays it out, with parameters by number, or as FSDP and
`torch.distributed.checkpoint.state_dict` do, by name. Nothing is read but headers and plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vitconv.errors import BadFile, UsageError, shown
from vitconv.io.tensor import Stored

Path = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """One parameter group: the ids of its parameters, their names where it keeps them, and its settings."""

    params: tuple[str, ...]
    names: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerState:
    """The state of one optimizer.

    Attributes:
        name: the container it was found in, or "" for a file that is nothing else.
        tensors: {parameter id: {state name: tensor}}.
        numbers: {parameter id: {state name: plain value}}.
        groups: the parameter groups, in order.
    """

    name: str
    tensors: Mapping[str, Mapping[str, Stored]]
    numbers: Mapping[str, Mapping[str, object]]
    groups: tuple[Group, ...]

    @property
    def by_number(self) -> bool:
        """Say whether parameters go by their place in the groups, and not by name."""
        return all(i.isdecimal() for g in self.groups for i in g.params)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{parameter id: shape of its moments}, for those that have any."""
        found = {}
        for i, held in self.tensors.items():
            shapes = {t.shape for t in held.values() if t.numel > 1} or {t.shape for t in held.values() if t.shape}
            if len(shapes) == 1:
                found[i] = next(iter(shapes))
        return found


class Readable(Protocol):
    """A checkpoint, as far as its optimizer has to be found."""

    @property
    def tensors(self) -> tuple[Stored, ...]:
        """Return all tensors."""

    @property
    def scalars(self) -> Mapping[Path, object]:
        """Return the plain values by path."""


def optimizers(ckpt: Readable) -> list[OptimizerState]:
    """Return the state of every optimizer in a checkpoint, in file order."""
    held: dict[Path, dict[str, dict[str, Stored]]] = {}
    for stored in ckpt.tensors:
        at = _root(stored.path)
        if at is not None:
            held.setdefault(at, {}).setdefault(stored.path[-2], {})[stored.path[-1]] = stored
    groups: dict[Path, dict[str, dict[str, object]]] = {}
    numbers: dict[Path, dict[str, dict[str, object]]] = {}
    for path, value in ckpt.scalars.items():
        if "param_groups" in path:
            at = path[: path.index("param_groups")]
            rest = path[len(at) + 1 :]
            if len(rest) >= 2:
                groups.setdefault(at, {}).setdefault(rest[0], {})[".".join(rest[1:])] = value
        else:
            root = _root(path)
            if root is not None:
                numbers.setdefault(root, {}).setdefault(path[-2], {})[path[-1]] = value
    return [
        OptimizerState(".".join(at), held.get(at, {}), numbers.get(at, {}), tuple(_groups(at, groups[at])))
        for at in groups
    ]


def _root(path: Path) -> Path | None:
    """Return the container of an optimizer from the path of one of its values: (*root, "state", id, name)."""
    return path[:-3] if len(path) >= 3 and path[-3] == "state" else None


def _groups(at: Path, found: Mapping[str, Mapping[str, object]]) -> Iterable[Group]:
    for number in sorted(found, key=lambda n: (len(n), n)):
        settings = dict(found[number])
        params, names = settings.pop("params", None), settings.pop("param_names", None)
        if not isinstance(params, list):
            where = shown(".".join(at)) or "this optimizer"
            raise BadFile(f"{where}: parameter group {shown(number)} does not say which parameters are in it")
        kept = tuple(str(n) for n in names) if isinstance(names, list) and len(names) == len(params) else ()
        yield Group(tuple(str(i) for i in params), kept, settings)


def only(found: list[OptimizerState], where: str) -> OptimizerState:
    """Return the one optimizer.

    Raises:
        UsageError: there is none, or several.
    """
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"{where} holds no state of an optimizer; --optimizer-from FILE names one that lies elsewhere")
    names = ", ".join(shown(o.name) or "the file itself" for o in found)
    raise UsageError(f"{where} holds the state of {len(found)} optimizers ({names}); keep the one that is meant")
