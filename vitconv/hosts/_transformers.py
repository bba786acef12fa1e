"""The plain vision families of transformers, one row each: their classes, where their parts stand, how they run.

Source: huggingface/transformers, src/transformers/models/*/modeling_*.py, 4.57 (`encoder.layer`, attention in two
modules, the residual added inside `output`) and 5.x (`layers`); 5.24.0 for what a class gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.errors import Refused
from vitconv.hosts.base.places import Table
from vitconv.hosts.base.wide import Rebuild

Run = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Family:
    """One model type.

    Attributes:
        dialects: the layouts its networks can be in, those of version 5 first.
        classes: the classes that are known, the usual one first.
        root: the name that the classes with a head have for the bare network, with its dot.
        pooling: what a live network gives, of its module.
        position: how positions enter.
        late_norm: the final norm sees what was pooled, not the stream.
        more: further facts, of its module.
        run: how it runs, where that is not by calling it.
        rebuild: makes anew the tables that it holds in float32 and does not store.
        notes: what the user should know, of its module.
        axes: sizes that its tensors do not say, of its module.
    """

    dialects: tuple[str, ...]
    classes: tuple[str, ...]
    pooling: Callable[[Any], str | None]
    root: str = ""
    position: str = "learned"
    late_norm: bool = False
    more: Callable[[Any], Mapping[str, Any]] = lambda _net: {}
    run: Run | None = None
    rebuild: Rebuild | None = None
    notes: Callable[[Any], tuple[str, ...]] = lambda _net: ()
    axes: Callable[[Any], Mapping[str, int]] = lambda _net: {}


def block(*names: str) -> tuple[str, ...]:
    """Return the paths of a part of a block, in every epoch, below the root."""
    stems = ("layers", "encoder.layer", "encoder.layers", "model.layer", "layer")
    return tuple(f"{stem}.{{i}}{name}" for name in names for stem in stems)


_TABLE: Table = {
    "blocks.{i}": block(""),
    "blocks.{i}.norm1": block(".layernorm_before", ".norm1", ".layer_norm1"),
    "blocks.{i}.attn": block(".attention", ".self_attn"),
    "blocks.{i}.norm2": block(".layernorm_after", ".norm2", ".layer_norm2"),
    # 4.x adds the residual inside `output`: the branch is what its dense layer gives.
    "blocks.{i}.mlp": block(".mlp", ".output.dense"),
    "blocks.{i}.mlp.act": block(
        ".mlp.activation_fn", ".mlp.activation", ".mlp.act_fn", ".intermediate.intermediate_act_fn"
    ),
    "embed.norm": ("pre_layrnorm",),
    "norm": ("layernorm", "norm", "post_layernorm"),
    "pool.norm": ("pooler.layernorm", "head.layernorm"),
    # What gives the pooled value; without one it is the input of the classifier.
    "pool": ("pooler", "head"),
}
# A norm of its own under the head of masked modelling comes after that of the trunk.
_TRUNK: Table = {"trunk_norm": ("beit.layernorm",)}
_HEADS: Table = {
    "head": ("classifier", "cls_classifier", "visual_projection"),
    "head_dist": ("distillation_classifier",),
}


def table(root: str) -> Table:
    """Return where the parts stand in the bare network and, with its root ahead, in the classes around it."""
    paths = {place: (*some, *(root + p for p in some)) for place, some in _TABLE.items()}
    return {**paths, **_TRUNK, **_HEADS}


# The user's own module may be any of them.
TABLE: Table = {
    **{place: tuple(r + p for p in some for r in ("", "vit.", "deit.", "dinov2.")) for place, some in _TABLE.items()},
    **_HEADS,
}


def _by_token(net: Any) -> str:
    headed = hasattr(net, "classifier") or hasattr(net, "cls_classifier") or getattr(net, "pooler", None) is not None
    return "token" if headed else "none"


def _dinov2(net: Any) -> str | None:
    # A classifier reads the class token beside the mean of the patches: no pooling of ours.
    return None if hasattr(net, "classifier") else "token"


def _beit(net: Any) -> str:
    pooler = getattr(getattr(net, "beit", net), "pooler", None)
    return "none" if pooler is None else "token" if pooler.layernorm is None else "avg"


def _ijepa(net: Any) -> str:
    return "avg" if hasattr(net, "classifier") else "none" if getattr(net, "pooler", None) is None else "token"


def _siglip(net: Any) -> str:
    return "map" if net.use_head else "none"


def _beit_position(net: Any) -> dict[str, Any]:
    config = net.config
    if config.use_relative_position_bias or config.use_shared_relative_position_bias:
        return {"position": "relative"}
    return {"position": "learned" if config.use_absolute_position_embeddings else "none"}


def _beit_notes(net: Any) -> tuple[str, ...]:
    config = net.config
    image, relative = config.image_size, config.use_relative_position_bias or config.use_shared_relative_position_bias
    if relative and isinstance(image, (tuple, list)) and image[0] != image[1]:
        return ("transformers exchanges the sides of BEiT's table of relative positions on a grid that is no square",)
    return ()


def _rope(net: Any) -> dict[str, Any]:
    parameters = getattr(net.config, "rope_parameters", None) or {}
    theta = parameters.get("rope_theta", getattr(net.config, "rope_theta", None))
    return {"rope_layout": "half", "rope_theta": None if theta is None else float(theta)}


def _rope_again(module: nn.Module) -> None:
    rope: Any = module.rope_embeddings
    rope.inv_freq = type(rope)(rope.config).inv_freq


def _whole_mae(module: nn.Module, images: Tensor) -> Tensor:
    """Run MAE's encoder on all patches in their order: no mask, no shuffling, and no decoder."""
    net: Any = getattr(module, "vit", module)
    side = net.config.patch_size
    p, q = (side, side) if isinstance(side, int) else side
    patches = images.shape[-2] // p * (images.shape[-1] // q)
    order = torch.arange(patches, device=images.device).expand(len(images), -1)
    with _masking(net.embeddings.config, 0.0):
        out = net(pixel_values=images, noise=order, **resized(net, images))
    return out.last_hidden_state


