"""Every scheme on every parameter: its draws have the declared distribution, and a fault in one is seen."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from vitconv.errors import Refused
from vitconv.inits.audit.conform import conforms
from vitconv.inits.audit.measure import measure
from vitconv.inits.base.architecture import PLACEMENTS, Architecture
from vitconv.inits.base.deepnet import alpha, beta, bound
from vitconv.inits.base.draw import draw
from vitconv.inits.base.scheme import Scheme
from vitconv.layout.canonical import SCHEMA
from vitconv.registry import INITS, load_all

SCHEMES: dict[str, Scheme] = load_all(INITS, plugins=False)
Make = Callable[..., Architecture]


def fitting(scheme: Scheme, make: Make) -> Architecture:
    """Return a network the scheme is for."""
    for placement in ("pre", "deepnorm", "res-post", "none"):
        arch = make(norm=placement, layer_scale="true", sub_norm="true")
        try:
            scheme.check(arch)
        except Refused:
            continue
        return arch
    raise AssertionError(scheme.name)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_every_parameter_has_the_declared_distribution(scheme: Scheme, make: Make) -> None:
    arch = fitting(scheme, make)
    declared = scheme.declared(arch)
    found = {name: conforms(measure(name, t), declared[name]) for name, t in draw(arch, scheme, 11).items()}
    assert {name: f.text for name, f in found.items() if not f.good} == {}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_std_that_is_a_tenth_off_is_seen(scheme: Scheme, make: Make) -> None:
    arch = fitting(scheme, make)
    declared = scheme.declared(arch)
    drawn = draw(arch, scheme, 11)
    matrices = [n for n, t in drawn.items() if t.dim() == 2 and t.numel() > 4096 and not declared[n].exact]
    assert len(matrices) > 10
    assert [n for n in matrices if conforms(measure(n, drawn[n] * 1.1), declared[n]).good] == []


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_scheme_speaks_of_every_canonical_tensor(scheme: Scheme, make: Make) -> None:
    arch = fitting(scheme, make)
    sizes = {
        "d": 192,
        "a": 192,
        "d2": 192,
        "m": 768,
        "e": 64,
        "h": 3,
        "n": 196,
        "r": 4,
        "c": 3,
        "p": 16,
        "q": 16,
        "o": 10,
        "l": 732,
        "3": 3,
        "f": 16,
        "u": 192,
        "w": 768,
        "s": 8192,
        "y": 128,
        "g": 128,
        "x": 512,
        "z": 768,
        "rows": 14,
        "columns": 14,
        "k": 256,
        "v": 192,
        "v2": 192,
        "f2": 8,
        "d3": 576,
    }
    shapes = {
        name.replace("{i}", "0"): tuple(int(a) if a.isdecimal() else sizes[a] for a in slot.axes)
        for name, slot in SCHEMA.items()
    }
    declared = scheme.declared(Architecture({**arch.shapes, **shapes}, arch.facts))
    assert len(declared) >= len(SCHEMA)
    assert scheme.source
    assert scheme.title


# (scheme, placement, beginning of the level): the matrix of init and block.
MATRIX = [
    ("timm", "pre", "ok"), ("timm", "post", "warn"), ("timm", "deepnorm", "warn"), ("timm", "res-post", "warn"),
    ("timm", "none", "refuse"), ("gpt2", "pre", "ok"), ("gpt2", "deepnorm", "refuse"), ("beit", "res-post", "refuse"),
    ("deepnorm", "pre", "refuse"), ("deepnorm", "post", "refuse"), ("deepnorm", "res-post", "refuse"),
    ("deepnorm", "deepnorm", "ok"), ("small-gain", "pre", "refuse"), ("small-gain", "post", "refuse"),
    ("small-gain", "deepnorm", "refuse"), ("small-gain", "res-post", "ok"), ("layer-scale", "post", "refuse"),
    ("layer-scale", "pre", "ok"), ("t-fixup", "pre", "refuse"), ("rezero", "none", "ok"), ("t-fixup", "none", "ok"),
    ("sub-ln", "deepnorm", "refuse"), ("sub-ln", "pre", "ok"), ("xformers-vit", "res-post", "refuse"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "placement", "level"), MATRIX, ids=lambda x: x)
def test_which_init_goes_with_which_block(name: str, placement: str, level: str, make: Make) -> None:
    arch = make(norm=placement, layer_scale="true", sub_norm="true")
    if level == "refuse":
        with pytest.raises(Refused, match="does not fit this network"):
            SCHEMES[name].check(arch)
        return
    notes = SCHEMES[name].check(arch)
    assert any(n.startswith(f"norms {placement}") for n in notes) == (level == "warn")


def test_refusals_offer_the_change(make: Make) -> None:
    with pytest.raises(Refused, match="--set norm=deepnorm changes the network so"):
        SCHEMES["deepnorm"].check(make())
    with pytest.raises(Refused, match="--set layer_scale=true"):
        SCHEMES["layer-scale"].check(make())
    with pytest.raises(Refused, match="--set sub_norm=true"):
        SCHEMES["sub-ln"].check(make())
    with pytest.raises(Refused, match="alpha"):
        SCHEMES["deepnorm"].check(make(norm="deepnorm").with_facts(residual_alpha=1.3))


def test_an_unknown_placement_is_refused_where_it_matters(make: Make) -> None:
    arch = make().with_facts(norm_placement=None)
    with pytest.raises(Refused, match="--set norm_placement=deepnorm"):
        SCHEMES["deepnorm"].check(arch)
    with pytest.raises(Refused, match="unknown"):
        SCHEMES["gpt2"].check(arch)
    assert set(PLACEMENTS) >= set(SCHEMES["deepnorm"].fits)


@pytest.mark.parametrize(
    ("depth", "a", "b", "no_beta", "no_alpha"),
    [(6, 1.8612, 0.3799, 6.93, 3.46), (12, 2.2134, 0.3195, 9.80, 4.90),
     (24, 2.6321, 0.2686, 13.86, 6.93), (48, 3.1302, 0.2259, 19.60, 9.80)],
    ids=["6", "12", "24", "48"],
)  # fmt: skip
def test_deepnet_constants_and_bound(
    depth: int, a: float, b: float, no_beta: float, no_alpha: float, make: Make
) -> None:
    assert alpha(depth) == pytest.approx(a, abs=5e-5)
    assert beta(depth) == pytest.approx(b, abs=5e-5)
    arch = make(norm="deepnorm", depth=str(depth))
    right = {n: d.std for n, d in SCHEMES["deepnorm"].declared(arch).items()}
    flat = {n: d.std for n, d in SCHEMES["jax"].declared(arch).items()}
    assert bound(arch, right) == pytest.approx(1.0, rel=1e-9)
    assert bound(arch, flat) == pytest.approx(no_beta, abs=0.01)
    assert bound(arch.with_facts(residual_alpha=1.0), right) == pytest.approx(no_alpha, abs=0.01)
    assert bound(make(depth=str(depth)), right) is None


@pytest.mark.parametrize(
    ("depth", "value"), [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6)], ids=["12", "18", "24", "36"]
)
def test_layer_scale_by_depth(depth: int, value: float, make: Make) -> None:
    declared = SCHEMES["layer-scale"].declared(make(depth=str(depth), layer_scale="true"))
    assert declared["blocks.0.ls1"].centre == value


def test_depth_rules(make: Make) -> None:
    arch = make(depth="4")
    beit, gpt2 = SCHEMES["beit"].declared(arch), SCHEMES["gpt2"].declared(arch)
    stds = [beit[f"blocks.{i}.attn.out.weight"].std for i in range(4)]
    assert stds == pytest.approx([0.01414, 0.0100, 0.00816, 0.00707], abs=1e-5)
    assert gpt2["blocks.3.mlp.down.weight"].std == pytest.approx(0.02 / math.sqrt(8))
    sub = SCHEMES["sub-ln"].declared(make(depth="12", sub_norm="true"))
    assert sub["blocks.0.attn.v.weight"].std == pytest.approx(1.7827 * 192**-0.5, rel=1e-4)
    assert sub["blocks.0.attn.q.weight"].std == pytest.approx(192**-0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("scheme", "norm", "q", "v", "out", "up"),
    [
        ("xformers-0-0-8", "pre", 0.0510, 0.0510, 0.0417, 0.0417),
        ("xformers-0-0-9", "pre", 0.0361, 0.0361, 0.0417, 0.0417),
        ("xformers-0-0-11", "pre", 0.0510, 0.0510, 0.0417, 0.0417),
        ("xformers-0-0-9", "deepnorm", 0.0510, 0.0510, 0.0231, 0.0146),
        ("xformers-0-0-11", "deepnorm", 0.0722, 0.0231, 0.0231, 0.0146),
        ("xformers-vit", "deepnorm", 0.0231, 0.0231, 0.0231, 0.0146),
        ("xformers-vit-paper", "deepnorm", 0.0722, 0.0231, 0.0231, 0.0146),
        ("xformers-timm", "pre", 0.0163, 0.0163, 0.0163, 0.0163),
        ("xformers-timm-paper", "pre", 0.02, 0.02, 0.02, 0.02),
        ("xformers-timm", "deepnorm", 0.0052, 0.0052, 0.0052, 0.0052),
        ("xformers-small", "pre", 0.0457, 0.0457, 0.0457, 0.0456),
        ("xformers-small", "deepnorm", 0.0146, 0.0146, 0.0146, 0.0146),
    ],
)
def test_measured_stds_of_xformers_by_release(
    scheme: str, norm: str, q: float, v: float, out: float, up: float, make: Make
) -> None:
    declared = SCHEMES[scheme].declared(make(norm=norm, depth="12"))
    stds = [declared[f"blocks.5.{part}.weight"].std for part in ("attn.q", "attn.v", "attn.out", "mlp.up")]
    assert stds == pytest.approx([q, v, out, up], abs=6e-5)


@pytest.mark.parametrize(
    ("release", "std"), [("0.0.9", 0.01804), ("0.0.11", 0.02551), ("0.0.12", 0.02)], ids=["0.0.9", "0.0.11", "0.0.12"]
)
def test_what_the_first_report_really_got(release: str, std: float, make: Make) -> None:
    arch = make("vit_base", depth="1").with_facts(release=release)
    assert SCHEMES["first-report"].declared(arch)["blocks.0.attn.q.weight"].std == pytest.approx(std, abs=1e-5)
