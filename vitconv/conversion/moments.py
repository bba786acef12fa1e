"""Carry an optimizer's moments along with the weights: they are moved by the same permutations, element by element.

Adam's `exp_avg` and `exp_avg_sq`, SGD's `momentum_buffer` and whatever else has one number per element travel; counters
such as `step` are kept. What is factored or quantised is refused, and so is an edit that changes parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.parameter_order import Matched, Parameter, matched
from vitconv.conversion.stream import _move
from vitconv.errors import Ambiguous, LayoutError, Refused, UsageError, shown
from vitconv.io.header import Out
from vitconv.io.optimizer_state import Group, OptimizerState, only, optimizers
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import ITEMSIZE, Stored
from vitconv.layout.match import collapse

if TYPE_CHECKING:
    from vitconv.conversion.prepare import Prepared
    from vitconv.conversion.recognise import Recognised
    from vitconv.layout.plan import Target

# Beside a folder's weights, as transformers' Trainer and accelerate leave it.
_BESIDE = ("optimizer.pt", "optimizer.bin")
_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


@dataclass(frozen=True)
class Moments:
    """The state of the target's optimizer, by the target's parameter names.

    Attributes:
        tensors: {(parameter, state name): output}.
        numbers: {(parameter, state name): plain value, or the counter's tensor as (dtype, bytes)}.
        groups: settings and parameter names of every group.
        notes: what was decided or left out, in words.
    """

    tensors: Mapping[tuple[str, str], Out]
    numbers: Mapping[tuple[str, str], object]
    groups: tuple[tuple[Mapping[str, object], tuple[str, ...]], ...]
    notes: tuple[str, ...]


def open_optimizer(source: Recognised, path: Path | None) -> tuple[OptimizerState, Checkpoint]:
    """Return the state of the optimizer and the checkpoint it lies in: `path`, the weights' own, or one beside it.

    The caller closes the checkpoint if it is not the source's.

    Raises:
        UsageError: there is none, or several.
    """
    if path is not None:
        return _opened(path)
    own = optimizers(source.checkpoint)
    place = Path(source.checkpoint.path)
    folder = place if place.is_dir() else place.parent
    if not own:
        beside = [folder / name for name in _BESIDE if (folder / name).is_file()]
        if len(beside) == 1:
            return _opened(beside[0])
    return only(own, str(place)), source.checkpoint


def _opened(path: Path) -> tuple[OptimizerState, Checkpoint]:
    checkpoint = open_checkpoint(path)
    try:
        return only(optimizers(checkpoint), str(path)), checkpoint
    except BaseException:
        checkpoint.close()
        raise


def parameters_of(source: Recognised) -> tuple[list[Parameter], dict[str, str]]:
    """Return the tensors of the source that can be parameters, in file order, and {second name: first} of tied ones.

    Constants and names that the layout itself repeats are none.
    """
    from vitconv.layout.groups import learned, placing

    parts: dict[str, tuple[str, ...]] = {b.key: b.parts for b in source.match.bound}
    place, _ = placing(parts.values(), source.match.depth)
    first = next(iter(source.stored.values()))
    home = first.path[:-1]
    bare = {t.path: key for key, t in source.stored.items()}
    found: list[Parameter] = []
    seen: dict[object, str] = {}
    tied: dict[str, str] = {}
    for stored in source.checkpoint.tensors:
        key = bare.get(stored.path)
        if stored.path[:-1] != home or (key is None and stored.dtype[0] not in "FB"):
            continue
        if key is not None and (key in source.match.consts or key in source.match.copies):
            continue
        # A tied parameter is one parameter, under its first name.
        memory = (stored.blob, stored.start, stored.shape, stored.strides)
        if memory in seen and stored.numel:
            tied[key or stored.key] = seen[memory]
            continue
        seen[memory] = key or stored.key
        if not learned(parts.get(key or "", ())):
            continue
        kind, layer = place(parts.get(key or "", ()))
        found.append(Parameter(key or stored.key, stored.shape, kind, layer))
    return found, tied


def moments(
    prepared: Prepared, state: OptimizerState, checkpoint: Checkpoint, told: list[str] | None = None
) -> Moments:
    """Return the target's optimizer state; only headers and counters are read until an output's turn comes.

    Raises:
        Refused: an edit changes parameters, the optimizer belongs to other weights, parameters that become one were
            not trained alike, or its state is not one number per element.
        Ambiguous: which parameter is which number is not certain; see `matched`.
    """
    source, p = prepared.source, prepared.plan
    _check_branch(source)
    changed = [made.label for made in p.network.made.values() if made.inputs]
    if changed:
        raise Refused(
            f"the moments cannot follow edits that compute new parameters ({', '.join(dict.fromkeys(changed))});"
            " convert with --optimizer first, and without edits or --dtype"
        )
    parameters, tied = parameters_of(source)
    if told is None and checkpoint is not source.checkpoint and source.checkpoint.format.startswith("safetensors"):
        parameters = _unordered(state, parameters)
    found, parameters, aside = _matched(source, state, parameters, told)
    tensors: dict[tuple[str, str], Out] = {}
    numbers: dict[tuple[str, str], object] = {}
    ids = {key: i for i, key in found.keys.items()}
    ids |= {key: ids[of] for key, of in tied.items() if of in ids}
    _check_kinds(state, found, {x.key: x.shape for x in parameters})
    for t in p.targets:
        if t.const is not None or t.key in p.target.copies:
            continue
        sources = list(dict.fromkeys(x.source for x in t.pieces if not x.source.startswith("=")))
        for name in dict.fromkeys(n for s in sources for n in _names(state, ids.get(s))):
            _join(t, name, sources, ids, state, checkpoint, tensors, numbers)
    groups, lost = _groups(prepared, state, ids)
    notes = [f"{len(found.keys)} parameters of the optimizer were matched {found.how}"]
    if aside:
        notes.append(f"taken for no parameters, since the optimizer has none for them: {', '.join(collapse(aside))}")
    if lost:
        notes.append(f"the moments of what was not carried are left out: {', '.join(collapse(lost))}")
    still = [x.key for x in parameters if x.key in ids and not _names(state, ids[x.key])]
    if still:
        notes.append(f"without moments, as they were never stepped: {', '.join(collapse(still))}")
    return Moments(tensors, numbers, groups, tuple(notes))


def _matched(
    source: Recognised, state: OptimizerState, parameters: list[Parameter], told: list[str] | None
) -> tuple[Matched, list[Parameter], list[str]]:
    """Match all that may be a parameter, or else the network's own: what lies beside it may be a metric's count."""
    try:
        return matched(state, parameters, told), parameters, []
    except Ambiguous:
        raise
    except Refused:
        own = [x for x in parameters if x.key in source.stored]
        if len(own) == len(parameters):
            raise
        return matched(state, own, told), own, [x.key for x in parameters if x.key not in source.stored]


def _unordered(state: OptimizerState, parameters: list[Parameter]) -> list[Parameter]:
    """Refuse to number parameters by a safetensors file, which is sorted by name."""
    if state.by_number and not any(g.names for g in state.groups):
        raise Refused(
            "the optimizer numbers its parameters, and safetensors files do not keep the order of the model; give the"
            " names in the order of model.named_parameters() with --optimizer-names FILE, one a line"
        )
    return parameters


def _check_branch(source: Recognised) -> None:
    """Refuse moments for averaged weights: they belong to those that were stepped."""
    from vitconv.io.wrappers import RAW, rank

    if source.others and (rank(source.branch.name) == 0 or RAW in source.others):
        raise Refused(
            f"the optimizer stepped the raw weights, and {shown(source.branch.name)} is taken; say --branch with the"
            f" one that was trained: {', '.join(map(shown, source.others[:4]))}"
        )


def _names(state: OptimizerState, i: str | None) -> tuple[str, ...]:
    if i is None:
        return ()
    return (*state.tensors.get(i, {}), *(n for n, v in state.numbers.get(i, {}).items() if isinstance(v, int | float)))


def _check_kinds(state: OptimizerState, found: Matched, shapes: Mapping[str, tuple[int, ...]]) -> None:
    odd = [
        f"{shown(name)} of {shown(key)} is {list(t.shape)}"
        for i, key in found.keys.items()
        for name, t in state.tensors.get(i, {}).items()
        if t.shape != shapes[key] and t.numel != 1
    ]
    if odd:
        raise Refused(
            f"the optimizer's state is not one number per element ({'; '.join(odd[:3])}), as factored or quantised"
            " optimizers keep it; it cannot be carried"
        )


def _join(
    t: Target,
    name: str,
    sources: list[str],
    ids: Mapping[str, str],
    state: OptimizerState,
    checkpoint: Checkpoint,
    tensors: dict[tuple[str, str], Out],
    numbers: dict[tuple[str, str], object],
) -> None:
    """Add one state of one target: moved from its sources, or the counter that they share."""
    held: dict[str, Stored] = {}
    plain: dict[str, object] = {}
    for key in sources:
        i = ids.get(key, "")
        if name in state.tensors.get(i, {}):
            held[key] = state.tensors[i][name]
        elif name in state.numbers.get(i, {}):
            plain[key] = state.numbers[i][name]
    lacking = [key for key in sources if key not in held and key not in plain]
    if lacking:
        raise Refused(
            f"{t.key} joins parameters of which {', '.join(map(shown, lacking[:3]))} has no {shown(name)}: they were"
            " not trained alike, so they have no common state"
        )
    counter = bool(plain) or (name not in _ADAM and all(x.numel == 1 for x in held.values()))
    if counter:
        values = {k: plain.get(k, None if k not in held else _number(checkpoint, held[k])) for k in sources}
        if len(set(map(str, values.values()))) > 1:
            raise Refused(f"{t.key} joins parameters with different {shown(name)}: {values}")
        numbers[t.key, name] = next(iter(values.values()))
        return
    dtypes = {x.dtype for x in held.values()}
    if len(dtypes) > 1:
        raise Refused(f"{t.key} joins parameters whose {shown(name)} are of different dtypes: {', '.join(dtypes)}")
    dtype = dtypes.pop()
    tensors[t.key, name] = Out(f"{name}:{t.key}", dtype, t.shape, _chunks(replace(t, dtype=dtype), held, checkpoint))


def _number(checkpoint: Checkpoint, stored: Stored) -> tuple[str, bytes, tuple[int, ...]]:
    return stored.dtype, bytes(checkpoint.read(stored)), stored.shape


def _chunks(t: Target, held: Mapping[str, Stored], checkpoint: Checkpoint) -> Callable[[], Iterator[memoryview]]:
    def moved() -> Iterator[memoryview]:
        import numpy as np

        kind = np.dtype(f"u{ITEMSIZE[t.dtype]}")
        # What was made up, such as a key bias of zeros, has never moved.
        out = np.zeros(prod(t.shape), kind)
        loaded: dict[str, Any] = {}
        for piece in t.pieces:
            if piece.source.startswith("="):
                continue
            if piece.source not in loaded:
                loaded[piece.source] = np.frombuffer(checkpoint.read(held[piece.source]), kind)
            _move(out, loaded[piece.source], piece)
        yield out.view("u1").data

    return moved


def _groups(
    prepared: Prepared, state: OptimizerState, ids: Mapping[str, str]
) -> tuple[tuple[tuple[Mapping[str, object], tuple[str, ...]], ...], list[str]]:
    """Return the groups by the target's names, and the source keys that went nowhere."""
    home = {i: number for number, g in enumerate(state.groups) for i in g.params}
    place = {key: home[i] for key, i in ids.items() if i in home}
    names: list[list[str]] = [[] for _ in state.groups]
    used: set[str] = set()
    for t in prepared.plan.targets:
        if t.const is not None or t.key in prepared.plan.target.copies:
            continue
        sources = {x.source for x in t.pieces if not x.source.startswith("=")}
        used |= sources
        numbers = {place[s] for s in sources if s in place}
        if not numbers and not sources:
            numbers = {_for_filled(state.groups)}
        if len(numbers) > 1:
            settings = "; ".join(_differing([state.groups[n] for n in sorted(numbers)]))
            raise Refused(f"{t.key} joins parameters of different groups ({settings}); one parameter is in one group")
        if numbers:
            names[numbers.pop()].append(t.key)
    lost = [key for key in ids if key not in used]
    made = tuple((g.settings, tuple(n)) for g, n in zip(state.groups, names, strict=True))
    return made, lost


def _for_filled(groups: tuple[Group, ...]) -> int:
    """Return the group for a tensor that was made up: one without decay, as it is a bias."""
    return next((n for n, g in enumerate(groups) if g.settings.get("weight_decay") == 0), 0)


def _differing(groups: list[Group]) -> list[str]:
    keys = dict.fromkeys(k for g in groups for k in g.settings)
    odd = {k: [g.settings.get(k) for g in groups] for k in keys}
    return [f"{shown(k)} {' and '.join(map(str, v))}" for k, v in odd.items() if len(set(map(str, v))) > 1] or ["alike"]


def read_names(path: Path) -> list[str]:
    """Return the names in a text file, one a line.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    try:
        names = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    if not names:
        raise UsageError(f"{path}: holds no names")
    return names


def check_written(names: set[str], made: Moments) -> None:
    """Hold the moments to the names that were written.

    Raises:
        LayoutError: they speak of a parameter that is not there.
    """
    odd = {key for key, _ in made.tensors} - names
    if odd:
        raise LayoutError(f"moments without a parameter: {', '.join(collapse(sorted(odd)))}")
