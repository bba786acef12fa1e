"""open_clip's own vision towers: built by name or configuration, and the same function as the reference in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families_kit import gaps_to_reference, randomised
from safetensors.torch import save_file

import vitconv
from vitconv.errors import Refused, UsageError
from vitconv.hosts.base.host import Built, Spec
from vitconv.registry import HOSTS, load

pytest.importorskip("open_clip", reason="open_clip_torch is not installed")

_SMALL: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "head_width": 8,
    "patch_size": 4,
    "image_size": 16,
    "mlp_ratio": 2,
    "embed_dim": 12,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("ViT-B-32", {}, {"activation": "gelu", "pooling": "token", "norm_eps": 1e-5}),
    "quick": ("ViT-B-32-quickgelu", {}, {"activation": "quick_gelu"}),
    "eps": ("ViT-B-32", {"norm_kwargs": {"eps": 1e-6}}, {"norm_eps": 1e-6, "embed_norm_eps": 1e-6}),
    "averaged": ("ViT-B-32", {"pool_type": "avg"}, {"pooling": "avg"}),
    "averaged, then normed": ("ViT-B-32", {"pool_type": "avg", "final_ln_after_pool": True}, {"pooling": "avg"}),
    "token, then normed": ("ViT-B-32", {"final_ln_after_pool": True}, {"pooling": "token"}),
    "scaled": ("ViT-B-32", {"ls_init_value": 0.1}, {"pooling": "token"}),
    "query norms": ("ViT-B-32", {"qk_norm": True, "scale_attn_inner": True, "scale_fc": True}, {"qk_norm_eps": 1e-5}),
}
_POOLER = {"attentional_pool": True, "attn_pooler_heads": 3}
CASES |= {
    "coca": ("ViT-B-32", {**_POOLER, "attn_pooler_queries": 5}, {"pooling": "token", "pool_heads": 3}),
    "coca, averaged": ("ViT-B-32", {**_POOLER, "pool_type": "avg"}, {"pooling": "avg", "pool_heads": 3}),
    "coca, as wide as the network": (
        "ViT-B-32",
        {**_POOLER, "attn_pooler_heads": 8, "embed_dim": 32},
        {"pooling": "token", "pool_heads": 8},
    ),
}


def built(case: str) -> Built:
    name, more, _ = CASES[case]
    found: Built = load(HOSTS, "open-clip").build(Spec(name, {**_SMALL, **more}))
    randomised(found.module)
    return found


@pytest.mark.parametrize("case", CASES)
def test_open_clip_computes_what_the_reference_does(case: str) -> None:
    found = built(case)
    known = found.facts.known()
    assert {k: known.get(k) for k in CASES[case][2]} == CASES[case][2]
    assert (known["heads"], known["grid"]) == (4, (4, 4))
    gaps = gaps_to_reference(found)
    assert max(gaps.values()) < 1e-10, max(gaps, key=lambda name: gaps[name])

    def another_eps(live: Built) -> None:
        net: Any = live.module
        net.transformer.resblocks[1].ln_2.eps = 1e-3

    assert max(gaps_to_reference(found, change=another_eps).values()) > 1e-8


@pytest.mark.parametrize("case", CASES)
def test_load_fills_it(case: str, tmp_path: Path) -> None:
    found = built(case)
    save_file({k: v.contiguous() for k, v in found.module.state_dict().items()}, tmp_path / "w.safetensors")
    facts = {k: v for k, v in found.facts.known().items() if v is not None}
    module = vitconv.load(tmp_path / "w.safetensors", "auto", facts=facts)
    assert type(module).__module__ == "open_clip.transformer"
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    if case != "averaged, then normed":
        # Which of the two orders it is no key tells; the configuration does, and a bare file has none.
        with torch.no_grad():
            assert torch.allclose(module.double()(x), found.module.double()(x), rtol=0, atol=1e-10)


def test_a_folder_with_its_configuration(tmp_path: Path) -> None:
    vision = {k: v for k, v in _SMALL.items() if k != "embed_dim"}
    config = {"model_cfg": {"embed_dim": 12, "vision_cfg": vision, "quick_gelu": True, "text_cfg": {}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    found = load(HOSTS, "open-clip").build(Spec(str(tmp_path)))
    assert found.facts.activation == "quick_gelu"
    assert found(torch.randn(1, 3, 16, 16)).shape == (1, 12)


def test_what_is_refused() -> None:
    host = load(HOSTS, "open-clip")
    with pytest.raises(UsageError, match="open_clip has no model 'ViT-hugo'"):
        host.build(Spec("ViT-hugo"))
    with pytest.raises(UsageError, match="cannot build 'ViT-B-32' with these arguments"):
        host.build(Spec("ViT-B-32", {"hugo": 1}))
    with pytest.raises(Refused, match="two attentional poolers"):
        host.build(Spec("ViT-B-32", {**_SMALL, "attentional_pool": "parallel", "attn_pooler_heads": 3}))
    with pytest.raises(Refused, match="use host timm"):
        host.build(Spec("ViT-B-16-SigLIP"))
    with pytest.raises(Refused, match="ModifiedResNet"):
        host.build(Spec("RN50"))
