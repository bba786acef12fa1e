"""Take off what trainers put around a network's weights, keep what was taken off, and put it back.

Nothing is guessed: every set of weights in a file becomes a branch. Their order is a stated rule: teacher before
student, averaged (EMA) before raw, MoCo's base encoder before its momentum copy, BYOL's online network before its
target, I-JEPA's target encoder before its context encoder; then the larger set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Literal, Protocol

from vitconv.errors import Refused
from vitconv.io.contents import some
from vitconv.io.tensor import Stored
from vitconv.io.training_state import is_training_state
from vitconv.io.unnamed import only_numbers, with_names
from vitconv.io.wrappers import COUNTERS, WRAPPERS, is_averaged, order, reason, split_names
from vitconv.record import dataclass

_Kind = Literal["prefix", "infix"]
_MAX_ROUNDS = 32
_MAX_LOOSENED = 64
_MAX_NUMBERED = 8
_MAX_DEPTH = 4
_MIN_NETWORK = 4
# mmengine/hooks/ema_hook.py, before_save_checkpoint.
_SWAP = "mmengine saves the averaged weights as state_dict, and those that were trained as ema_state_dict"
# lightning/pytorch/callbacks/weight_averaging.py, on_save_checkpoint.
_AVERAGES = "Lightning's WeightAveraging saves the averages as state_dict, and what was trained as current_model_state"
# mmcv/runner/hooks/ema.py: the two are exchanged when an epoch ends, and back when the next one begins.
_HOOK = (
    "mmcv's EMAHook exchanges the parameters and their copies (ema_*) while it tests: at the end of an epoch the plain"
    " names hold the averages, amid one the copies do"
)
FLAT = "weights"


@dataclass(frozen=True)
class Step:
    """One thing taken off: a container's name, a key's `prefix`, or an `infix`, the path up to and with a wrapper.

    `keys` counts the tensors it was taken from, in the order of the branch; None means all that it fits.
    """

    kind: Literal["container", "prefix", "infix"]
    text: str
    keys: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Branch:
    """One set of weights: its tensors by bare key, what was taken off, a remark, and the keys that were left aside.

    `unclaimed` are those of the keys left aside of which nobody has said that they are no part of the network; `whole`
    has the file's own names of those left aside.
    """

    name: str
    tensors: dict[str, Stored]
    steps: tuple[Step, ...]
    note: str
    left: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()
    whole: Mapping[str, str] = field(default_factory=dict)

    def with_left(self, gone: Iterable[str]) -> dict[str, str]:
        """Return `whole` with those of the tensors that are about to be left aside."""
        return {**self.whole, **{key: self.tensors[key].key for key in gone}}


class Readable(Protocol):
    """A checkpoint, as far as envelopes need to know one."""

    @property
    def tensors(self) -> tuple[Stored, ...]:
        """Return all tensors."""

    def read(self, stored: Stored) -> memoryview:
        """Return the bytes of a tensor."""


@dataclass(frozen=True)
class _Taken:
    """A tensor and what was taken off its key so far, as (kind, text)."""

    stored: Stored
    off: tuple[tuple[_Kind, str], ...] = ()


_Keys = dict[str, _Taken]


def branches(ckpt: Readable) -> list[Branch]:
    """Return every set of weights in a checkpoint; the first is the default.

    Containers, and the wrappers DDP, compile, FSDP and the like at any place of a key, are taken off until nothing is
    left to take; copies of one network in a flat file (`teacher.`, `ema_model.`) are taken apart. The state of
    optimizers and the like is no branch.

    Raises:
        Refused: two different tensors would get the same key.
    """
    containers: dict[tuple[str, ...], _Keys] = {}
    state = 0
    for stored in ckpt.tensors:
        if is_training_state(stored.path):
            state += 1
        else:
            containers.setdefault(stored.path[:-1], {})[stored.key] = _Taken(stored)
    remarks = [f"{state} tensors of optimizer or other training state are present and left out"] if state else []
    found: list[Branch] = []
    swapped = _swapped(containers)
    for container, keys in containers.items():
        part, remark = swapped.get(container, ("", ""))
        found.extend(
            _take_apart(ckpt, container, (part,) if part else (), keys, [*remarks, *([remark] if part else [])])
        )
    found = [branch for branch in found if branch.tensors]
    # Counters and settings kept as tensors beside a set of weights are none.
    found = [branch for branch in found if any(t.numel > 1 for t in branch.tensors.values())] or found
    found = [with_names(branch, found) for branch in found]
    names = [branch.name for branch in found]
    found.sort(key=lambda branch: (only_numbers(branch), *order(branch.name, names), -_size(branch)))
    if len(found) > 1:
        first = found[0]
        others = some(branch.name for branch in found[1:])
        note = f"taken by default: {reason(first.name, names)}; also there: {others} (--branch)"
        found[0] = replace(first, note=f"{note}; {first.note}" if first.note else note)
    return found


def _swapped(containers: dict[tuple[str, ...], _Keys]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return what two containers hold of which the plain one has the averages, and a remark.

    mmengine's EMAHook, whose average counts its steps, and Lightning's WeightAveraging.
    """
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    for container, keys in containers.items():
        plain = (*container[:-1], "state_dict")
        counted = "steps" in keys and keys["steps"].stored.numel == 1 and any(key.startswith("module.") for key in keys)
        if container[-1:] == ("ema_state_dict",) and counted and plain in containers:
            found |= {plain: ("ema", _SWAP), container: ("raw", _SWAP)}
        if container == ("current_model_state",) and plain in containers:
            found |= {plain: ("ema", _AVERAGES), container: ("raw", _AVERAGES)}
    return found


