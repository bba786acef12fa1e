"""There and back between every two dialects of one family: the same bits, or a refusal with its reason."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitconv.errors import Refused
from vitconv.layout.buffers import is_buffer
from vitconv.layout.dialect import Dialect, Variant
from vitconv.layout.encode import contradictions
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
PAIRS = {
    f"{a.name}-{b.name}": (a, b)
    for a, b in itertools.product(ALL.values(), ALL.values())
    if a is not b and a.family == b.family and not a.staged
}

OUTCOMES = {"exact", "residue", "untied", "refused"}
REASON = re.compile(
    r"lacking: \S|, but .* computes \S|nothing says whether|axis \w+|say --set heads|needs no \S|there is no table"
)


def there_and_back(forge: SimpleNamespace, random: Random, a: Dialect, b: Dialect) -> str:
    """Carry a random network of `a` to `b` and back, and return how that went."""
    goal = random.choice(b.variants)
    starts = [v for v in a.variants if forge.templates(v) >= forge.templates(goal, needed=True)]
    case = forge.networks(random, random.choice(starts or a.variants), like=goal)
    case = dataclasses.replace(case, facts=told(case, goal))
    before = {k: v.tobytes() for k, v in case.file.items()}
    try:
        out = forge.convert(case, case.file, a, b, choices=case.variant.names)
    except Refused as e:
        said = str(e)
        return "refused" if REASON.search(said) and (b.name in said or b.title in said) else f"no reason: {said}"
    # Random bits are not what a library makes up, so they are kept as what has no place is.
    over = (*out.residue, *(c for c, _ in out.derived))
    assert not {n for t in out.targets for n in t.parts} & {c.name for c in over}
    there = forge.carry(out, case.file)
    assert {t.key: t.shape for t in out.targets} == {k: v.shape for k, v in there.items()}
    names = out.target.variant.names
    residue = {c.name: case.canonical[c.name] for c in over}
    # A tie is exact only where the tied tensors are one; where they are not, converting is refused on their bytes.
    if any(case.canonical[x].tobytes() != case.canonical[y].tobytes() for x, y in out.equal):
        return "untied"
    try:
        back = forge.convert(
            case, there, b, a, choices=names, wanted=case.variant.names, residue=residue, without=out.target.fills
        )
    except Refused as e:
        # It was told that code makes its positions, which no code of that layout does.
        return "refused" if "there is no table" in str(e) and case.facts.position == "sincos" else f"no reason: {e}"
    again = forge.carry(back, {**there, **residue})
    # A drawn file has no buffer that it can be without; those written anew are compared by value elsewhere.
    anew = {t.key for t in back.targets if t.const and is_buffer(t.const.value)} - case.file.keys()
    assert forge.same({k: v for k, v in again.items() if k not in anew}, forge.without_consts(case))
    assert {k: v.tobytes() for k, v in case.file.items()} == before
    return "residue" if residue else "exact"


def told(case: Any, goal: Variant) -> Semantics:
    """Return the facts of a case, what its weights leave open being as the goal computes it, where that may be."""
    facts = case.facts
    for name, value in goal.implies.items():
        wanted = value if isinstance(value, tuple) else (value,)
        may = case.variant.implies.get(name)
        possible = [x for x in wanted if may is None or x in (may if isinstance(may, tuple) else (may,))]
        if possible:
            facts = facts.replaced({name: possible[0]}) if isinstance(may, tuple) else facts.filled({name: possible[0]})
    if "rows" not in case.axes and "n" in case.axes:
        # A table that is kept on its grid is written on that of the network.
        facts = facts.filled({"grid": (math.isqrt(case.axes["n"]),) * 2})
    # One head, where nothing else says how many there are: rotary periods are of a quarter of its width.
    return facts if case.axes["a"] % 4 else facts.filled({"heads": 1, "rope_reference": (4, 4)})


def only_code_says(forge: SimpleNamespace, v: Variant, w: Variant) -> bool:
    """Say whether just one of the two adds sines that its code makes anew, and the other needs no table of them."""
    takes = [{**x.implies, **x.author}.get("position") == "sincos" for x in (v, w)]
    return takes[0] != takes[1] and "embed.pos" not in forge.templates(v, needed=True) | forge.templates(w, needed=True)


# All pairs are some thousand; those with these two stand for them in the quick run.
HUBS = {"timm", "hf-vit"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(a, b, id=name, marks=() if {a.name, b.name} & HUBS else pytest.mark.slow)
        for name, (a, b) in PAIRS.items()
    ],
)
def test_there_and_back(forge: SimpleNamespace, a: Dialect, b: Dialect) -> None:
    ways = [
        (v, w)
        for v in a.variants
        for w in b.variants
        if forge.templates(v) >= forge.templates(w, needed=True) and not contradictions(w, v.implies)
    ]
    sure = any(not only_code_says(forge, v, w) for v, w in ways)
    outcomes = {there_and_back(forge, Random(seed), a, b) for seed in range(3)}
    more = iter(range(3, 240))
    while ways and outcomes == {"refused"} and (seed := next(more, None)):
        outcomes.add(there_and_back(forge, Random(seed), a, b))
    assert outcomes <= OUTCOMES
    carried = outcomes != {"refused"}
    assert sure <= carried <= bool(ways), "what can be carried is, and what cannot is refused"


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_there_and_back_at_any_size(forge: SimpleNamespace, random: Random) -> None:
    assert there_and_back(forge, random, *random.choice([*PAIRS.values()])) in OUTCOMES
