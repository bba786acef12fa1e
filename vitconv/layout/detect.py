"""Which dialect is it? The rules themselves, run over names and shapes; no fingerprint, no guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from vitconv.errors import Ambiguous, NotRecognised, Refused
from vitconv.layout.dialect import Dialect
from vitconv.layout.header import Header
from vitconv.layout.match import Match, closest, collapse, fitting
from vitconv.layout.rule import Forbid

SHOWN = 8
# Letters of a key in a message.
LONG = 200
# As many tensors lost make a file that would be something else otherwise.
_FEW = 2


def detect(
    shapes: Mapping[str, tuple[int, ...]],
    dialects: Iterable[Dialect],
    *,
    special: Callable[[Collection[str]], Iterable[Dialect]] = lambda _: (),
    choices: Mapping[str, str] | None = None,
    given: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Match:
    """Return the one dialect and variant that explain every tensor.

    Args:
        shapes: {key: shape} of the file, its envelope taken off.
        dialects: the candidates.
        special: further candidates, asked for with the names of those that fit; it may leave out what is under them.
        choices: options told by the user, {choice: option}; used for the dialects that have them.
        given: axis sizes told by the user, {axis: size}.
        facts: facts known from beside the tensors, such as the grid.

    Raises:
        Ambiguous: several dialects or variants fit; the message names the option that decides.
        NotRecognised: none fits; the message names the closest, what is unknown and what is missing.
        Refused: the file is of a kind that is known and cannot be carried; the message has the reason.
    """
    header = Header(shapes)
    fits: list[Match] = []
    asked: list[tuple[Dialect, dict[str, str]]] = []
    for group in (lambda _: dialects, special):
        for dialect in group({m.dialect.name for m in fits}):
            known = {c.name: {o.name for o in c.options} for c in dialect.choices}
            wanted = {k: v for k, v in (choices or {}).items() if v in known.get(k, ())}
            asked.append((dialect, wanted))
            fits += fitting(dialect, header, wanted, given, facts)
    # What a more general dialect explains as well is called by its name.
    broad, under = {m.dialect.name for m in fits}, {d.name: d.under for d, _ in asked}
    fits = [m for m in fits if broad.isdisjoint(above(m.dialect.name, under))]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise _ambiguous(fits)
    if not shapes:
        raise NotRecognised("the file holds no tensors")
    if not asked:
        raise NotRecognised("there is no dialect to compare with")
    m = closest(asked, header, given)
    # When the closest explains nothing, any dialect may know a kind of file by the keys it forbids.
    for dialect in [m.dialect] if m.bound else [d for d, _ in asked]:
        if refusal := _refusal(dialect, m, header):
            raise refusal
    plain = [d for d, _ in asked]
    if m.bound and not (m.unknown or m.missing or m.conflict):
        # An option that no shape tells: a file that lost a tensor fits it by chance.
        near = closest(asked, header, given, told=False)
        if near.missing and len(near.missing) <= _FEW and not near.unknown:
            raise NotRecognised(f"{_unrecognised(header, near, plain)}\n  or {_options(m)}")
    raise _unrecognised(header, m, plain, given)


def above(name: str, under: Mapping[str, str]) -> list[str]:
    """Return the more general dialect of a dialect, and that dialect's own, and so on."""
    out: list[str] = []
    while (name := under.get(name, "")) and name not in out:
        out.append(name)
    return out


def _ambiguous(fits: list[Match]) -> Ambiguous:
    names = list(dict.fromkeys(m.dialect.name for m in fits))
    if len(names) > 1:
        return Ambiguous(f"the tensors fit {' and '.join(names)}; say which with --from {'|'.join(names)}")
    lines = []
    for choice in fits[0].dialect.choices:
        options = list(dict.fromkeys(m.variant.taken[choice.name] for m in fits))
        if len(options) > 1:
            firsts = {o: next(m for m in fits if m.variant.taken[choice.name] == o) for o in options}
            how = "; ".join(f"{o}: {_sizes(m, fits)}" for o, m in firsts.items())
            grid = " or --set grid=HxW" if choice.square else ""
            say = f"--set from.{choice.name}={'|'.join(options)}{grid}"
            lines.append(f"{choice.name} may be {' or '.join(options)} ({how}); say which with {say}")
    return Ambiguous(f"the tensors fit {names[0]} in more than one way:\n  " + "\n  ".join(lines))