def _hook_buffers(keys: Iterable[str]) -> dict[str, str]:
    """Return {buffer: parameter} of the copies that mmcv's EMAHook keeps: `ema_backbone_norm_weight` and the like."""
    flat = {f"ema_{key.replace('.', '_')}": key for key in keys}
    found = {key: flat[key] for key in keys if key in flat}
    return found if sum("." in key for key in found.values()) >= _MIN_NETWORK else {}


def loosen(branch: Branch) -> Iterator[Branch]:
    """Give further readings of a branch, for when no dialect fits it: a common prefix off, or one of several parts.

    Parts are tried the largest first; the keys of the others are in `left` and `unclaimed`, and the note says so.
    """
    waiting = [branch]
    given = 0
    while waiting and given < _MAX_LOOSENED:
        now = waiting.pop(0)
        groups: dict[str, dict[str, Stored]] = {}
        for key, stored in now.tensors.items():
            head, dot, rest = key.partition(".")
            groups.setdefault(head if dot else "", {})[rest if dot else key] = stored
        if sum(head.isdigit() for head in groups) > _MAX_NUMBERED:
            # The layers of a network, not its places in a list of modules.
            groups = {head: group for head, group in groups.items() if not head.isdigit()}
        ordered = sorted(groups, key=lambda head: -sum(stored.nbytes for stored in groups[head].values()))
        for head in ordered:
            if not head or (len(groups[head]) < _MIN_NETWORK and len(groups[head]) < len(now.tensors)):
                continue
            next_ = _part(now, f"{head}.", groups[head])
            given += 1
            yield next_
            waiting.append(next_)


def restore(key: str, steps: tuple[Step, ...], index: int) -> str:
    """Return `key`, the `index`-th of its branch, with everything put back that belongs into a key."""
    for step in reversed(steps):
        if step.kind == "container" or (step.keys is not None and index not in step.keys):
            continue
        if step.kind == "prefix":
            key = f"{step.text}{key}"
            continue
        base = _base(step.text)
        if key.startswith(base):
            key = f"{step.text}{key[len(base) :]}"
    return key


def _base(infix: str) -> str:
    """Return the path before a wrapper: `blocks.0.` of `blocks.0._orig_mod.`."""
    return f"{infix[:-1].rpartition('.')[0]}."


def _size(branch: Branch) -> int:
    return sum(stored.nbytes for stored in branch.tensors.values())


def _take_apart(
    ckpt: Readable, container: tuple[str, ...], parts: tuple[str, ...], keys: _Keys, remarks: list[str]
) -> Iterator[Branch]:
    remarks = list(remarks)
    keys = _unwrap(ckpt, keys, remarks)
    if buffers := _hook_buffers(keys):
        rest = {key: taken for key, taken in keys.items() if key not in buffers}
        yield from _take_apart(ckpt, container, parts, rest, [*remarks, _HOOK])
        tensors = {dotted: keys[key].stored for key, dotted in buffers.items()}
        yield Branch(
            ".".join((*container, *parts, "emahook")), tensors, tuple(Step("container", x) for x in container), _HOOK
        )
        return
    copies = _copies(keys)
    name = ".".join((*container, *parts)) or FLAT
    keys = _without_counters(keys, remarks, bool(copies) or is_averaged(name))
    if not copies:
        steps = (*(Step("container", text) for text in container), *_steps(list(keys.values()), list(keys)))
        yield Branch(name, {key: taken.stored for key, taken in keys.items()}, steps, "; ".join(remarks))
        return
    groups: dict[str, _Keys] = {}
    for key, taken in keys.items():
        head = next((prefix for prefix in copies if key.startswith(prefix)), "")
        off = (*taken.off, ("prefix", head)) if head else taken.off
        groups.setdefault(head, {})[key.removeprefix(head)] = _Taken(taken.stored, off)
    for head, group in groups.items():
        if head:
            yield from _take_apart(ckpt, container, (*parts, head[:-1]), group, remarks)
        else:
            steps = (*(Step("container", text) for text in container), *_steps(list(group.values()), list(group)))
            tensors = {key: taken.stored for key, taken in group.items()}
            yield Branch(".".join((*container, *parts, "rest")), tensors, steps, "; ".join(remarks))


