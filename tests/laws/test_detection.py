"""A file is recognised as the dialect it was written in, as no other, and in its variant."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from variants_kit import PLAIN, each_variant

from vitconv.errors import Ambiguous, VitconvError
from vitconv.layout.anchor import anchors, forms
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect, Variant
from vitconv.layout.header import Header
from vitconv.layout.match import fitting
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
ANCHORS = anchors(ALL.values())


@each_variant
def test_every_file_holds_an_anchor_of_its_dialect(forge: SimpleNamespace, variant: Variant) -> None:
    assert variant.dialect.name in ANCHORS
    for seed in range(3):
        case = forge.networks(Random(seed), variant)
        assert not forms(case.file).isdisjoint(ANCHORS[variant.dialect.name])


def above(dialect: Dialect) -> list[str]:
    """Return the more general dialect, and what is more general than that."""
    return [dialect.under, *above(ALL[dialect.under])] if dialect.under else []


@each_variant
def test_the_keys_of_a_dialect_are_its_own(forge: SimpleNamespace, variant: Variant) -> None:
    case = forge.networks(Random(2), variant)
    shapes = {k: v.shape for k, v in case.file.items()}
    told = detect(shapes, [variant.dialect], choices=variant.names, given=forge.heads(case))
    assert told.variant is variant
    assert told.depth == case.depth
    assert {a: n for a, n in told.sizes.items() if a != "i"}.items() <= case.axes.items()
    # Alone it is found too, or two readings of one dialect are shown, with the option for each choice in doubt.
    found = outcome(shapes, forge.heads(case))
    if variant.dialect.under and not is_own(shapes, variant.dialect, forge.heads(case)):
        assert any(name in (found if isinstance(found, str) else found.dialect.name) for name in above(variant.dialect))
    elif isinstance(found, str):
        assert f"the tensors fit {variant.dialect.name} in more than one way" in found
        assert any(f"--set from.{c}=" in found and o in found for c, o in variant.names.items())
    elif any(o.asked for o in variant.options):
        # Unasked it is another option of the same choice, which no shape tells apart.
        assert found is not variant and found.dialect is variant.dialect
    else:
        assert found is variant


def outcome(shapes: dict[str, tuple[int, ...]], given: dict[str, int]) -> Variant | str:
    """Return the variant found among all dialects, or the message that asks."""
    try:
        return detect(shapes, ALL.values(), given=given).variant
    except Ambiguous as e:
        return str(e)


def is_own(shapes: dict[str, tuple[int, ...]], dialect: Dialect, given: dict[str, int]) -> bool:
    """Return True when no more general dialect explains the tensors."""
    return not any(fitting(ALL[name], Header(shapes), given=given) for name in above(dialect))


@pytest.mark.parametrize("dialect", PLAIN.values(), ids=PLAIN.keys())
def test_the_first_variant_needs_no_help(forge: SimpleNamespace, dialect: Dialect) -> None:
    for seed in range(5):
        case = forge.networks(Random(seed), dialect.variants[0])
        shapes = {k: v.shape for k, v in case.file.items()}
        alike = {*above(dialect)}
        others = [d for d in ALL.values() if d is dialect or alike.isdisjoint((d.name, *above(d)))]
        assert detect(shapes, others, given=forge.heads(case)).variant is dialect.variants[0]


@pytest.mark.parametrize("dialect", PLAIN.values(), ids=PLAIN.keys())
def test_a_file_with_a_tensor_too_many_or_too_few_is_not_taken(forge: SimpleNamespace, dialect: Dialect) -> None:
    for seed, variant in enumerate(dialect.variants[:4]):
        case = forge.networks(Random(seed), variant)
        shapes = {k: v.shape for k, v in case.file.items()}
        with pytest.raises(VitconvError, match=r"surplus\.weight"):
            detect({**shapes, "surplus.weight": (3, 1)}, [dialect], given=forge.heads(case))
        match = detect(shapes, [dialect], choices=variant.names, given=forge.heads(case))
        optional = {b.key for b in match.bound if b.rule.optional} | set(match.copies) | set(match.copies.values())
        needed = next(b.key for b in match.bound if b.key not in optional)
        with pytest.raises(VitconvError, match=r"missing|without|lacks|cannot be carried"):
            detect(
                {k: s for k, s in shapes.items() if k != needed},
                [dialect],
                choices=variant.names,
                given=forge.heads(case),
            )
