"""Every manifest, names and shapes of a real state dict, is explained without remainder, by its dialect alone."""

import json
import re
from pathlib import Path

import pytest

from vitconv.errors import Ambiguous, NotRecognised, Refused
from vitconv.layout.detect import above, detect
from vitconv.layout.header import Header
from vitconv.layout.match import Match, fitting
from vitconv.registry import DIALECTS, load_all

FOLDER = Path(__file__).parents[2] / "fixtures" / "manifests"
NAMES = sorted(p.stem for p in FOLDER.glob("*.json"))
ALL = load_all(DIALECTS, plugins=False)
Shapes = dict[str, tuple[int, ...]]


def _first_of_each() -> list[str]:
    owner = {n: json.loads((FOLDER / f"{n}.json").read_text(encoding="utf-8"))["dialect"] for n in reversed(NAMES)}
    return sorted({dialect: name for name, dialect in owner.items()}.values())


# What is near is looked for among all layouts: a manifest of each stands for the others in the quick run.
FIRST = _first_of_each()
NEAR = [pytest.param(n, marks=() if n in FIRST else pytest.mark.slow) for n in NAMES]


def told(name: str) -> dict[str, int]:
    """Return the axis sizes that no tensor of the manifest holds."""
    axes: dict[str, int] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")).get("axes", {})
    return axes


def read(name: str) -> tuple[str, dict[str, str], Shapes]:
    raw = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert re.match(r".+ \d+\.\d+", raw["made_by"]), "a manifest says which release and call made it"
    return raw["dialect"], raw["variant"], {k: tuple(shape) for k, (_, shape) in raw["tensors"].items()}


def found(shapes: Shapes, **choices: str) -> Match:
    return detect(shapes, ALL.values(), choices=choices)


def related(dialect: str) -> set[str]:
    """Return the more general dialect, its other special cases, and the special cases of this one."""
    under = {d.name: d.under for d in ALL.values()}
    alike = {dialect, *above(dialect, under)}
    return {name for name in under if not alike.isdisjoint((name, *above(name, under)))} - {dialect}


