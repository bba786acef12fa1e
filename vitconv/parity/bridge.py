"""A network's own tensors seen as canonical ones: every canonical tensor is a strided view of one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.conversion.candidates import Candidates
from vitconv.errors import NotRecognised, Refused
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect
from vitconv.layout.match import Match, collapse
from vitconv.layout.network import Network, decode
from vitconv.layout.recipe import tiles
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Bridge:
    """How the tensors of one network, or of one file, are canonical tensors.

    Attributes:
        match: how the dialect explains the tensors, none of them unknown and none missing.
        network: the canonical tensors as views; its facts are those given and those the variant implies.
        prefix: what stands ahead of every key in the network, such as "model." of a wrapper.
    """

    match: Match
    network: Network
    prefix: str = ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{canonical name: shape}."""
        return self.network.shapes

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of canonical names that are one tensor here."""
        groups: dict[object, list[str]] = {}
        for name, cell in self.network.cells.items():
            groups.setdefault(cell.view, []).append(name)
        return tuple(tuple(names) for names in groups.values() if len(names) > 1)

    def shared(self, tensors: Mapping[str, Tensor]) -> tuple[tuple[str, ...], ...]:
        """Return groups of canonical names whose elements are the same memory, though the dialect keeps them apart."""
        places: dict[object, list[str]] = {}
        for name, cell in self.network.cells.items():
            whole = tensors[self.prefix + cell.view.tensor]
            if whole.numel():
                start = whole.data_ptr() + cell.view.offset * whole.element_size()
                places.setdefault((start, cell.view.dims), []).append(name)
        tied = {frozenset(group) for group in self.ties}
        return tuple(tuple(names) for names in places.values() if len(names) > 1 and frozenset(names) not in tied)

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the canonical tensors: {canonical name: tensor} from {key: tensor}."""
        return {name: self._view(tensors, name).clone() for name in self.network.cells}

    def views(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """Return some canonical tensors as views of the network's own, without gradients: not to be changed."""
        return {name: self._view(tensors, name) for name in names}

    def owns(self, key: str) -> bool:
        """Return whether this key of the network holds a canonical tensor."""
        return key.startswith(self.prefix) and key.removeprefix(self.prefix) in self._keys

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(cell.view.tensor for cell in self.network.cells.values())

    def write(self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Copy canonical weights into the network's own tensors, casting to their dtypes.

        Raises:
            Refused: a name is lacking, too many, of another shape, or two names that are one tensor here differ.
        """
        self.check(weights)
        keys = [self.prefix + key for key in self._keys]
        # Of another memory format, such as channels_last: filled beside it, then copied in one.
        dense = {key: tensors[key].detach().contiguous() for key in keys if not tensors[key].is_contiguous()}
        with torch.no_grad():
            for name in self.network.cells:
                self._view({**tensors, **dense}, name).copy_(weights[name])
            for key, whole in dense.items():
                tensors[key].copy_(whole)
            for key, of in self.match.copies.items():
                copy, original = tensors[self.prefix + key], tensors[self.prefix + of]
                if copy.data_ptr() != original.data_ptr():
                    copy.copy_(original)

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise Refused unless the weights fit: the same names and shapes, and tied ones equal."""
        cells, lines = self.network.cells, []
        dialect = self.match.dialect.name
        lacking, spare = [n for n in cells if n not in weights], [n for n in weights if n not in cells]
        if lacking:
            lines.append(f"the network ({dialect}) needs, and the weights lack: {', '.join(collapse(lacking))}")
        if spare:
            lines.append(f"the network ({dialect}) has no place for: {', '.join(collapse(spare))}")
        apart: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
        for n, c in cells.items():
            if n in weights and tuple(weights[n].shape) != c.shape:
                apart.setdefault((tuple(weights[n].shape), tuple(c.shape)), []).append(n)
        lines += [
            f"{', '.join(collapse(names))}: the weights are {list(here)}, the network has {list(there)}"
            for (here, there), names in apart.items()
        ]
        for first, *rest in self.ties:
            lines += [
                f"{n} and {first} are one tensor in the network and differ in the weights"
                for n in rest
                if not lines and not torch.equal(weights[n], weights[first])
            ]
        if lines:
            raise Refused(
                "the weights do not fit the network, and nothing is left out or made up unasked:\n  "
                + "\n  ".join(lines)
                + ("\nbuild the network in the size of the weights by its options, or" * bool(apart))
                + "\nchange them by name with --edit, such as --edit drop:NAME or --edit fill:NAME=0"
            )

    def gradients(self, tensors: Mapping[str, Tensor], *, copies: bool = True) -> dict[str, Tensor]:
        """Return {canonical name: gradient} of {key: parameter}, zero where there is none.

        Without `copies` they are views of the parameters' own. Of names that are one tensor, the first has the gradient
        of that tensor and the others are left out.
        """
        of: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            if tensor.is_floating_point():
                of[key] = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for copy, original in ((self.prefix + k, self.prefix + o) for k, o in self.match.copies.items()):
            # Registered twice, it is one parameter and its gradient is whole; copied, the two parts add up.
            if tensors[copy].data_ptr() != tensors[original].data_ptr():
                of[original] = of[original] + of[copy]
        others = {name for group in self.ties for name in group[1:]}
        found = self.views(of, (name for name in self.network.cells if name not in others))
        return {name: g.clone() for name, g in found.items()} if copies else found

    def _view(self, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        cell = self.network.cells[name]
        whole = tensors[self.prefix + cell.view.tensor].detach()
        if not whole.is_contiguous():
            whole = whole.contiguous()
        factors = [f for axis in cell.view.dims for f in axis]
        strided = whole.view(-1).as_strided(
            [n for n, _ in factors], [s for _, s in factors], whole.storage_offset() + cell.view.offset
        )
        return strided.reshape(cell.shape) if len(factors) != len(cell.shape) else strided


def bridge_of(
    tensors: Mapping[str, Tensor],
    dialects: tuple[str, ...],
    facts: Semantics | None = None,
    choices: Mapping[str, str] | None = None,
    axes: Mapping[str, int] | None = None,
) -> Bridge:
    """Recognise a network's state dict as one of these dialects; every element must have a canonical place.

    `axes`: sizes that the tensors do not say, {axis: size}.

    Raises:
        NotRecognised / Ambiguous: no dialect explains every tensor, or several do.
        Refused: a tensor is only partly explained, or has one place in memory for several elements.
    """
    known = facts or Semantics()
    named = [load(DIALECTS, d) for d in dialects] or Candidates().every()
    prefix = ""
    while True:
        inside = {k.removeprefix(prefix): t for k, t in tensors.items()}
        try:
            shapes = {k: tuple(t.shape) for k, t in inside.items()}
            match = _match(shapes, named, known, choices, axes)
            break
        except NotRecognised:
            more = _common(inside)
            if not more:
                raise
            prefix += more
    network = decode(match, {k: NAMES.get(t.dtype, str(t.dtype)) for k, t in inside.items()}, known)
    bridge = Bridge(match, network, prefix)
    _covered(bridge, inside)
    return bridge


def _match(
    shapes: Mapping[str, tuple[int, ...]],
    dialects: Iterable[Dialect],
    known: Semantics,
    choices: Mapping[str, str] | None,
    axes: Mapping[str, int] | None,
) -> Match:
    """Detect a state dict; the sides of patches that are kept as rows follow from the image and the grid."""
    told: dict[str, Any] = {"choices": choices, "facts": known.known()}
    try:
        return detect(shapes, dialects, given=axes, **told)
    except NotRecognised:
        if not known.image_size or not known.grid or {"p", "q"} & set(axes or ()):
            raise
        sides = {x: n // g for x, n, g in zip("pq", known.image_size, known.grid, strict=True)}
        return detect(shapes, dialects, given={**(axes or {}), **sides}, **told)


def _common(keys: Iterable[str]) -> str:
    """Return the first part of the keys, dot included, when all have the same and something after it."""
    heads = {key.partition(".")[0] + "." if "." in key else "" for key in keys}
    return heads.pop() if len(heads) == 1 else ""


def _covered(bridge: Bridge, tensors: Mapping[str, Tensor]) -> None:
    """Prove that every element of every tensor is read exactly once."""
    boxes: dict[str, set[tuple[int, tuple[tuple[int, int], ...]]]] = {}
    for cell in bridge.network.cells.values():
        boxes.setdefault(cell.view.tensor, set()).add((cell.view.offset, tuple(f for a in cell.view.dims for f in a)))
    loose = [key for key, found in boxes.items() if not tiles(sorted(found), tensors[key].numel())]
    # A table of no rows has nothing to read.
    rows = {key for key, tensor in tensors.items() if tensor.numel()}
    apart = rows - set(boxes) - set(bridge.match.copies) - set(bridge.match.consts)
    strided = [key for key in boxes if any(n > 1 and step == 0 for n, step in _steps(tensors[key]))]
    if loose or apart:
        raise Refused(f"these tensors have elements without a canonical place: {', '.join(collapse({*loose, *apart}))}")
    if strided:
        raise Refused(
            f"these tensors are expanded, one place in memory for several elements, and cannot be written in place:"
            f" {', '.join(collapse(strided))}; .clone() gives each element its own"
        )


def _steps(tensor: Tensor) -> Iterable[tuple[int, int]]:
    return zip(tensor.shape, tensor.stride(), strict=True)


def with_facts(bridge: Bridge, facts: Mapping[str, object]) -> Bridge:
    """Return a copy whose network has further facts, which win."""
    network = dataclasses.replace(bridge.network, facts=bridge.network.facts.replaced(facts))
    return dataclasses.replace(bridge, network=network)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return {key: tensor} of the state dict, parameters being the parameters themselves."""
    return dict(module.state_dict(keep_vars=True))
