"""The laws of layouts of stages: written and read bit by bit, adjoint, found as themselves, there and back in pairs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitconv.conversion.translate import translate
from vitconv.errors import NotRecognised, Refused, VitconvError
from vitconv.layout.buffers import buffer
from vitconv.layout.canonical_stages import SCHEMA, stage_template_of
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect, Item, Variant
from vitconv.layout.rule import Const, Part, Rule
from vitconv.layout.shape import atoms, shape_of
from vitconv.layout.stages import PER_BLOCK, unrolled_for_network
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
STAGED = {name: d for name, d in ALL.items() if d.staged}
Tensors = dict[str, np.ndarray]
WINDOW, PATCH = 2, 2
V1 = ("swin", "timm-swin", "hf-swin", "hf-swin-5", "torchvision-swin", "mmpretrain-swin")
V2 = ("swinv2", "timm-swinv2", "hf-swinv2", "torchvision-swinv2")
each = pytest.mark.parametrize("name", STAGED)


@dataclass(frozen=True)
class Case:
    """A drawn network: its file in one variant, the same in canonical names, and what is known beside it."""

    name: str
    choices: dict[str, str]
    file: Tensors
    canonical: Tensors
    facts: dict[str, Any]


def drawn(forge: SimpleNamespace, name: str, seed: int, dialect: Dialect | None = None) -> Case:
    """Return a random network that the dialect can hold: stages, blocks and their kinds, optional tensors, bits."""
    random, rng = Random(seed), np.random.default_rng(seed)
    depths = tuple(random.randint(1, 3) for _ in range(random.randint(2, 3)))
    side = WINDOW * 2 ** len(depths)
    facts = {"window": (WINDOW,), "pretrained_window": (0,), "image_size": (side * PATCH, side * PATCH)}
    variant = random.choice(_unrolled(random, dialect or STAGED[name], depths, facts).variants)
    env = _sizes(random, variant, len(depths))
    canonical: Tensors = {}
    file: Tensors = {}
    for item in _present(random, variant):
        rule = item.entry
        assert isinstance(rule, Rule)
        for part, p in zip(item.parts, rule.parts, strict=True):
            assert part not in canonical, f"{part} is held twice"
            canonical[part] = forge.bits(rng, shape_of(p.axes, env), "F64").view("f8")
        assert item.key not in file, f"{item.key} is written twice"
        file[item.key] = forge.whole_of(rule, [canonical[p] for p in item.parts], env)
    for item in variant.items:
        if isinstance(item.entry, Const) and item.entry.written:
            file[item.key] = buffer(str(item.entry.value), shape_of(item.entry.axes, {}))
    told = {k: v[0] if isinstance(v, tuple) else v for k, v in variant.implies.items()}
    return Case(name, variant.names, file, canonical, {**facts, **told})


def _unrolled(random: Random, dialect: Dialect, depths: tuple[int, ...], facts: dict[str, Any]) -> Dialect:
    """Return the dialect for a network of these depths, the kind of every block drawn."""
    proofs = [o.needs[0] for c in dialect.choices if c.name == PER_BLOCK for o in c.options if o.needs]
    shapes: dict[str, tuple[int, ...]] = {"embed.patch.weight": (1, 3, PATCH, PATCH)}
    for s, depth in enumerate(depths):
        for i in range(depth):
            shapes[f"stages.{s}.blocks.{i}.norm1.weight"] = (1,)
            # At least one block is of the first kind: without any the file may be of another layout.
            if proofs and (random.random() < 0.5 or (s, i) == (0, 0)):
                shapes[proofs[0].replace("{s}", str(s)).replace("{i}", str(i))] = (1,)
    return unrolled_for_network(dialect, shapes, facts)


def _present(random: Random, variant: Variant) -> list[Item]:
    on: dict[str, bool] = {}
    rules = [x for x in variant.items if isinstance(x.entry, Rule)]
    return [x for x in rules if not x.optional or on.setdefault(x.group, random.random() < 0.5)]


def _sizes(random: Random, variant: Variant, stages: int) -> dict[str, int]:
    rules = [x.entry for x in variant.items if isinstance(x.entry, Rule)]
    names = {a for r in rules for p in r.parts for a in atoms(p.axes) if not a.isdigit()}
    env = {a: random.randint(1, 3) for a in sorted(names)}
    for a in names:
        if a[0] in "uvwxyjlrz":
            env[a] = 3
        env[a] = {"u": WINDOW**2, "t": (2 * WINDOW - 1) ** 2, "p": PATCH, "q": PATCH}.get(a[0], env[a])
    for s in range(stages):
        h, e = random.randint(1, 3), random.randint(1, 3)
        env |= {f"h_{s}": h, f"e_{s}": e, f"a_{s}": h * e, f"d_{s}": h * e, f"f_{s}": h * e}
    return env


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a)


def is_buffer(key: str) -> bool:
    return key.endswith(("relative_position_index", "relative_coords_table", "attn_mask"))


def bare(file: Tensors) -> Tensors:
    return {k: v for k, v in file.items() if not is_buffer(k)}


def check(case: Case) -> None:
    """Check both directions of a dialect against what the notation says."""
    there = translate(case.canonical, "canonical-stages", case.name, facts=case.facts, choices=case.choices)
    assert same(bare(there), bare(case.file))
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in case.file.items()}
    back = translate(case.file, case.name, "canonical-stages", facts=case.facts)
    assert same(back, case.canonical)


@each
@pytest.mark.parametrize("seed", range(3))
def test_a_network_survives_bit_by_bit(forge: SimpleNamespace, name: str, seed: int) -> None:
    check(drawn(forge, name, seed))


@each
def test_decoding_is_the_adjoint_of_encoding(forge: SimpleNamespace, name: str) -> None:
    case, rng = drawn(forge, name, 1), np.random.default_rng(1)
    x = {n: rng.integers(-99, 99, v.shape).astype("f8") for n, v in case.canonical.items()}
    y = {k: rng.integers(-99, 99, v.shape).astype("f8") for k, v in bare(case.file).items()}
    there = translate(x, "canonical-stages", name, "gradients", facts=case.facts, choices=case.choices)
    back = translate(y, name, "canonical-stages", "gradients", facts=case.facts)
    assert sum(float((there[k] * y[k]).sum()) for k in y) == sum(float((x[n] * back[n]).sum()) for n in x)


@each
def test_the_keys_of_a_dialect_are_its_own(forge: SimpleNamespace, name: str) -> None:
    for seed in range(4):
        case = drawn(forge, name, seed)
        shapes = {k: v.shape for k, v in case.file.items()}
        m = detect(shapes, ALL.values())
        assert (m.dialect.name, m.variant.names) == (name, case.choices)
        assert {b.key for b in m.bound} | set(m.consts) == set(shapes)


@each
def test_a_file_with_a_tensor_too_many_or_too_few_is_not_taken(forge: SimpleNamespace, name: str) -> None:
    case = drawn(forge, name, 2)
    shapes = {k: v.shape for k, v in case.file.items()}
    with pytest.raises(VitconvError, match=r"surplus\.weight"):
        detect({**shapes, "surplus.weight": (3, 1)}, [STAGED[name]])
    m = detect(shapes, [STAGED[name]])
    needed = next(b.key for b in m.bound if not b.rule.optional)
    with pytest.raises(VitconvError, match=r"missing|unknown here"):
        detect({k: s for k, s in shapes.items() if k != needed}, [STAGED[name]])


def keyless(case: Case) -> Case:
    """Return the case with the key biases of Swin V2 zero, as training leaves them in the one layout that has them."""
    if case.name == "torchvision-swinv2":
        for key, x in case.file.items():
            if key.endswith("qkv.bias"):
                x[x.size // 3 : 2 * x.size // 3] = 0.0
    return case


def test_a_key_bias_that_is_not_zero_is_no_part_of_swin_v2(forge: SimpleNamespace) -> None:
    case = next(
        c for c in (drawn(forge, "torchvision-swinv2", s) for s in range(9)) if "features.1.0.attn.qkv.bias" in c.file
    )
    with pytest.raises(Refused, match=r"attn\.k\.bias"):
        translate(case.file, case.name, "timm-swinv2", facts=case.facts)


PAIRS = [pair for group in (V1, V2) for pair in itertools.permutations(group, 2)]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=["-".join(p) for p in PAIRS])
def test_there_and_back(forge: SimpleNamespace, a: str, b: str) -> None:
    exact = 0
    for seed in range(9):
        case = keyless(drawn(forge, a, seed))
        said = ""
        try:
            there = translate(case.file, a, b, facts=case.facts)
        except Refused as e:
            said = str(e)
        if said:
            # The target has no place for a tensor, or asks for one that is lacking: said by name.
            assert re.search(r"has no place for \S|lacking: \S", said)
            continue
        back = translate(there, b, a, facts=case.facts, choices=case.choices)
        assert same(bare(back), bare(case.file))
        exact += 1
        if exact == 2:
            break
    assert exact


@each
def test_every_part_is_canonical_and_has_its_axes(name: str) -> None:
    for variant in STAGED[name].variants:
        for item in (x for x in variant.items if isinstance(x.entry, Rule)):
            for part, p in zip(item.parts, item.entry.parts, strict=True):
                assert len(p.axes) == len(SCHEMA[part].axes), f"{item.key}: rank of {part}"


@each
def test_every_tensor_without_a_place_has_a_reason(name: str) -> None:
    dialect = STAGED[name]
    said = {p for v in dialect.variants for x in v.items for p in x.parts}
    nowhere = [n for n in SCHEMA if n not in said and n not in dialect.derived]
    assert [n for n in nowhere if not any(re.search(p, n) for p in dialect.cannot)] == []


def test_a_planted_fault_is_found(forge: SimpleNamespace) -> None:
    """Two neighbours of the merging changed places: same keys, same shapes, other bits."""

    def swapped(r: Any) -> Any:
        if not isinstance(r, Rule) or "h0w0" not in r.parts[0].key:
            return r
        order = (r.parts[0], r.parts[2], r.parts[1], r.parts[3])
        return dataclasses.replace(r, parts=tuple(Part(p.key, p.axes) for p in order))

    wrong = dataclasses.replace(STAGED["swin"], entries=tuple(map(swapped, STAGED["swin"].entries)))
    with pytest.raises(AssertionError):
        check(drawn(forge, "swin", 0, wrong))


def test_families_do_not_mix() -> None:
    plain = {"blocks.0.attn.q.weight": np.zeros((2, 2))}
    with pytest.raises(NotRecognised):
        translate(plain, "timm-swin", "swin")


def test_a_template_has_stage_and_block() -> None:
    assert stage_template_of("stages.1.blocks.10.attn.q.weight") == "stages.{s}.blocks.{i}.attn.q.weight"
    assert stage_template_of("stages.1.merge.h0w0.weight") == "stages.{s}.merge.h0w0.weight"
    assert stage_template_of("norm.weight") == "norm.weight"