@contextmanager
def _masking(config: Any, ratio: float) -> Iterator[None]:
    usual, config.mask_ratio = config.mask_ratio, ratio
    try:
        yield
    finally:
        config.mask_ratio = usual


def _masked_beit(module: nn.Module, images: Tensor) -> Tensor:
    """Run BEiT; of the one for masked modelling give the stream ahead of its head, which sees the patches alone."""
    net: Any = module
    if not hasattr(net, "lm_head"):
        return run(module, images)
    return net.layernorm(net.beit(pixel_values=images, **resized(net, images)).last_hidden_state)


def _rows_of_patches(module: nn.Module, images: Tensor) -> Tensor:
    """Run SigLIP 2, which takes patches as rows, with all of them attended to."""
    net: Any = module
    p = net.config.patch_size
    b, _, height, width = images.shape
    grid = (height // p, width // p)
    rows = images.unflatten(3, (grid[1], p)).unflatten(2, (grid[0], p)).permute(0, 2, 4, 3, 5, 1).flatten(3)
    out = net(
        pixel_values=rows.flatten(1, 2),
        pixel_attention_mask=torch.ones(b, grid[0] * grid[1], dtype=torch.long, device=images.device),
        spatial_shapes=torch.tensor([grid] * b, device=images.device),
    )
    return out.last_hidden_state if out.pooler_output is None else out.pooler_output


def _patch(net: Any) -> dict[str, int]:
    return {"p": net.config.patch_size, "q": net.config.patch_size}


def resized(net: Any, images: Tensor) -> dict[str, bool]:
    """Return the argument that lets a network take images of another size than its configuration's, if it has one."""
    own = pair(getattr(net.config, "image_size", None) or tuple(images.shape[-2:]))
    takes = "interpolate_pos_encoding" in inspect.signature(net.forward).parameters
    return {"interpolate_pos_encoding": True} if tuple(images.shape[-2:]) != own and takes else {}


def pair(size: Any) -> tuple[int, int]:
    """Return (height, width) of one number or two."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits or projected features [b o]; of a bare model what its pooler gives, or the stream.

    Images of another size than the configuration's are run with positions resized, where the network can.
    """
    output = module(pixel_values=images, **resized(module, images))
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        value = getattr(output, name, None)
        if value is not None:
            return value
    raise Refused(f"{type(module).__name__} gives {type(output).__name__}, with neither logits nor features")


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "vit": Family(("hf-vit-5", "hf-vit"), ("ViTForImageClassification", "ViTModel"), _by_token, "vit."),
        "deit": Family(
            ("hf-deit-5", "hf-deit"),
            ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher", "DeiTModel"),
            _by_token,
            "deit.",
        ),
        "dinov2": Family(
            ("hf-dinov2-5", "hf-dinov2"), ("Dinov2Model", "Dinov2ForImageClassification"), _dinov2, "dinov2."
        ),
        "dinov2_with_registers": Family(
            ("hf-dinov2-registers-5", "hf-dinov2-registers"),
            ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
            _dinov2,
            "dinov2_with_registers.",
        ),
        "dinov3_vit": Family(
            ("hf-dinov3-5", "hf-dinov3"),
            ("DINOv3ViTModel",),
            lambda _net: "token",
            position="rope",
            more=_rope,
            rebuild=_rope_again,
        ),
        "vit_mae": Family(
            # Without its decoder it is ViT's layout.
            ("hf-mae-5", "hf-mae", "hf-vit-5", "hf-vit"),
            ("ViTMAEForPreTraining", "ViTMAEModel"),
            lambda _net: "none",
            "vit.",
            run=_whole_mae,
            notes=lambda _net: ("MAE is run on all patches in their order, without a mask; its decoder is not run",),
        ),
        "beit": Family(
            ("hf-beit-5", "hf-beit"),
            ("BeitForImageClassification", "BeitModel", "BeitForMaskedImageModeling"),
            _beit,
            "beit.",
            more=_beit_position,
            run=_masked_beit,
            notes=_beit_notes,
        ),
        "ijepa": Family(("hf-ijepa-5", "hf-ijepa"), ("IJepaModel", "IJepaForImageClassification"), _ijepa, "ijepa."),
        "clip_vision_model": Family(
            ("hf-clip-vision",),
            ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
            lambda _net: "token",
            "vision_model.",
            late_norm=True,
        ),
        "siglip_vision_model": Family(("hf-siglip",), ("SiglipVisionModel",), _siglip, "vision_model."),
        "siglip2_vision_model": Family(
            ("hf-siglip2",), ("Siglip2VisionModel",), _siglip, "vision_model.", run=_rows_of_patches, axes=_patch
        ),
    }
)
# {model type with two towers: (that of its vision tower, the class that has all of the tower's tensors)}
TOWERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "clip": ("clip_vision_model", "CLIPVisionModelWithProjection"),
        "siglip": ("siglip_vision_model", "SiglipVisionModel"),
        "siglip2": ("siglip2_vision_model", "Siglip2VisionModel"),
    }
)