def _sizes(m: Match, others: list[Match]) -> str:
    differ = {k: v for k, v in m.sizes.items() if any(o.sizes.get(k) != v for o in others)}
    return ", ".join(f"{k}={v}" for k, v in differ.items()) or "same sizes"


def _refusal(dialect: Dialect, m: Match, header: Header) -> Refused | None:
    """Return why a file of this dialect cannot be carried; without a bound rule, most keys must say so."""
    hits = [(f, hit) for f in dialect.forbids if (hit := _hits(f, m))]
    if not hits or not (m.bound or 2 * len({k for _, hit in hits for k in hit}) > len(header.shapes)):
        return None
    reasons = [f"{f.reason} ({'without ' if f.absent else ''}{_list(hit)})" for f, hit in hits]
    whose = f"this is {dialect.name}, but it" if m.bound else "this file"
    return Refused(f"{whose} cannot be carried:\n  " + "\n  ".join(reasons))


def _unrecognised(
    header: Header, m: Match, asked: list[Dialect], given: Mapping[str, int] | None = None
) -> NotRecognised:
    # Here, as below: files that fit need none.
    from vitconv.layout.layer_names import lost_layers, renamed, without_lost
    from vitconv.layout.shape_hints import shape_hint

    # Layers that are stacked are none of their own: of those most is explained.
    lost_most = 2 * len(m.unknown) > len(header.shapes) and not any(b.layer is not None for b in m.bound)
    other = renamed(asked, header, given) if lost_most else None
    if other is not None:
        m, header = other.match, other.header
    elif not m.bound:
        known, name = max(((_named(d, header), d.name) for d in asked), key=lambda pair: len(pair[0]))
        have = (
            f"; only {_list(known)} are names that one has ({name})" if known else ", and none has any of their names"
        )
        return NotRecognised(f"no dialect explains these {len(header.shapes)} tensors{have}:\n  {_list(header.shapes)}")
    lines = [f"no dialect explains these {len(header.shapes)} tensors; closest: {m.dialect.name}"]
    if m.variant.names:
        lines[0] += " (" + ", ".join(f"{k}={v}" for k, v in m.variant.names.items()) + ")"
    lost, gone = lost_layers(m, header)
    lines += [*([other.line] if other else []), *lost]
    if m.conflict:
        lines.append(f"shapes do not fit: {m.conflict}")
    lines += filter(None, [shape_hint(m, header)])
    if m.unknown:
        lines.append(f"unknown here: {_list(m.unknown)}")
    if missing := without_lost(m.missing, gone):
        lines.append(f"missing: {_list(missing)}")
    if other is None and not (m.unknown or m.missing or m.conflict):
        lines.append(_options(m))
    if m.unknown and not m.missing and not m.conflict and other is None:
        stems = {b.key.partition(f".{b.layer}.")[0] for b in m.bound if b.layer is not None}
        inside = [k for k in m.unknown if any(k.startswith(f"{stem}.") for stem in stems)]
        lines.append(
            "they stand within layers: a network without them computes something else"
            if inside
            else "if they are no part of the network, --drop PATTERN leaves them out"
        )
    return NotRecognised("\n  ".join(lines))


def _options(m: Match) -> str:
    """Name the options of a variant that fits and that no shape tells."""
    taken = zip(m.variant.taken, m.variant.options, strict=True)
    told = " ".join(f"--set from.{name}={option.name}" for name, option in taken if option.asked)
    return f"it fits {m.dialect.name}, but no shape tells so: say {told} if that is what it is"


def _named(dialect: Dialect, header: Header) -> list[str]:
    """Return the keys of the file that some variant of a dialect has."""
    items = (item for variant in header.settled(dialect).variants for item in variant.items)
    names = {key for item in items for key in header.find(item.key).values()}
    return [key for key in header.shapes if key in names]


def _hits(forbid: Forbid, m: Match) -> list[str]:
    if forbid.absent:
        whole = not m.unknown and all(re.search(forbid.pattern, k) for k in m.missing)
        return list(m.missing) if whole else []
    return [k for k in m.unknown if re.search(forbid.pattern, k)]


def _list(keys: Iterable[str]) -> str:
    short = collapse(keys)
    more = f", and {len(short) - SHOWN} more" if len(short) > SHOWN else ""
    return ", ".join(key if len(key) <= LONG else f"{key[: LONG - 3]}..." for key in short[:SHOWN]) + more
