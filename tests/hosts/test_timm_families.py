"""Every plain family of timm: built by name, described, and the same function as the reference in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
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
    "rope": (
        "vit_base_patch16_rope_224",
        _SMALL,
        {"position": "rope", "rope_order": "columns", "rope_theta": 100.0, "rope_reference": None},
    ),
    "rope beside a table": (
        "vit_base_patch16_rope_ape_224",
        {**_SMALL, "img_size": (16, 24)},
        {"position": "rope", "rope_order": "columns", "grid": (4, 6)},
    ),
    "rope, trained": ("vit_base_patch16_rope_mixed_224", {**_SMALL, "img_size": (24, 16)}, {"position": "rope"}),
    "rope, trained, beside a table": (
        "vit_base_patch16_rope_mixed_ape_224",
        _SMALL,
        {"rope_order": "columns", "rope_layout": "interleaved"},
    ),
    "rope, rows first": (
        "vit_base_patch16_rope_mixed_224",
        {**_SMALL, "rope_grid_indexing": "ij"},
        {"rope_order": "rows"},
    ),
    "rope, a grid that is no square": (
        "vit_medium_patch16_rope_reg1_gap_256",
        {**_SMALL, "ref_feat_shape": (4, 6)},
        {"rope_reference": (4, 6), "rope_order": "rows"},
    ),
    "perception encoder": (
        "vit_pe_core_tiny_patch16_384",
        {**_SMALL, "img_size": (16, 24), "ref_feat_shape": (6, 4)},
        {"pooling": "map-prefix", "pool_heads": 8, "rope_offset": 1.0, "rope_reference": (6, 4)},
    ),
    "perception encoder, no class token": (
        "vit_pe_core_gigantic_patch14_448",
        {**_SMALL, "attn_pool_num_heads": 4},
        {"pooling": "map", "pool_heads": None, "rope_offset": 0.0},
    ),
    "perception encoder, spatial": ("vit_pe_spatial_tiny_patch16_512", _SMALL, {"rope_order": "columns"}),
    "pooled with the registers": ("test_vit3", _SMALL, {"pooling": "map-prefix"}),
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


def _another_base(live: Built) -> None:
    net: Any = live.module
    net.rope.temperature = 50.0


def _other_side_first(live: Built) -> None:
    net: Any = live.module
    net.rope.grid_indexing = "ij"


def _another_start(live: Built) -> None:
    net: Any = live.module
    net.rope.grid_offset = 0.0


def _another_head(live: Built) -> None:
    net: Any = live.module
    with torch.no_grad():
        net.rope.freqs.copy_(net.rope.freqs.flip(2))


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("dinov3", _another_base),
        ("rope", _another_base),
        ("rope", _other_side_first),
        ("rope beside a table", _other_side_first),
        ("rope, trained", _another_head),
        ("perception encoder", _another_start),
    ],
    ids=["base, DINOv3", "base", "side", "side, with a table", "heads", "start"],
)
def test_a_rotary_table_of_another_kind_is_seen(case: str, fault: Callable[[Built], None]) -> None:
    gaps = gaps_to_reference(built(case), change=fault)
    assert gaps["tap embed"] < 1e-12
    assert gaps["tap blocks.0.attn"] > 1e-6


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vit_small_patch16_dinov3", "numbered xy from 0"),
        ("vit_base_patch16_rope_reg1_gap_256", "RotaryEmbeddingMRope"),
        ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),
        ("vit_base_patch16_xp_224", "ParallelScalingBlock"),
    ],
)
def test_what_has_no_counterpart_is_refused(name: str, why: str) -> None:
    more = {
        "vit_small_patch16_dinov3": {"rope_grid_indexing": "xy"},
        "vit_base_patch16_rope_reg1_gap_256": {"rope_type": "mrope"},
    }
    with pytest.raises(Refused, match=why):
        load(HOSTS, "timm").build(Spec(name, {**_SMALL, **more.get(name, {})}))
