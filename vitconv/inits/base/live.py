"""Fill a live network: its own tensors are recognised through the dialects and drawn by role."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.errors import Ambiguous, NotRecognised, Refused, UsageError
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.draw import sample, seed_of
from vitconv.inits.base.scheme import Scheme
from vitconv.layout.detect import detect
from vitconv.layout.match import collapse
from vitconv.layout.network import Cell, Network, decode
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, HOSTS, INITS, load, load_all, unknown


@dataclass(frozen=True)
class Live:
    """A live network seen through a dialect.

    Attributes:
        tensors: {key of the state dict: the network's own tensor}.
        network: its canonical tensors as views of them.
        prefix: what stands ahead of every key that belongs to the network.
        rest: keys that are no part of it.
        dialect: the dialect that explains it.
    """

    tensors: Mapping[str, Tensor]
    network: Network
    prefix: str
    rest: tuple[str, ...]
    dialect: str

    @property
    def arch(self) -> Architecture:
        """Return what a scheme is asked to fill."""
        return Architecture(self.network.shapes, self.network.facts)

    def key(self, name: str) -> str:
        """Return the key of the tensor that holds a canonical tensor."""
        return self.prefix + self.network.cells[name].view.tensor

    def view(self, name: str) -> Tensor:
        """Return the elements of a canonical tensor, as a view of the network's own memory where strides allow."""
        return self._in(self.tensors[self.key(name)].detach().contiguous(), name)

    def _in(self, whole: Tensor, name: str) -> Tensor:
        cell: Cell = self.network.cells[name]
        factors = [f for axis in cell.view.dims for f in axis]
        return whole.view(-1).as_strided(
            [n for n, _ in factors], [s for _, s in factors], whole.storage_offset() + cell.view.offset
        )

    def write(self, name: str, value: Tensor) -> None:
        """Write a canonical tensor into the network's own, rounded to its dtype."""
        whole = self.tensors[self.key(name)].detach()
        # Of another memory format, such as channels_last: filled beside it, then copied in one.
        dense = whole.contiguous()
        view = self._in(dense, name)
        with torch.no_grad():
            view.copy_(value.reshape(view.shape))
            if dense is not whole:
                whole.copy_(dense)

    def read(self, name: str) -> Tensor:
        """Return a copy of a canonical tensor in its canonical shape."""
        return self.view(name).clone().reshape(self.network.cells[name].shape)


@dataclass(frozen=True)
class _Blank:
    """What a host is asked to describe a module by, when nothing but facts is known: the fields of its Spec."""

    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Semantics = field(default_factory=Semantics)
    shapes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Got:
    """What one tensor got: its canonical name and key, the distribution in words, the declared and the measured std."""

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: str
    distribution: str
    declared_std: float
    measured_std: float
    note: str = ""


def apply(
    model: nn.Module,
    scheme: Scheme | str,
    *,
    seed: int = 0,
    facts: Mapping[str, Any] | None = None,
    dialect: str | None = None,
    partly: bool = False,
) -> tuple[Got, ...]:
    """Fill a live network in place, and return what every tensor got.

    The same seed gives the same network in every layout. Values are drawn in float32 and rounded to each tensor's own
    dtype.

    Args:
        model: any network whose state dict a dialect explains, alone or under attributes of a wrapper.
        scheme: a scheme or its name.
        seed: the seed of the network.
        facts: facts that win over those read off the live modules, such as {"norm_placement": "deepnorm"}.
        dialect: the dialect, when several explain it.
        partly: leave tensors alone that no dialect explains, in place of refusing; they are in the table.

    Raises:
        NotRecognised / Ambiguous: no dialect explains the state dict, or several do.
        Refused: the scheme does not go with the network, or tensors are left over without `partly`.
    """
    chosen: Scheme = load(INITS, scheme) if isinstance(scheme, str) else scheme
    live = recognised(model, facts, dialect)
    if live.rest and not partly:
        raise Refused(
            f"no role is known for {', '.join(collapse(live.rest))}, beside the {live.dialect} network under "
            f"{live.prefix.removesuffix('.')}; with partly=True they are left alone and listed as such"
        )
    notes = chosen.check(live.arch)
    declared = chosen.declared(live.arch)
    held: dict[object, str] = {}
    rows = []
    for name, cell in live.network.cells.items():
        first = held.setdefault((cell.view.tensor, cell.view.offset, cell.view.dims), name)
        if first == name:
            live.write(name, sample(declared[name], cell.shape, seed_of(seed, name)))
        rows.append(_got(live, name, declared[name].text, declared[name].std, "" if first == name else f"is {first}"))
    rows += [
        Got("", key, tuple(t.shape), str(t.dtype).removeprefix("torch."), "left as it was", float("nan"), _std(t), "")
        for key in live.rest
        for t in [live.tensors[key].detach()]
    ]
    return (*rows, *(Got("", "", (), "", "", float("nan"), float("nan"), note) for note in notes))


def recognised(model: nn.Module, facts: Mapping[str, Any] | None = None, dialect: str | None = None) -> Live:
    """See a live network through a dialect; its facts are read off its modules by the hosts.

    Raises:
        NotRecognised / Ambiguous: no dialect explains the state dict, or several do.
        Refused: a tensor has one place in memory for several elements, so it cannot be written by role; or the network
            is of a kind that is known and has no roles here.
        UsageError: it is no module, holds nothing, or a fact is none.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"found {type(model).__name__}; expected a torch.nn.Module, such as timm.create_model gives")
    for name in facts or {}:
        if name not in (known_facts := [f.name for f in dataclasses.fields(Semantics)]):
            raise unknown("fact", name, known_facts)
    told = Semantics(**(facts or {}))
    known, speaks = _read(model, told)
    names = [dialect] if dialect else list(speaks)
    dialects = [load(DIALECTS, name) for name in names] or list(load_all(DIALECTS).values())
    state = dict(model.state_dict(keep_vars=True))
    strided = [k for k, t in state.items() if any(n > 1 and not s for n, s in zip(t.shape, t.stride(), strict=True))]
    if strided:
        raise Refused(f"these tensors are expanded and cannot be written by role: {', '.join(strided)}; .clone() them")
    if not state:
        raise UsageError(f"{type(model).__name__} holds no tensors; expected a network with parameters")
    first: NotRecognised | None = None
    for prefix in _prefixes(state):
        inside = {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
        try:
            match = detect({k: tuple(t.shape) for k, t in inside.items()}, dialects, facts=known.known())
        except NotRecognised as e:
            first = first or e
            continue
        except Ambiguous as e:
            raise Ambiguous(str(e).replace("--from ", "dialect=")) from None
        except Refused as e:
            said = str(e).replace("this file", "this network")
            raise Refused(f"{type(model).__name__}: {said}\n  expected: {_EXPECTED}") from None
        network = decode(match, {k: str(t.dtype).removeprefix("torch.") for k, t in inside.items()}, known)
        rest = tuple(key for key in state if not key.startswith(prefix))
        return Live(state, network, prefix, rest, match.dialect.name)
    assert first is not None
    raise NotRecognised(_unexplained(model, len(state), first)) from None


def _prefixes(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return what may stand ahead of a whole network's keys: nothing, an attribute, or more that hold most tensors."""
    counts = Counter(".".join(key.split(".")[:n]) + "." for key in state for n in range(1, key.count(".") + 1))
    likely = [p for p, count in counts.items() if p.count(".") == 1 or 2 * count >= len(state)]
    return ("", *sorted(likely, key=lambda p: p.count(".")))


_EXPECTED = (
    "a network whose state dict one layout explains whole, alone or under attributes of a wrapper (`vitconv list "
    "dialects`)"
)
_TO_DO = (
    "give the part that is the ViT, as in apply(model.backbone, scheme); bring the names into a known layout's; or "
    "describe the layout in a file of your own, found by the entry point vitconv.dialects (docs/dialects.md). What an "
    "init function of your own misses: vitconv.inits.coverage(model, fn)"
)


def _unexplained(model: nn.Module, count: int, why: NotRecognised) -> str:
    """Say what was found, what was expected, and what to do; options of the command line are no help here."""
    found = f"{type(model).__name__} with its {count} tensors is no network whose roles are known, so nothing was done"
    lines = [line.strip() for line in str(why).splitlines() if "--drop" not in line]
    return "\n  ".join((found, *lines, f"expected: {_EXPECTED}", f"what to do: {_TO_DO}"))


def _read(model: nn.Module, told: Semantics) -> tuple[Semantics, tuple[str, ...]]:
    """Return the facts of a live network, those told first, and the dialects it can be in."""
    blank = _Blank(facts=told)
    built = load(HOSTS, "python").describe(model, blank)
    return told.filled(built.facts), built.dialects if built.host != "python" else ()


def _got(live: Live, name: str, text: str, std: float, note: str) -> Got:
    cell = live.network.cells[name]
    return Got(name, live.key(name), cell.shape, cell.dtype, text, std, _std(live.view(name)), note)


def _std(tensor: Tensor) -> float:
    return float(tensor.double().std(correction=0)) if tensor.is_floating_point() and tensor.numel() else float("nan")
