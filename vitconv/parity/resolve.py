"""From what the user writes to two sides: CHECKPOINT, host:model, host:model@CHECKPOINT, python:module:factory."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitconv.conversion.facts import Wishes
from vitconv.errors import Ambiguous, NotRecognised, Refused, UsageError
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.layout.encode import encode
from vitconv.layout.semantics import Semantics, fact_value, parse_fact
from vitconv.parity.bridge import Bridge, bridge_of, state_of
from vitconv.parity.edits import edited
from vitconv.parity.side import Side, with_weights
from vitconv.parity.suggest import suggestion
from vitconv.parity.weights import Weights, check_file, given, load_weights
from vitconv.registry import HOSTS, load, names

_SIZES = ("image_size",)
Target: TypeAlias = "str | Path | nn.Module | Built"
Sets: TypeAlias = "Mapping[str, Any] | Sequence[str]"


@dataclass(frozen=True)
class Asked:
    """What the user said about one side.

    Attributes:
        facts: facts; they decide what a reference computes, and must agree with what any other network is.
        options: options of the host.
        choices: options of the checkpoint's dialect.
        dialect: the dialect of the checkpoint, or of the network's state dict.
        branch: which set of weights of the checkpoint.
        edits: edits of the other side's weights on their way to this side.
        sizes: facts that libraries take as an argument of the same name, as they were given.
    """

    facts: Mapping[str, Any]
    options: Mapping[str, Any]
    choices: Mapping[str, str]
    dialect: str | None = None
    branch: str | None = None
    edits: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wishes(self) -> Wishes:
        """The wishes for the side's checkpoint."""
        return Wishes(from_=self.dialect, branch=self.branch, facts=self.facts, choices=self.choices)


def asked(sets: Sets = (), dialect: str | None = None, branch: str | None = None, edits: Sequence[str] = ()) -> Asked:
    """Read what was said about one side: NAME=VALUE texts, or a mapping, of facts and options of the host."""
    facts: dict[str, Any] = {}
    options: dict[str, Any] = {}
    choices: dict[str, str] = {}
    sizes: dict[str, Any] = {}
    known = set(Semantics.__dataclass_fields__)
    pairs = [_pair(text, known) for text in sets] if not isinstance(sets, Mapping) else list(sets.items())
    for name, value in pairs:
        if name.startswith("from."):
            choices[name[5:]] = str(value)
        elif name in known:
            # One number for a size is a square, in text as in Python.
            square = name in _SIZES and isinstance(value, int)
            facts[name] = fact_value(name, str(value) if square else value)
            if name in _SIZES:
                sizes[name] = value
        else:
            options[name] = value
    return Asked(facts, options, choices, dialect, branch, tuple(edits), sizes)


def _pair(text: str, known: set[str]) -> tuple[str, Any]:
    name, eq, value = (x.strip() for x in text.partition("="))
    if not eq or not name:
        raise UsageError(f"{text}: expected NAME=VALUE, such as heads=12")
    if name in known and name not in _SIZES:
        return parse_fact(text)
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def resolve(
    a: Target,
    b: Target,
    *,
    weights: str | Path | None = None,
    ask_a: Asked | None = None,
    ask_b: Asked | None = None,
    seed: int = 0,
) -> tuple[Side, Side]:
    """Build both sides and give each its weights.

    If only one side has weights, the other gets them through the layouts; `weights` goes into both.

    Raises:
        UsageError: what was asked for does not exist.
        Refused: facts are missing (the message names the `--set-a` or `--set-b` that completes them), weights do
            not fit, or a network's tensors are not understood.
    """
    first, second = ask_a or asked(), ask_b or asked()
    shared = None if weights is None else load_weights(check_file(str(weights)))
    halves = [_half("A", a, first), _half("B", b, second)]
    sources = [shared or h.weights for h in halves]
    sides = []
    for j, (half, ask) in enumerate(zip(halves, (first, second), strict=True)):
        torch.manual_seed(seed)
        sides.append(_built(half, ask, sources[j] or sources[1 - j]))
    return _weighted(sides, (first, second), sources, shared is not None)