def test_there_are_manifests_of_every_dialect() -> None:
    assert {read(n)[0] for n in NAMES} == {d.name for d in ALL.values() if d.family == "plain"} - {"canonical"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_explained_by_its_dialect_and_variant(name: str) -> None:
    dialect, variant, shapes = read(name)
    m = detect(shapes, [d for d in ALL.values() if d.name not in related(dialect)], given=told(name))
    assert (m.dialect.name, m.variant.names) == (dialect, variant)
    assert m.fits and m.sizes["d"] and m.depth >= 1
    assert {b.key for b in m.bound} | set(m.copies) | set(m.consts) >= set(shapes)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_dialect_fits(name: str) -> None:
    dialect, _, shapes = read(name)
    others = {d.name for d in ALL.values() if d.name != dialect and fitting(d, Header(shapes), given=told(name))}
    assert others <= related(dialect), "only a more general dialect, or a special case, explains the same file"


@pytest.mark.parametrize("name", NEAR)
def test_one_key_less_is_never_the_same_network_in_silence(name: str) -> None:
    """Each tensor in turn is taken away: refused, or read as a network that lacks it, never with the key made up."""
    _, _, shapes = read(name)
    for key in list(shapes)[:: max(1, len(shapes) // 5)]:
        less = {k: s for k, s in shapes.items() if k != key}
        try:
            m = detect(less, ALL.values(), given=told(name))
        except (NotRecognised, Refused):
            continue
        assert {b.key for b in m.bound} | set(m.copies) | set(m.consts) >= set(less)
        assert key not in {b.key for b in m.bound} | set(m.consts)


@pytest.mark.parametrize("name", NEAR)
def test_a_renamed_key_is_named(name: str) -> None:
    _, _, shapes = read(name)
    key = next(k for k in shapes if re.search(r"[._]0[./].*(weight|kernel)$|Transformer/.*kernel$", k))
    wrong = key[:-1] + "z"
    near = {(wrong if k == key else k): s for k, s in shapes.items()}
    with pytest.raises(NotRecognised) as e:
        detect(near, ALL.values(), given=told(name))
    assert "closest:" in str(e.value)
    assert f"unknown here: {wrong}" in str(e.value)


@pytest.mark.parametrize("name", NEAR)
def test_a_wrong_shape_names_two_witnesses(name: str) -> None:
    dialect, _, shapes = read(name)
    key = next(k for k, s in shapes.items() if len(s) >= 2 and re.search(r"[._]0[./]|block/.*Dense", k))
    near = shapes | {key: (*shapes[key][:-1], shapes[key][-1] + 1)}
    with pytest.raises(NotRecognised, match="shapes do not fit") as e:
        detect(near, ALL.values(), given=told(name))
    # SigLIP 2 has the names of SigLIP: by a wrong shape alone it may be either.
    names = {*above(dialect, {d.name: d.under for d in ALL.values()}), dialect} | (
        {"hf-siglip"} if dialect == "hf-siglip2" else set()
    )
    assert any(f"closest: {name}" in str(e.value) for name in names)


def test_a_missing_layer_is_missing() -> None:
    _, _, shapes = read("timm-vit-base")
    hole = {k: s for k, s in shapes.items() if not k.startswith("blocks.5.")}
    with pytest.raises(NotRecognised, match=r"closest: timm.*\n  the layers blocks\.5 are not in the file"):
        found(hole)


def test_a_file_half_of_one_and_half_of_another_dialect_is_neither() -> None:
    _, _, timm = read("timm-tiny")
    _, _, vision = read("torchvision-tiny")
    half = {k: s for k, s in timm.items() if not k.startswith("blocks.1.")}
    half |= {k: s for k, s in vision.items() if ".encoder_layer_1." in k}
    with pytest.raises(NotRecognised) as e:
        found(half)
    assert "closest: timm" in str(e.value)
    assert "unknown here: encoder.layers.encoder_layer_1.ln_1.weight" in str(e.value)


def test_mha_names_in_timm_blocks_are_named() -> None:
    _, _, timm = read("timm-tiny")
    mixed = {k.replace("attn.qkv.weight", "attn.in_proj_weight"): s for k, s in timm.items()}
    with pytest.raises(NotRecognised) as e:
        found(mixed)
    assert "unknown here: blocks.{0..1}.attn.in_proj_weight" in str(e.value)
    assert "missing: blocks.{0..1}.attn.qkv.weight" in str(e.value)


def test_no_tensors_and_no_blocks_are_nothing() -> None:
    with pytest.raises(NotRecognised, match="holds no tensors"):
        found({})
    _, _, timm = read("timm-tiny")
    with pytest.raises(NotRecognised, match=r"missing: blocks\.0\."):
        found({k: s for k, s in timm.items() if not k.startswith("blocks.")})


@pytest.mark.parametrize("index", ["999999999", "9" * 5000, "٣"], ids=["far", "endless", "arabic"])
def test_a_wild_layer_number_is_unknown(index: str) -> None:
    _, _, timm = read("timm-tiny")
    with pytest.raises(NotRecognised, match="unknown here"):
        found(timm | {f"blocks.{index}.norm1.weight": (16,)})


def test_nine_rows_may_be_a_class_row_and_2x4_or_3x3_patches() -> None:
    _, _, timm = read("timm-tiny")
    shapes = timm | {"pos_embed": (1, 9, 16)}
    with pytest.raises(Ambiguous, match=r"position may be class\+patches or patches.*from\.position"):
        found(shapes)
    assert found(shapes, position="patches").sizes["n"] == 9
    assert detect(shapes, ALL.values(), facts={"grid": (2, 4)}).sizes["n"] == 8