def _copies(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the prefixes that name copies of one network, with their dots; those further in count in twos at least."""
    level = {"": {key for key in keys if "." in key}}
    for depth in range(_MAX_DEPTH):
        found: list[str] = []
        below: dict[str, set[str]] = {}
        for prefix, rests in level.items():
            groups: dict[str, set[str]] = {}
            for rest in rests:
                head, _, tail = rest.partition(".")
                groups.setdefault(head, set()).add(tail)
            copies = split_names(set(groups))
            if copies and (depth == 0 or len(copies) > 1):
                found += [f"{prefix}{head}." for head in groups if head in copies]
            below |= {f"{prefix}{head}.": {t for t in tails if "." in t} for head, tails in groups.items()}
        if found:
            return tuple(sorted(found))
        level = {prefix: rests for prefix, rests in below.items() if len(rests) >= _MIN_NETWORK}
    return ()


def _unwrap(ckpt: Readable, keys: _Keys, remarks: list[str]) -> _Keys:
    """Take wrappers off at any place of the keys, the outermost first, until none is left."""
    for _ in range(_MAX_ROUNDS):
        found: _Keys = {}
        clashes: list[str] = []
        changed = False
        for key, taken in keys.items():
            bare, off = _without_wrapper(key)
            changed = changed or bool(off)
            now = _Taken(taken.stored, (*taken.off, *off))
            if bare in found and not _same(ckpt, found[bare].stored, now.stored):
                clashes.append(bare)
            elif bare in found:
                remarks.append(f"{some([key])} is there with and without a wrapper, the data are the same")
            else:
                found[bare] = now
        if clashes:
            raise Refused(
                f"{len(clashes)} keys are there with and without a wrapper such as module. or _orig_mod., with other"
                f" data: {some(clashes)}; split the file into two"
            )
        keys = found
        if not changed:
            break
    return keys


def _without_wrapper(key: str) -> tuple[str, tuple[tuple[_Kind, str], ...]]:
    parts = key.split(".")
    for index, part in enumerate(parts[:-1]):
        if part in WRAPPERS:
            path = ".".join(parts[: index + 1])
            kind: _Kind = "infix" if index else "prefix"
            return ".".join([*parts[:index], *parts[index + 1 :]]), ((kind, f"{path}."),)
    return key, ()


def _same(ckpt: Readable, one: Stored, two: Stored) -> bool:
    return (one.dtype, one.shape) == (two.dtype, two.shape) and bytes(ckpt.read(one)) == bytes(ckpt.read(two))


def _without_counters(keys: _Keys, remarks: list[str], copies: bool) -> _Keys:
    """Drop the counters of averaging wrappers; `step` and `decay` only where such a wrapper is known to be."""
    sure = copies or "n_averaged" in keys or "initted" in keys
    dropped = [key for key in keys if key in COUNTERS and keys[key].stored.numel == 1 and len(keys) > 1 and sure]
    if dropped:
        remarks.append(f"counters were dropped: {some(dropped)}")
    return {key: taken for key, taken in keys.items() if key not in dropped}


def _steps(taken: list[_Taken], keys: list[str]) -> tuple[Step, ...]:
    """Turn what was taken off each key into steps over all keys, in an order in which they can be put back."""
    places: dict[tuple[int, _Kind, str], list[int]] = {}
    for index, one in enumerate(taken):
        for depth, (kind, text) in enumerate(one.off):
            places.setdefault((depth, kind, text), []).append(index)
    ordered = sorted(places.items(), key=lambda item: item[0][0])
    exact = tuple(Step(kind, text, tuple(indexes)) for (_, kind, text), indexes in ordered)
    # A step that goes without a list of keys can be put back around other keys too, after a conversion.
    general = tuple(
        Step(kind, text, None if kind == "infix" or len(indexes) == len(keys) else tuple(indexes))
        for (_, kind, text), indexes in ordered
    )
    fits = all(restore(key, general, index) == taken[index].stored.key for index, key in enumerate(keys))
    return general if fits else exact


def _part(branch: Branch, prefix: str, tensors: dict[str, Stored]) -> Branch:
    chosen = {f"{prefix}{key}" for key in tensors}
    kept = [index for index, key in enumerate(branch.tensors) if key in chosen]
    new_index = {old: new for new, old in enumerate(kept)}
    steps = tuple(
        step if step.keys is None else replace(step, keys=tuple(new_index[k] for k in step.keys if k in new_index))
        for step in branch.steps
    )
    left = tuple(key for key in branch.tensors if key not in chosen)
    notes = [branch.note] if branch.note else []
    if left:
        notes.append(f"only {prefix}* was read; left aside: {some(left)}")
    name = f"{branch.name}.{prefix[:-1]}" if left else branch.name
    aside, unclaimed = (*branch.left, *left), (*branch.unclaimed, *left)
    whole = branch.with_left(left)
    return Branch(name, tensors, (*steps, Step("prefix", prefix)), "; ".join(notes), aside, unclaimed, whole)
