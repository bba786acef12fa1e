"""Every manifest of a stage-wise network, made by the real code, is explained whole, and by its dialect alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitconv.errors import NotRecognised, Refused
from vitconv.layout.detect import detect
from vitconv.layout.header import Header
from vitconv.layout.match import fitting
from vitconv.registry import DIALECTS, load_all

FOLDER = Path(__file__).parents[2] / "fixtures" / "stages"
NAMES = sorted(p.stem for p in FOLDER.glob("*.json"))
ALL = load_all(DIALECTS, plugins=False)
Shapes = dict[str, tuple[int, ...]]


def read(name: str) -> tuple[str, Shapes]:
    raw = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return raw["dialect"], {k: tuple(shape) for k, (_, shape) in raw["tensors"].items()}


def test_there_are_manifests_of_every_dialect_whose_code_can_be_had() -> None:
    staged = {name for name, d in ALL.items() if d.staged}
    assert {read(n)[0] for n in NAMES} == staged - {"canonical-stages", "mmpretrain-swin"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_explained_by_its_dialect(name: str) -> None:
    dialect, shapes = read(name)
    m = detect(shapes, ALL.values())
    assert m.dialect.name == dialect
    assert {b.key for b in m.bound} | set(m.consts) == set(shapes)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_dialect_fits(name: str) -> None:
    dialect, shapes = read(name)
    others = {d.name for d in ALL.values() if d.name != dialect and fitting(d, Header(shapes))}
    # With softmax in every block, FLatten-Swin's file is Swin's.
    assert others <= ({"flatten-swin"} if dialect == "swin" else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_key_less_is_never_the_same_network_in_silence(name: str) -> None:
    _, shapes = read(name)
    for key in list(shapes)[:: max(1, len(shapes) // 5)]:
        less = {k: s for k, s in shapes.items() if k != key}
        try:
            m = detect(less, ALL.values())
        except (NotRecognised, Refused):
            continue
        assert {b.key for b in m.bound} | set(m.consts) == set(less)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_shape_and_a_renamed_key_are_named(name: str) -> None:
    dialect, shapes = read(name)
    key = next(
        k
        for k, s in shapes.items()
        if len(s) == 2 and k.endswith(("fc2.weight", "mlp.3.weight", "dense.weight", "dense2.weight"))
    )
    with pytest.raises(NotRecognised, match=f"closest: {dialect}"):
        detect(shapes | {key: (shapes[key][0], shapes[key][1] + 1)}, ALL.values())
    near = {(k.replace("weight", "wieght") if k == key else k): s for k, s in shapes.items()}
    with pytest.raises(NotRecognised, match=r"unknown here: .*wieght"):
        detect(near, ALL.values())


def test_a_wild_block_number_is_unknown() -> None:
    _, shapes = read("timm-swin")
    with pytest.raises(NotRecognised, match=r"unknown here|missing"):
        detect(shapes | {"layers.0.blocks.99999.norm1.weight": (8,)}, ALL.values())