@dataclass(frozen=True)
class _Half:
    label: str
    spec: str
    host: str
    model: str
    live: Built | nn.Module | None
    weights: Weights | None


def _half(label: str, target: Target, ask: Asked) -> _Half:
    """Split one side into host, model and checkpoint, and read the checkpoint."""
    if isinstance(target, (nn.Module, Built)):
        module = target.module if isinstance(target, Built) else target
        return _Half(label, f"{type(module).__name__} (live)", "python", "", target, None)
    text = str(target)
    host, colon, rest = text.partition(":")
    known = names(HOSTS)
    # As its library is written.
    host = "open-clip" if host == "open_clip" else host
    if (colon and host in known) or text.partition("@")[0] == "reference":
        if not colon:
            host, rest = "reference", text.removeprefix("reference")
        model, at, path = rest.rpartition("@")
        if not at or (not Path(path).exists() and Path(rest).exists()):
            return _Half(label, text, host, rest, None, None)
        return _Half(label, text, host, model, None, _loaded(label, path, ask))
    if not Path(text).exists():
        close = f"; hosts: {', '.join(known)}" if colon else ""
        raise UsageError(f"{label}: {text}: no such checkpoint, and not HOST:MODEL{close}")
    return _Half(label, text, "reference", "", None, _loaded(label, text, ask))


def _loaded(label: str, path: str, ask: Asked) -> Weights:
    try:
        return load_weights(check_file(path), ask.wishes)
    except NotRecognised as e:
        raise Refused(f"{label}: {_for_side(str(e), label)}") from e
    except Refused as e:
        raise type(e)(f"{label}: {_for_side(str(e), label)}") from e


def _built(half: _Half, ask: Asked, source: Weights | None) -> Side:
    if half.live is not None:
        return _live(half, ask)
    host: Host = load(HOSTS, half.host)
    facts = Semantics(**ask.facts)
    shapes = None
    if half.host == "reference":
        if source is None:
            raise UsageError(f"{half.label}: the reference is built from a checkpoint; neither side has one")
        # Its own facts, or those of the weights it is to carry.
        facts = facts.filled(source.facts)
        shapes = {name: tuple(t.shape) for name, t in source.tensors.items()}
        if ask.edits and half.weights is None:
            network = edited(shapes, facts, source.sizes, source.depth, ask.edits).network
            shapes, facts = network.shapes, network.facts.replaced(ask.facts)
    options = {**ask.sizes, **ask.options} if "*" in host.options and half.host != "timm" else ask.options
    spec = Spec(half.model, options, facts, shapes)
    try:
        built = host.build(spec)
    except Refused as e:
        fitting = suggestion(source, half.spec) if half.host == "reference" and source is not None else ""
        raise Refused(f"{half.label} ({half.spec}): {_for_side(str(e), half.label)}{fitting}") from e
    _honoured(half, ask, built)
    bridge = _bridge(half, ask, built)
    return Side(half.label, half.spec, built, host, spec, bridge, None, "", False, built.facts, notes=built.notes)


def _live(half: _Half, ask: Asked) -> Side:
    spec = Spec(facts=Semantics(**ask.facts))
    if isinstance(half.live, Built):
        host: Host = load(HOSTS, half.live.host)
        built = half.live
    else:
        assert half.live is not None
        host = load(HOSTS, "python")
        built = host.describe(half.live, spec)
    bridge = _bridge(half, ask, built)
    return Side(
        half.label, half.spec, built, host, spec, bridge, None, "", False, built.facts, remade=False, notes=built.notes
    )


