"""Every plain family of timm: built by name, described, and the same function as the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
from families_kit import gaps_to_reference, randomised

from vitconv.errors import Refused
from vitconv.hosts.base.host import Built, Spec
from vitconv.registry import HOSTS, load

_SMALL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 5,
}
_FLEXIBLE = {k: v for k, v in _SMALL.items() if k != "img_size"}
# {case: (entrypoint, arguments, facts that the case is about)}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "eva": ("eva_giant_patch14_224", _SMALL, {"position": "learned", "pooling": "avg"}),
    "eva02": (
        "eva02_base_patch14_224",
        {**_SMALL, "ref_feat_shape": (2, 2)},
        {"position": "rope", "rope_layout": "interleaved", "rope_reference": (2, 2), "activation": "silu"},
    ),
    "eva02, norms after": (
        "eva02_base_patch14_224",
        {**_SMALL, "use_post_norm": True, "scale_mlp": False},
        {"norm_placement": "res-post"},
    ),
    "dinov3": (
        "vit_small_patch16_dinov3",
        _SMALL,
        {"position": "rope", "rope_layout": "half", "rope_theta": 100.0, "norm_eps": 1e-5},
    ),
    "dinov3, gated": ("vit_huge_plus_patch16_dinov3_qkvb", _SMALL, {"activation": "silu", "norm_eps": 1e-5}),
    "beit": ("beit_base_patch16_224", _SMALL, {"position": "relative", "norm_eps": 1e-6}),
    "beit, one table": (
        "beitv2_base_patch16_224",
        {**_SMALL, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
        {"position": "relative"},
    ),
    "beit, positions": (
        "beit_base_patch16_224",
        {**_SMALL, "use_rel_pos_bias": False, "use_abs_pos_emb": True},
        {"position": "learned"},
    ),
    "siglip": ("vit_base_patch16_siglip_224", _SMALL, {"pooling": "map"}),
    "siglip, averaged": ("vit_base_patch16_siglip_gap_224", _SMALL, {"pooling": "avg"}),
    "clip": ("vit_base_patch32_clip_224", _SMALL, {"embed_norm_eps": 1e-5}),
    "clip, quick": ("vit_base_patch32_clip_quickgelu_224", _SMALL, {"activation": "quick_gelu"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {**_SMALL, "mlp_ratio": 2}, {"pooling": "token"}),
    "naflex": ("naflexvit_base_patch16_gap", _FLEXIBLE, {"pooling": "avg", "grid": (16, 16)}),
}


def built(case: str) -> Built:
    name, options, _ = CASES[case]
    found: Built = load(HOSTS, "timm").build(Spec(name, dict(options)))
    randomised(found.module)
    return found


@pytest.mark.parametrize("case", CASES)
def test_timm_computes_what_the_reference_does(case: str) -> None:
    found = built(case)
    known = found.facts.known()
    assert {k: known.get(k) for k in CASES[case][2]} == CASES[case][2]
    assert set(found.dialects) <= set(load(HOSTS, "timm").dialects)
    gaps = gaps_to_reference(found)
    assert max(gaps.values()) < 1e-10, max(gaps, key=lambda name: gaps[name])

    def another_eps(live: Built) -> None:
        norm: Any = next(m for n, m in live.module.named_modules() if n.endswith("blocks.1.norm2"))
        norm.eps = 1e-4

    assert max(gaps_to_reference(found, change=another_eps).values()) > 1e-8


def test_a_rotary_table_of_another_base_is_seen() -> None:
    def another_base(live: Built) -> None:
        net: Any = live.module
        net.rope.temperature = 50.0

    gaps = gaps_to_reference(built("dinov3"), change=another_base)
    assert gaps["tap embed"] < 1e-12
    assert gaps["tap blocks.0.attn"] > 1e-6


@pytest.mark.parametrize(
    ("name", "why"),
    [("vit_base_patch16_rope_224", "numbered xy from 0"), ("vit_base_patch16_rope_mixed_224", "RotaryEmbeddingMixed")],
)
def test_rotary_positions_without_a_counterpart_are_refused(name: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        load(HOSTS, "timm").build(Spec(name, _SMALL))
