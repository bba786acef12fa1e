"""The state dict of a host's network is in the dialect it names, and with its facts builds the reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vitconv.hosts.base.host import Spec
from vitconv.layout.detect import detect
from vitconv.layout.network import decode
from vitconv.registry import DIALECTS, HOSTS, load, load_all
from vitconv.vit.xformers_style.release import release

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SMALL_HF = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
SMALL_TIMM = {"depth": 2, "embed_dim": 32, "num_heads": 4, "num_classes": 5}
STACK: dict[str, Any] = {
    "block_type": "encoder",
    "dim_model": 32,
    "num_layers": 2,
    "multi_head_config": {
        "num_heads": 4,
        "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 2},
}


def stack(release_name: str, style: str, mlp: str = "MLP") -> dict[str, Any]:
    config = copy.deepcopy(STACK)
    config[release(release_name).style_key] = style
    config["feedforward_config"]["name"] = mlp
    return {"config": config, "release": release_name, "triton": True}


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "timm": ("timm", "vit_small_patch16_224", SMALL_TIMM),
    "timm, averaged": ("timm", "vit_small_patch16_224", {**SMALL_TIMM, "global_pool": "avg"}),
    "timm, registers": ("timm", "vit_betwixt_patch16_reg1_gap_256", {"depth": 1}),
    "timm, distilled": ("timm", "deit_tiny_distilled_patch16_224", {"depth": 1}),
    "timm, norm before the blocks": ("timm", "vit_base_patch32_clip_224", SMALL_TIMM),
    "timm, NaFlex": ("timm", "naflexvit_base_patch16_gap", {"depth": 1, "embed_dim": 32, "num_heads": 4}),
    "timm, NaFlex, positions of rows and columns": (
        "timm",
        "naflexvit_base_patch16_parfac_gap",
        {"depth": 1, "embed_dim": 32, "num_heads": 4},
    ),
    "timm, a classic name as NaFlex": ("timm", "vit_small_patch16_224", {**SMALL_TIMM, "use_naflex": True}),
    "torchvision": (
        "torchvision",
        "VisionTransformer",
        {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64},
    ),
    "transformers ViT": ("transformers", "vit", SMALL_HF),
    "transformers ViT, pooler": ("transformers", "vit", {**SMALL_HF, "class": "ViTModel"}),
    "transformers DeiT": ("transformers", "deit", SMALL_HF),
    "transformers DeiT, two heads": (
        "transformers",
        "deit",
        {**SMALL_HF, "class": "DeiTForImageClassificationWithTeacher"},
    ),
    "xformers": ("xformers", "", {"config": [{**STACK, "residual_norm_style": "pre"}]}),
    "xformers-style 0.0.9 pre": ("xformers-style", "", stack("0.0.9", "pre")),
    "xformers-style 0.0.10 deepnorm": ("xformers-style", "", stack("0.0.10", "deepnorm", "FusedMLP")),
    "xformers-style 0.0.22 post, fused": ("xformers-style", "", stack("0.0.22", "post", "FusedMLP")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_state_dict_is_in_the_named_dialect_and_builds_the_reference(case):
    name, model, options = CASES[case]
    host = load(HOSTS, name)
    if (reason := host.why_not()) is not None:
        pytest.skip(reason)
    built = host.build(Spec(model, copy.deepcopy(options)))
    state = built.module.state_dict()
    known = built.facts
    # The sides of patches that are kept as rows follow from the image and the grid.
    pair = (known.image_size, known.grid)
    sides = {x: n // g for x, n, g in zip("pq", *pair, strict=True)} if None not in pair else {}
    match = detect(
        {k: tuple(v.shape) for k, v in state.items()}, load_all(DIALECTS).values(), given=sides, facts=known.known()
    )
    assert match.dialect.name in built.dialects
    assert match.dialect.name in host.dialects
    network = decode(match, dict.fromkeys(state, "F32"), built.facts)
    shapes = {cell: c.shape for cell, c in network.cells.items()}
    reference = load(HOSTS, "reference").build(Spec("", {}, network.facts, shapes))
    assert reference.facts.differences(built.facts) == {}
    assert set(built.taps) <= set(reference.taps) | {"norm"}