def _bridge(half: _Half, ask: Asked, built: Built) -> Bridge:
    dialects = (ask.dialect,) if ask.dialect and half.weights is None else built.dialects
    state = state_of(built.module)
    if not state:
        kind = type(built.module).__name__
        raise Refused(f"{half.label} ({half.spec}): {kind} has no parameters; expected a network with weights")
    try:
        facts, choices = built.facts.filled(ask.facts), {**built.choices, **ask.choices}
        return bridge_of(state, dialects, facts, choices, built.axes)
    except Ambiguous as e:
        raise Ambiguous(f"{half.label} ({half.spec}): {_for_side(str(e), half.label)}") from e
    except (NotRecognised, Refused) as e:
        raise Refused(
            f"{half.label} ({half.spec}): the network's own tensors are not understood: {_for_side(str(e), half.label)}"
        ) from e


def _honoured(half: _Half, ask: Asked, built: Built) -> None:
    """Refuse facts that were told and that the network, once built, contradicts."""
    wrong = Semantics(**ask.facts).differences(built.facts)
    if wrong:
        lines = [f"{name}: told {told}, the network has {has}" for name, (told, has) in wrong.items()]
        raise UsageError(
            f"{half.label} ({half.spec}): --set-{half.label.lower()} cannot change what host {half.host} builds:\n  "
            + "\n  ".join(lines)
            + "\nuse an option of the host"
        )


def _weighted(
    sides: list[Side], asks: tuple[Asked, Asked], sources: list[Weights | None], shared: bool
) -> tuple[Side, Side]:
    """Give both sides their weights, carried over where one has none."""
    live = [
        given(side.bridge, state_of(side.built.module), f"the live network of {side.label}")
        if source is None and not side.remade
        else source
        for side, source in zip(sides, sources, strict=True)
    ]
    out = []
    for j, (side, ask) in enumerate(zip(sides, asks, strict=True)):
        source, other = live[j] or live[1 - j], sides[1 - j]
        if source is None:
            out.append(_planned(side, other, ask))
            continue
        own = live[j] is not None and not shared
        tensors, notes = dict(source.tensors), list(side.notes)
        # What comes with its own weights is edited already; the edits then only say how the gradients go back.
        planned = _planned(side, other, ask, None if own else source)
        if planned.edits is not None and not own:
            tensors = planned.edits.weights(tensors)
        tensors = _filled(planned, source, tensors, notes)
        try:
            whole = with_weights(planned, source, tensors, own=own)
        except Refused as e:
            raise Refused(
                f"{side.label} ({side.spec}), weights of {source.origin}: {_for_side(str(e), side.label)}"
            ) from e
        says = source.facts.differences(side.built.facts) if own else {}
        notes += [f"{k}: the file says {x}, the network uses {y}" for k, (x, y) in says.items()]
        out.append(dataclasses.replace(whole, notes=tuple(dict.fromkeys(notes))))
    return out[0], out[1]


def _planned(side: Side, other: Side, ask: Asked, source: Weights | None = None) -> Side:
    """Add the edits between the other side's canonical tensors and this side's."""
    if not ask.edits:
        return side
    shapes, match = other.shapes, other.bridge.match
    if source is not None:
        shapes = {name: tuple(t.shape) for name, t in source.tensors.items()}
    return dataclasses.replace(side, edits=edited(shapes, other.facts, match.sizes, match.depth, ask.edits))


def _filled(side: Side, source: Weights, tensors: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """Add the tensors that the network asks for and its function does not feel, such as a key bias of zeros."""
    lacking = [name for name in side.shapes if name not in tensors]
    if not lacking:
        return tensors
    match = side.bridge.match
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    facts = {**side.bridge.network.open, **side.facts.known()}
    fills = encode(match.dialect, shapes, source.depth, facts, dict(match.variant.own)).fills
    for name in lacking:
        if name in fills:
            tensors[name] = torch.full(side.shapes[name], float(fills[name]))
            notes.append(f"{name} is made up as {fills[name]:g}: the network asks for it and does not feel it")
    return tensors


def _for_side(text: str, label: str) -> str:
    for option in ("--set", "--from", "--branch", "--edit"):
        text = text.replace(f"{option} ", f"{option.replace('--from', '--dialect')}-{label.lower()} ")
    return text
