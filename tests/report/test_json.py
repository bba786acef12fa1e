"""JSON: strict, stable, versioned, exact."""

from __future__ import annotations

import json

import pytest

from vitconv.report import Column, Report, Row, Section
from vitconv.report.json import as_json


def strict(text: str) -> dict:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_document_has_its_schema_and_all_parts(full: Report) -> None:
    document = strict(as_json(full))
    assert (document["schema"], document["schema_version"]) == ("vitconv.verify", 3)
    assert document["verdict"] == {
        "word": "differs",
        "status": "fail",
        "sentence": "The outputs part by 2.1e-4.",
    }
    assert document["facts"]["eps"] == {"timm": 1e-6, "xformers": 1e-5}
    assert document["environment"] == {"torch": "2.14.1"}
    assert document["command"] == "vitconv verify a.safetensors b.pth"
    assert document["where"] == "blocks.0.norm1"
    stages, names = document["sections"]
    assert (stages["key"], stages["status"], stages["notes"]) == ("stages", "fail", ["Decided in float64."])
    assert stages["rows"][0] == {
        "stage": "logits",
        "error": 2.1e-4,
        "time": 1.25,
        "status": "fail",
        "detail": "first apart at blocks.0.norm1",
    }
    assert stages["charts"][0]["series"][0]["points"][1] == [1.0, 2e-7]
    assert names["rows"][1]["bytes"] == 86_567_656


def test_what_is_not_finite_is_text(full: Report) -> None:
    document = strict(as_json(full))
    assert document["worst"] == "NaN"
    assert document["sections"][0]["rows"][3]["error"] == "Infinity"
    assert document["sections"][0]["charts"][0]["series"][1]["points"][1] == [1.0, "NaN"]


def test_a_name_keeps_its_bytes(full: Report) -> None:
    assert "\x1b" not in as_json(full)
    assert strict(as_json(full))["sections"][1]["rows"][0]["key"] == "<script>alert('x')</script>|`*_\x1b[31m&\u202e"


def test_names_are_sorted_and_rows_are_not(full: Report) -> None:
    pairs: list[list[str]] = []
    json.loads(as_json(full), object_pairs_hook=lambda found: pairs.append([key for key, _ in found]))
    assert len(pairs) > 10
    assert all(keys == sorted(keys) for keys in pairs)
    assert [row["stage"] for row in strict(as_json(full))["sections"][0]["rows"]] == [
        "logits",
        "mapped",
        "onnx",
        "gradients",
    ]


@pytest.mark.parametrize("value", [0.1, 1e-300, 2**53 + 1, "é", True, None])
def test_a_value_comes_back_as_it_was(value) -> None:
    section = Section("s", "S", (Column("v", "v", "number"),), (Row((value,)),))
    found = strict(as_json(Report("vitconv.x", "x", sections=(section,))))["sections"][0]["rows"][0]["v"]
    assert found == value
    assert type(found) is type(value)


def test_one_side_has_plain_facts() -> None:
    from vitconv.report import Fact

    document = strict(as_json(Report("vitconv.inspect", "x", facts=(Fact("heads", (12,)), Fact("eps", (None,))))))
    assert document["facts"] == {"heads": 12, "eps": None}
