"""Open a checkpoint and say what it is: the branch, the dialect and variant, and the facts known about it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from vitconv.conversion.against import foreign_files, of_this_epoch, told_against_keys
from vitconv.conversion.asides import training_keys
from vitconv.conversion.biases import settled_biases
from vitconv.conversion.candidates import Candidates, Special, check_choices
from vitconv.conversion.companions import factors, refuse_quantised
from vitconv.conversion.crowd import refuse_crowd
from vitconv.conversion.elements import check_floats, with_bits
from vitconv.conversion.facts import Known, Wishes, authored, contradictions, customary, gather, proven, released
from vitconv.conversion.linear_probe import refuse_linear_probe
from vitconv.conversion.pick import largest, pick
from vitconv.conversion.readings import readings, text_keys
from vitconv.conversion.relative import proven_by_index
from vitconv.conversion.respelled import respelled
from vitconv.conversion.rotary import proven_by_waves
from vitconv.conversion.suspicions import (
    centred_norms,
    check_alike,
    lost_beside,
    lost_parts,
    parts_elsewhere,
    refuse_shard,
)
from vitconv.conversion.table_grid import doubtful_grid
from vitconv.errors import Ambiguous, NotRecognised, Refused, UsageError, shown
from vitconv.io.contents import some
from vitconv.io.envelope import Branch, branches
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import Stored
from vitconv.io.unnamed import list_line
from vitconv.io.wrappers import PLAIN, is_averaged, rank
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass

DIALECT, VARIANT = "vitconv.dialect", "vitconv.variant"
# What facts are said to come from when the code of the author of a layout decides.
AUTHOR = "author's code"


@dataclass(frozen=True)
class Recognised:
    """A checkpoint that is understood.

    Attributes:
        checkpoint: the open file(s).
        branch: the branch taken, its wrappers off; `others` are the names of the rest.
        match: how its dialect explains it.
        facts: what is known about the function; `sources` says where each fact comes from.
        notes: what was decided or noticed, in words.
        extra: what a configuration says besides facts, such as labels.
        refusals: reasons in a configuration why the network cannot be carried.
        aside: tensors of the branch as it was chosen that are no part of the network.
    """

    checkpoint: Checkpoint
    branch: Branch
    match: Match
    facts: Semantics
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    aside: tuple[Stored, ...] = ()

    @property
    def stored(self) -> Mapping[str, Stored]:
        """{key: tensor} of the branch, in file order."""
        return self.branch.tensors

    @property
    def dtypes(self) -> dict[str, str]:
        """{key: dtype} of the branch."""
        return {k: t.dtype for k, t in self.stored.items()}


def recognise(path: str | Path, wishes: Wishes | None = None) -> Recognised:
    """Open a checkpoint, take its envelope off and find its dialect; only headers are read.

    The caller closes `checkpoint`.

    Raises:
        UsageError: the file does not exist, or a wish names something unknown.
        BadFile: the file is damaged, hostile, or of a kind that cannot be read safely.
        NotRecognised / Ambiguous / Refused: see `vitconv.layout.detect.detect`.
    """
    wishes = wishes or Wishes()
    checkpoint = open_checkpoint(path, ignore_index=wishes.ignore_index)
    try:
        if wishes.adapter is not None:
            from vitconv.conversion.merged import with_adapter

            checkpoint = with_adapter(checkpoint, wishes.adapter, wishes.branch)
        return recognise_open(checkpoint, wishes)
    except BaseException:
        checkpoint.close()
        raise


def recognise_open(checkpoint: Checkpoint, wishes: Wishes) -> Recognised:
    """Recognise an open checkpoint; see `recognise`. It stays open."""
    wishes = _heads_as_fact(wishes)
    dialects = Candidates(wishes.from_)
    if dialects.name:
        dialects.every()  # An unknown name is told before anything else.
    refuse_crowd(checkpoint, lambda some: recognise_open(some, wishes))
    found = branches(checkpoint)
    if not found:
        from vitconv.conversion.no_weights import no_weights

        raise NotRecognised(no_weights(checkpoint))
    chosen = _chosen(checkpoint, found, wishes)
    if wishes.choices:
        check_choices(wishes.choices, dialects.every())
    known = gather(checkpoint, wishes)
    configured = known.beside.choices if known.beside else {}
    choices = {**configured, **_recorded(checkpoint.metadata, dialects), **wishes.choices}
    try:
        branch, match = _settled(checkpoint, chosen, dialects, choices, wishes, known)
    except NotRecognised as e:
        if wishes.branch or len(found) == 1:
            raise
        sets = some(b.name for b in found[1:])
        raise NotRecognised(f"{e}\n  looked at: {shown(chosen.name)}; also there: {sets} (--branch)") from e
    foreign, rest = foreign_files(known.beside, match)
    if foreign:
        if wishes.config:
            raise Refused(f"{wishes.config} describes another network: {'; '.join(next(iter(foreign.values())))}")
        reason = "not used, since it describes another network"
        without = "; ".join(f"{name} {reason} ({'; '.join(why)})" for name, why in foreign.items())
        known = gather(checkpoint, wishes, without=without, instead=rest)
        configured = known.beside.choices if known.beside else {}
        choices = {**configured, **_recorded(checkpoint.metadata, dialects), **wishes.choices}
        branch, match = _settled(checkpoint, chosen, dialects, choices, wishes, known)
    whose = dialects.marked(match.dialect.name, chosen.tensors)
    if whose:
        branch, match = _settled(checkpoint, branch, Candidates(whose), choices, wishes, known)
    elif said := dialects.configured(match.dialect.name, known.beside.dialect if known.beside else ""):
        # Where the keys are not those of what the configuration names, what it says is held against them.
        with contextlib.suppress(NotRecognised):
            branch, match = _settled(checkpoint, branch, Candidates(said), choices, wishes, known)
    _check_told(wishes, match)
    known = of_this_epoch(known, match)
    facts, more = released(match, known.facts)
    sources = {**dict.fromkeys(facts.known(), "release"), **known.sources}
    check_floats(match, branch.tensors)
    refuse_shard(match, wishes.axes)
    facts, held = proven(match, facts)
    facts, waves = proven_by_waves(match, facts, branch.tensors, checkpoint.read)
    facts, index = proven_by_index(match, facts, branch.tensors, checkpoint.read)
    held += [*waves, *index]
    if match.dialect.family != "plain":
        from vitconv.conversion.stage_facts import proven_by_stages

        facts, held = proven_by_stages(match, facts, checkpoint, branch)
    sources = {**dict.fromkeys(facts.known(), "tensors"), **sources}
    facts, usual = customary(match, facts)
    held += usual
    sources = {**dict.fromkeys(facts.known(), "usual"), **sources}
    facts = authored(match, facts)
    sources = {**dict.fromkeys(facts.known(), f"{AUTHOR} ({match.dialect.name})"), **sources}
    notes = [*checkpoint.notes, *known.notes, *match.notes, *more, *held, *_tied(branch, match)]
    notes += [branch.note] if branch.note else []
    notes += _headless(known, match)
    notes += lost_parts(match, facts)
    notes += doubtful_grid(match, facts, branch.tensors, checkpoint.read)
    notes += centred_norms(match, branch.tensors, checkpoint.read)
    aside = _aside(chosen, branch)
    if wishes.branch is None and len(found) > 1:
        notes += _compared(checkpoint, branch, chosen, found)
        notes += [
            f"warning: {b.name} is {line}" for b in found if is_averaged(b.name) and (line := list_line(b, found))
        ]
        for other in parts_elsewhere(branch, [b for b in found if b is not chosen]):
            keys = tuple(f"{other.name}.{key}" for key in other.tensors)
            branch = dataclasses.replace(branch, left=branch.left + keys, unclaimed=branch.unclaimed + keys)
            aside += tuple(other.tensors.values())
    others = tuple(b.name for b in found if not f"{chosen.name}.".startswith(f"{b.name}."))
    beside = known.beside
    return Recognised(
        checkpoint,
        branch,
        match,
        facts,
        sources,
        tuple(dict.fromkeys(notes)),
        others,
        beside.extra if beside else {},
        beside.refusals if beside else (),
        aside,
    )


def _chosen(checkpoint: Checkpoint, found: list[Branch], wishes: Wishes) -> Branch:
    """Return the branch that is meant, under the names that layouts know, without what only adapters have."""
    chosen = pick(found, wishes.branch)
    if line := list_line(chosen, found):
        raise NotRecognised(f"{shown(chosen.name)} is {line}")
    chosen = respelled(with_bits(chosen, wishes.bits), wishes.drop)
    chosen = settled_biases(chosen, checkpoint.read)
    if any(".lora_" in key for key in chosen.tensors):
        from vitconv.conversion.merged import refuse_adapter

        refuse_adapter(chosen, checkpoint.path)
    if any(".modules_to_save." in key for key in chosen.tensors):
        from vitconv.conversion.saved_modules import with_saved_modules

        chosen = with_saved_modules(chosen)
    refuse_quantised(chosen.tensors, wishes.drop)
    refuse_linear_probe(chosen.tensors, wishes.drop)
    return chosen


def _compared(checkpoint: Checkpoint, branch: Branch, chosen: Branch, found: list[Branch]) -> list[str]:
    """Hold the set that is taken by default against the others; see `suspicions`."""
    names = [b.name for b in found]
    others = [b for b in found if b is not chosen]
    if rank(chosen.name, names) == PLAIN:
        check_alike(branch, chosen, [b for b in others if rank(b.name, names) == PLAIN], checkpoint.read)
    return lost_beside(branch, chosen, others)


def _headless(known: Known, match: Match) -> list[str]:
    if known.beside is None:
        return []
    from vitconv.configs.found import headless

    return headless(known.beside, match.sizes)


def _aside(chosen: Branch, branch: Branch) -> tuple[Stored, ...]:
    taken = {id(t) for t in branch.tensors.values()}
    return tuple(t for t in chosen.tensors.values() if id(t) not in taken)


def _heads_as_fact(wishes: Wishes) -> Wishes:
    """Take `--axis h=12` for what it says, the head count, and a head count that was told for that axis."""
    h = wishes.axes.get("h")
    if h is None:
        heads = wishes.facts.get("heads")
        return dataclasses.replace(wishes, axes={**wishes.axes, "h": heads}) if heads else wishes
    heads = wishes.facts.get("heads", h)
    if heads != h:
        raise UsageError(f"--axis h={h} and --set heads={heads} contradict each other")
    return dataclasses.replace(wishes, facts={**wishes.facts, "heads": heads})


def _check_told(wishes: Wishes, match: Match) -> None:
    """Refuse what the caller told and the tensors contradict."""
    wrong = contradictions(wishes.facts, match.sizes) + told_against_keys(wishes.facts, match)
    layers = {b.layer for b in match.bound if b.layer is not None}
    depth = wishes.axes.get("i")
    if layers and depth not in (None, len(layers)):
        wrong.append(f"axis i={depth}: there are {len(layers)} layers")
    names = {part for b in match.bound for part in b.parts}
    whole = "embed.patch.weight" in names
    if whole and wishes.facts.get("position") == "learned" and not any(n.startswith("embed.pos") for n in names):
        wrong.append("position=learned: there is no table of positions")
    if wrong:
        raise UsageError(f"what was told does not fit the tensors: {'; '.join(wrong)}")


def _settled(
    checkpoint: Checkpoint,
    branch: Branch,
    dialects: Candidates,
    choices: Mapping[str, str],
    wishes: Wishes,
    known: Known,
) -> tuple[Branch, Match]:
    try:
        return _read(branch, dialects, choices, wishes, known.facts)
    except Ambiguous:
        # What the writer recorded may decide between dialects that fit alike, never against the tensors.
        said = dialects.named(checkpoint.metadata.get(DIALECT))
        if said is None or dialects.name:
            raise
        return _read(branch, Candidates(said.name), choices, wishes, known.facts)


def _read(
    branch: Branch, dialects: Candidates, choices: Mapping[str, str], wishes: Wishes, facts: Semantics
) -> tuple[Branch, Match]:
    """Detect the branch as it is, or else one reading of it: a prefix off, a training head aside, keys dropped."""
    fitting: list[tuple[Branch, Match]] = []
    for reading in readings(branch, wishes.drop):
        try:
            match = _detect(reading, *dialects.likely(reading.tensors), choices, wishes, facts)
        except (NotRecognised, Refused) as e:
            if isinstance(e, Ambiguous):
                raise
            continue
        if reading is branch:
            return reading, match
        fitting.append((reading, match))
    whole = largest([reading for reading, _ in fitting])
    if len(whole) > 1:
        names = ", ".join(shown(b.name) for b in whole)
        raise Ambiguous(f"several networks are in this file: {names}; say which with --branch NAME")
    for reading, match in fitting:
        if reading is whole[0]:
            claimed = {*training_keys(reading, reading.unclaimed), *text_keys(reading)}
            return dataclasses.replace(
                reading, unclaimed=tuple(k for k in reading.unclaimed if k not in claimed)
            ), match
    # Nothing fits. Which is the closest, or why it is refused, is told by all dialects.
    from vitconv.conversion.nearest import nearest, without

    reading = nearest(branch, dialects.every(), wishes.axes)
    try:
        return reading, _detect(reading, dialects.every(), lambda _: [], choices, wishes, facts)
    except (NotRecognised, Refused) as e:
        # A size that the caller can tell makes it an open question, and no other kind of file.
        kind = Ambiguous if "say one with --axis" in str(e) else type(e)
        raise kind(f"{e}{factors(reading.tensors)}{without(branch, reading)}") from e


def _with_choices(dialects: Iterable[Dialect], told: Mapping[str, str]) -> list[Dialect]:
    return [d for d in dialects if told.keys() <= {c.name for c in d.choices}]


def _detect(
    reading: Branch,
    dialects: Iterable[Dialect],
    special: Special,
    choices: Mapping[str, str],
    wishes: Wishes,
    facts: Semantics,
) -> Match:
    shapes = {k: t.shape for k, t in reading.tensors.items()}
    dialects = list(dialects)
    # A choice that was told is one of the layout that is meant.
    if wishes.choices and (having := _with_choices(dialects, wishes.choices)):
        every, dialects = special, having

        def special(names: Collection[str]) -> list[Dialect]:
            return _with_choices(every(names), wishes.choices)

    told: dict[str, Any] = {"special": special, "choices": choices, "facts": facts.known()}
    try:
        return detect(shapes, dialects, given=wishes.axes, **told)
    except NotRecognised:
        # The sides of patches that are kept as rows follow from what a configuration says of the image.
        if not facts.image_size or not facts.grid or {"p", "q"} & set(wishes.axes):
            raise
        sides = {x: n // g for x, n, g in zip("pq", facts.image_size, facts.grid, strict=True)}
        return detect(shapes, dialects, given={**wishes.axes, **sides}, **told)


def _recorded(metadata: Mapping[str, str], dialects: Candidates) -> dict[str, str]:
    """Return the options that the writer of the file recorded, where they still exist."""
    dialect = dialects.named(metadata.get(DIALECT))
    if dialect is None or VARIANT not in metadata:
        return {}
    try:
        recorded = json.loads(metadata[VARIANT])
        known = {c.name: {o.name for o in c.options} for c in dialect.choices}
        return {k: v for k, v in recorded.items() if v in known.get(k, ())}
    except (ValueError, AttributeError, TypeError):
        return {}


def _tied(branch: Branch, match: Match) -> list[str]:
    """Return a note on tensors that share their bytes and are not the layout's own second names."""
    by_place: dict[tuple[Any, ...], list[str]] = {}
    for key, t in branch.tensors.items():
        if key not in match.copies and key not in match.consts and t.numel:
            by_place.setdefault((t.blob, t.start, t.shape, t.strides), []).append(key)
    tied = [" = ".join(keys) for keys in by_place.values() if len(keys) > 1]
    return [f"the same bytes under several names, written once for each: {'; '.join(tied[:4])}"] if tied else []


def with_facts(r: Recognised, more: Mapping[str, Any], source: str) -> Recognised:
    """Return a copy with further facts, which win."""
    sources = {**r.sources, **dict.fromkeys(more, source)}
    return dataclasses.replace(r, facts=r.facts.replaced(more), sources=sources)
