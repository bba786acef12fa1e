"""Vision transformers of timm: any model name of the VisionTransformer family"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitconv.errors import Refused, UsageError
from vitconv.hosts.base import stages
from vitconv.hosts.base.facts import activation_fact, common, eps_facts, norm_kind, scale_fact
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.layout.semantics import Semantics

# huggingface/pytorch-image-models, timm/models/vision_transformer.py and deit.py, 1.0.31.
TABLE = {
    "blocks.{i}": ("blocks.{i}",),
    "blocks.{i}.norm1": ("blocks.{i}.norm1",),
    "blocks.{i}.attn": ("blocks.{i}.attn",),
    "blocks.{i}.attn.q_norm": ("blocks.{i}.attn.q_norm",),
    "blocks.{i}.attn.k_norm": ("blocks.{i}.attn.k_norm",),
    "blocks.{i}.norm2": ("blocks.{i}.norm2",),
    "blocks.{i}.mlp": ("blocks.{i}.mlp",),
    "blocks.{i}.mlp.act": ("blocks.{i}.mlp.act",),
    "embed.norm": ("norm_pre",),
    "norm": ("norm",),
    "pool.norm": ("fc_norm",),
    "head": ("head",),
    "head_dist": ("head_dist",),
}
_PLACEMENT = {
    "Block": "pre",
    "LayerScaleBlock": "pre",
    "EvaBlock": "pre",
    "ResPostBlock": "res-post",
    "EvaBlockPostNorm": "res-post",
}
_NAFLEX = "timm.models.naflexvit"
_FAMILY = ("timm.models.vision_transformer", "timm.models.deit")
_SWIN = ("timm.models.swin_transformer", "timm.models.swin_transformer_v2")
# huggingface/pytorch-image-models, timm/models/swin_transformer.py and swin_transformer_v2.py, 1.0.31.
STAGES = stages.Names(
    block=r"layers\.(\d+)\.blocks\.(\d+)",
    norms=("norm1", "norm2"),
    act="mlp.act",
    attn="attn",
    patch="patch_embed.proj",
    stem="patch_embed.norm",
    norm="norm",
    head="head.fc",
)


def accepts(module: nn.Module) -> bool:
    """Return True for timm's VisionTransformer and what is derived from it."""
    return (
        _swin(module)
        or _naflex(module)
        or any(c.__module__ in _FAMILY and c.__name__.startswith("VisionTransformer") for c in type(module).__mro__)
    )


def _swin(module: nn.Module) -> bool:
    return any(
        c.__name__ in ("SwinTransformer", "SwinTransformerV2") and c.__module__ in _SWIN for c in type(module).__mro__
    )


def _naflex(module: nn.Module) -> bool:
    return any(c.__name__ == "NaFlexVit" and c.__module__ == _NAFLEX for c in type(module).__mro__)


