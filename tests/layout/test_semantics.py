"""Facts: read from text and JSON, refused with what was expected, compared, and never made up."""

from __future__ import annotations

import re

import pytest

from vitconv.errors import UsageError
from vitconv.layout.semantics import Semantics, fact_value, parse_fact, semantics_from_json


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("heads=12", "heads", 12),
        (" heads = 12 ", "heads", 12),
        ("grid=14x16", "grid", (14, 16)),
        ("grid=14", "grid", (14, 14)),
        ("image_size=224,192", "image_size", (224, 192)),
        ("norm_eps=1e-6", "norm_eps", 1e-6),
        ("kv_normalised=No", "kv_normalised", False),
        ("kv_normalised=true", "kv_normalised", True),
        ("mean=0.5,0.4,0.3", "mean", (0.5, 0.4, 0.3)),
        ("mean=0.5", "mean", (0.5,)),
        ("norm_placement=res-post", "norm_placement", "res-post"),
        ("release=0.0.11", "release", "0.0.11"),
    ],
)
def test_reads_text(text: str, name: str, value: object) -> None:
    assert parse_fact(text) == (name, value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads", "--set heads: expected NAME=VALUE"),
        ("head=12", "unknown fact 'head'; known: heads, "),
        ("heads=twelve", "heads='twelve': expected a whole number"),
        ("heads=12.5", "heads='12.5': expected a whole number"),
        ("heads=0", "heads='0': expected a positive number"),
        ("heads=-3", "heads='-3': expected a positive number"),
        ("norm_eps=-1e-6", "norm_eps='-1e-6': expected a positive number"),
        ("norm_eps=nan", "norm_eps='nan': expected a number"),
        ("norm_eps=inf", "norm_eps='inf': expected a number"),
        ("grid=14x14x14", "grid='14x14x14': expected two numbers"),
        ("grid=0x14", "grid='0x14': expected positive numbers"),
        ("grid=", "grid='': expected two numbers"),
        ("mean=a,b", "mean='a,b': expected numbers separated by commas"),
        ("kv_normalised=maybe", "kv_normalised='maybe': expected true or false"),
        ("norm_placement=Pre", "norm_placement='Pre': expected one of pre, post, deepnorm, res-post"),
    ],
)
def test_refuses_with_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_fact(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("heads", True), ("heads", [12]), ("norm_eps", {}), ("grid", 14), ("grid", {"a": 1}), ("release", 11)],
)
def test_json_values_of_another_kind_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^{name}="):
        fact_value(name, value)


FULL = Semantics(
    heads=12, norm_placement="pre", norm_eps=1e-6, kv_normalised=True, grid=(14, 16), mean=(0.5, 0.4, 0.3), release="1"
)


def test_json_goes_there_and_back() -> None:
    assert semantics_from_json(FULL.to_json()) == FULL
    assert semantics_from_json(Semantics().to_json()) == Semantics()
    assert Semantics(heads=3).to_json() == '{"heads":3}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "are list, expected a JSON object"),
        ('{"heads": 12, "brand": 1}', "unknown fact 'brand'"),
        ('{"norm_eps": NaN}', "expected a number"),
    ],
)
def test_hostile_json_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        semantics_from_json(text)


def test_unknown_is_no_difference_and_no_default() -> None:
    assert FULL.differences(Semantics()) == {}
    assert FULL.differences(Semantics(heads=6, grid=(14, 16))) == {"heads": (12, 6)}
    assert Semantics().known() == {}
    assert Semantics(kv_normalised=False).known() == {"kv_normalised": False}


def test_filling_keeps_what_is_known_and_replacing_does_not() -> None:
    assert Semantics(heads=3).filled({"heads": 6, "norm_eps": 1e-5}) == Semantics(heads=3, norm_eps=1e-5)
    assert Semantics(heads=3).filled(FULL).norm_placement == "pre"
    assert FULL.replaced({"heads": None}).heads is None
