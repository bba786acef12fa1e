"""Encoding and decoding are inverse, adjoint, and what the notation says: every variant of every registered dialect."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants_kit import PLAIN, each_variant

from vitconv.layout.canonical import SCHEMA
from vitconv.layout.dialect import Dialect, Variant
from vitconv.layout.rule import Rule


def check(forge: SimpleNamespace, random: Random, variant: Variant) -> None:
    case = forge.networks(random, variant)
    forge.check_encode(case, variant.dialect)
    forge.check_decode(case, variant.dialect)
    forge.check_round_trip(case, variant.dialect, variant.dialect)
    forge.check_adjoint(case, variant.dialect, variant.dialect)


@each_variant
def test_every_variant_survives_bit_by_bit(forge: SimpleNamespace, variant: Variant) -> None:
    check(forge, Random(1), variant)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PLAIN.values(), ids=PLAIN.keys())
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=12)
def test_networks_of_any_size_survive_bit_by_bit(forge: SimpleNamespace, dialect: Dialect, random: Random) -> None:
    check(forge, random, random.choice(dialect.variants))


@pytest.mark.parametrize("dialect", PLAIN.values(), ids=PLAIN.keys())
def test_every_part_is_canonical_and_has_its_rank(dialect: Dialect) -> None:
    for item in (item for v in dialect.variants for item in v.items if isinstance(item.entry, Rule)):
        for template, part in zip(item.parts, item.entry.parts, strict=True):
            assert template in SCHEMA, f"{item.key} speaks of {template}, which is not canonical"
            assert len(part.axes) == len(SCHEMA[template].axes), f"{item.key}: rank of {template}"