def make(spec: Spec) -> nn.Module:
    """Build a model by timm's name, or from a folder with its `config.json`; `pretrained` stays off.

    Options are arguments of `timm.create_model`.

    Raises:
        UsageError: no such model or folder, a name that timm would look up on a hub, or an argument the model does not
            take.
        Refused: the model is not of the VisionTransformer family.
    """
    import timm

    name = spec.model.partition(".")[0]
    folder = Path(spec.model.removeprefix("local-dir:"))
    local = (folder / "config.json").is_file()
    if not local and not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name}*")[:5]) or "see timm.list_models()"
        raise UsageError(f"timm has no model {spec.model!r}; close names: {close}")
    try:
        source = f"local-dir:{folder}" if local else spec.model
        module = timm.create_model(source, **{**spec.options, "pretrained": False})
    except TypeError as e:
        raise UsageError(f"timm's {spec.model} does not take these arguments: {e}") from e
    if not accepts(module):
        raise Refused(
            f"timm's {spec.model} is {type(module).__name__}; only its VisionTransformer, NaFlexVit and Swin are known"
        )
    return module.eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this timm network is."""
    net: Any = module
    if _swin(module):
        v2 = hasattr(net.layers[0].blocks[0].attn, "logit_scale")
        size = tuple(net.patch_embed.img_size) if net.patch_embed.img_size else None
        dialects = ("timm-swinv2" if v2 else "timm-swin",)
        kind = stages.Kind("timm", STAGES, dialects, run, size, backend="sdpa or eager", rule="timm")
        return stages.describe(module, spec, kind)
    places = locate(module, TABLE)
    blocks = [places[f"blocks.{i}"] for i in range(depth(places))]
    attentions: list[Any] = [places[f"blocks.{i}.attn"] for i in range(depth(places))]
    facts = _facts(net, places, blocks, attentions)
    backends = common("sdpa" if getattr(a, "fused_attn", False) else "eager" for a in attentions)
    return Built(
        host="timm",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=_dialects(module),
        facts=facts,
        survey=survey(module, places, str(backends or "mixed")),
        taps=taps_of(places, head=net.head),
        inputs=Inputs("images", (_channels(net), *(facts.image_size or (0, 0)))),
        run=run,
    )


def _facts(net: Any, places: dict[str, nn.Module], blocks: list[nn.Module], attentions: list[Any]) -> Semantics:
    pooling = {"token": "token", "avg": "avg", "map": "map", "": "none"}.get(net.global_pool)
    if pooling == "avg" and getattr(net, "pool_include_prefix", False):
        pooling = "avg-prefix"
    placement = common(_PLACEMENT.get(type(b).__name__) for b in blocks)
    return Semantics().replaced(
        {
            "heads": common(a.num_heads for a in attentions),
            "norm_placement": placement,
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(scale_fact(a.scale, a.head_dim) for a in attentions),
            "kv_normalised": True if placement is not None else None,
            "pooling": pooling,
            **(_flexible(net) if _naflex(net) else _fixed(net)),
            **eps_facts(places),
        }
    )


def _fixed(net: Any) -> dict[str, Any]:
    return {
        "position": "none" if net.pos_embed is None else "learned",
        "grid": tuple(net.patch_embed.grid_size),
        "image_size": tuple(net.patch_embed.img_size),
    }


def _flexible(net: Any) -> dict[str, Any]:
    """Return the facts of NaFlexVit's positions: of its table's own grid, or of one of 16 by 16 patches.

    Raises:
        Refused: it turns queries and keys in a way that is not known here.
    """
    embeds, rope = net.embeds, net.rope
    grid = tuple(embeds.pos_embed_grid_size or (16, 16))
    table = embeds.pos_embed_type != "none"
    facts: dict[str, Any] = {"position": "learned" if table else "none", "grid": grid}
    facts["image_size"] = tuple(n * side for n, side in zip(grid, embeds.patch_size, strict=True))
    if rope is None:
        return facts
    kinds = {"RotaryEmbeddingCat": "interleaved", "RotaryEmbeddingDinoV3": "half"}
    layout, half = kinds.get(type(rope).__name__), getattr(rope, "rotate_half", False)
    if layout is None or half != (layout == "half"):
        raise Refused(f"timm's {type(rope).__name__} is not known here, only the rotary positions of EVA-02 and DINOv3")
    facts |= {"position": "rope", "rope_layout": layout, "rope_theta": float(rope.temperature)}
    if layout == "interleaved":
        facts["rope_reference"] = tuple(rope.ref_feat_shape or grid)
    return facts


def _channels(net: Any) -> int:
    return int(net.in_chans if _naflex(net) else net.patch_embed.proj.in_channels)


def _dialects(module: nn.Module) -> tuple[str, ...]:
    return ("timm-naflex", "timm-naflex-eva") if _naflex(module) else ("timm",)


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o], or the features of a network without a head."""
    y = module(images)
    # A distilled network in distilled training returns both heads' logits.
    return (y[0] + y[1]) / 2 if isinstance(y, tuple) else y


HOST = Host(
    name="timm",
    title="timm's VisionTransformer family",
    dialects=("timm", "timm-naflex", "timm-naflex-eva", "timm-swin", "timm-swinv2"),
    options={"*": "any argument of timm.create_model, such as img_size, num_classes, drop_path_rate"},
    make=make,
    describe=describe,
    accepts=accepts,
    library="timm",
)
