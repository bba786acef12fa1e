"""The clean networks that are spoiled, and which faults fit each."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vitconv.bench.mutate import Mutation, embed_and_head, plain
from vitconv.bench.mutate_block import in_blocks
from vitconv.bench.mutate_kinds import deepnorm, distilled, res_post
from vitconv.bench.mutate_more import every_kind
from vitconv.bench.mutate_norms import centred_norms, norm_forms
from vitconv.bench.mutate_numbers import numbers, numbers_ahead
from vitconv.bench.mutate_order import orders
from vitconv.bench.mutate_rotary import of_biases, of_turns
from vitconv.bench.mutate_shapes import reshaping
from vitconv.bench.mutate_slopes import slopes
from vitconv.bench.stage_networks import stage_mutations

_SMALL = {"img_size": 12, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}
DEEPNORM: Mapping[str, Any] = {
    "block_type": "encoder",
    "dim_model": 32,
    "num_layers": 4,
    "residual_norm_style": "deepnorm",
    "multi_head_config": {
        "num_heads": 4,
        "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 2},
}


def networks() -> dict[str, Callable[[], Any]]:
    """Return the networks to spoil, by name: makers, for each is large.

    token: LayerScale, the class token is pooled. average: registers, query and key norms, the mean is pooled. gated:
    SwiGLU. distilled: two tokens and heads, norms ahead of the blocks and in both branches. res-post: res-post-norm
    with RMS norms. deepnorm: xformers' factory. eva and rope: neighbours are turned, dinov3: halves of a head. beit:
    biases by relative position.
    """
    import timm
    from timm.layers import RmsNorm, SwiGLUPacked
    from timm.models.vision_transformer import ResPostBlock

    def make(model: str = "vit_tiny_patch16_224", **more: Any) -> Callable[[], Any]:
        def build() -> Any:
            torch.manual_seed(0)
            return timm.create_model(model, pretrained=False, **{**_SMALL, **more})

        return build

    average: dict[str, Any] = {"reg_tokens": 2, "no_embed_class": True, "global_pool": "avg", "qk_norm": True}
    gated: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU}
    norms: dict[str, Any] = {"pre_norm": True, "scale_attn_norm": True, "scale_mlp_norm": True}
    return {
        "token": make(init_values=0.3),
        "average": make(**average),
        "gated": make(**gated),
        "distilled": make("deit_tiny_distilled_patch16_224", **norms),
        "res-post": make(norm_layer=RmsNorm, block_fn=ResPostBlock),
        "deepnorm": _deepnorm,
        # Grids of 3 x 4 patches tell rows from columns; Beit's are square.
        "eva": make("eva02_base_patch14_224", img_size=(12, 16), ref_feat_shape=(3, 4)),
        "dinov3": make("vit_small_patch16_dinov3", img_size=(12, 16)),
        "rope": make("vit_base_patch16_rope_224", img_size=(12, 16)),
        "beit": make("beit_base_patch16_224"),
    }


def _deepnorm() -> Any:
    from vitconv.hosts.base.host import Spec
    from vitconv.hosts.xformers_style import HOST

    torch.manual_seed(0)
    options = {"config": DEEPNORM, "release": "0.0.22", "image": 12, "patch": 4, "classes": 5}
    return HOST.build(Spec("", options)).module


def host_of(net: Any) -> Any:
    """Return the host that describes one of these networks."""
    from vitconv.hosts import timm, torchvision, transformers, xformers_style

    return next(h.HOST for h in (timm, xformers_style, torchvision, transformers) if h.HOST.accepts(net))


def mutations() -> list[Mutation]:
    """Return every single mutation, each fitting only the networks that it is written for."""
    of_plain = itertools.chain(
        embed_and_head(), in_blocks(), every_kind(), reshaping(), orders(), numbers(), norm_forms(), slopes()
    )
    of_distilled = itertools.chain(distilled(), norm_forms(("embed",)), numbers_ahead())
    kinds: tuple[tuple[Callable[[Any], bool], list[Mutation]], ...] = (
        (plain, [*of_plain]),
        (lambda net: type(net).__name__ == "VisionTransformerDistilled", [*of_distilled]),
        (lambda net: _blocks(net) == "ResPostBlock", [*res_post(), *centred_norms()]),
        (lambda net: type(net).__module__.startswith("vitconv."), [*deepnorm()]),
        (lambda net: type(net).__name__ in ("Eva", "Beit"), [*of_turns(), *of_biases()]),
        (lambda net: re.search("Swin|Pyramid|Pvt", type(net).__name__) is not None, stage_mutations()),
    )
    return [
        dataclasses.replace(m, fits=lambda net, fits=fits, m=m: fits(net) and m.fits(net))  # type: ignore[misc]
        for fits, many in kinds
        for m in many
    ]


def _blocks(net: Any) -> str | None:
    blocks = getattr(net, "blocks", None)
    return None if blocks is None else type(blocks[0]).__name__
