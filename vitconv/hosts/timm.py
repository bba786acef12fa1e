"""Vision transformers of timm, by model name or from a folder: VisionTransformer, Eva, Beit, NaFlexVit, Swin"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitconv.errors import Refused, UsageError
from vitconv.hosts._timm import FAMILIES, Family, family_of
from vitconv.hosts.base import stages
from vitconv.hosts.base.facts import activation_fact, common, eps_facts, heads_of, norm_kind, scale_fact
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.hosts.base.wide import in_float64
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
    "pool.norm": ("fc_norm", "attn_pool.norm"),
    "blocks.{i}.attn.norm": ("blocks.{i}.attn.norm",),
    "blocks.{i}.mlp.norm": ("blocks.{i}.mlp.norm",),
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
_PVT = "timm.models.pvt_v2"
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
# timm/models/pvt_v2.py, 1.0.31. Every stage ends with a norm; there is none behind the last one.
PYRAMID = stages.Names(
    block=r"stages\.(\d+)\.blocks\.(\d+)",
    norms=("norm1", "norm2"),
    act="mlp.act",
    attn="attn",
    patch="patch_embed.proj",
    stem="patch_embed.norm",
    norm="",
    head="head",
    ways=r".*\.(downsample|attn)\.norm",
)


def accepts(module: nn.Module) -> bool:
    """Return True for the families of timm that are known, and what is derived from them."""
    return _swin(module) or _pyramid(module) or family_of(module) is not None


def _pyramid(module: nn.Module) -> bool:
    return any(c.__name__ == "PyramidVisionTransformerV2" for c in type(module).__mro__ if c.__module__ == _PVT)


def _swin(module: nn.Module) -> bool:
    return any(
        c.__name__ in ("SwinTransformer", "SwinTransformerV2") and c.__module__ in _SWIN for c in type(module).__mro__
    )


def make(spec: Spec) -> nn.Module:
    """Build a model by timm's name, or from a folder with its `config.json`; `pretrained` stays off.

    Options are arguments of `timm.create_model`.

    Raises:
        UsageError: no such model or folder, a name that timm would look up on a hub, or an argument the model does not
            take.
        Refused: the model is of no family that is known.
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
        options = dict(spec.options)
        if name.startswith("pvt_v2"):
            # It takes images of any size; the one told is that of the images it is run on.
            options.pop("image_size", None)
        module = timm.create_model(source, **{**options, "pretrained": False})
    except TypeError as e:
        raise UsageError(f"timm's {spec.model} does not take these arguments: {e}") from e
    if not accepts(module):
        raise Refused(
            f"timm's {spec.model} is {type(module).__name__}; known are its"
            f" {', '.join(f.prefix for f in FAMILIES)}, Swin and PVTv2 families"
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
    if _pyramid(module):
        usual = (getattr(net, "pretrained_cfg", None) or {}).get("input_size", (0,))[1:]
        told = spec.facts.image_size or spec.options.get("image_size")
        size = (told, told) if isinstance(told, int) else told or usual or None
        kind = stages.Kind("timm", PYRAMID, ("timm-pvtv2",), run, size, backend="sdpa or eager")
        return stages.describe(module, spec, kind)
    family = family_of(module)
    assert family is not None
    if not len(net.blocks):
        raise Refused(f"timm's {type(net).__name__} has no blocks (depth 0): there is nothing to look at")
    block = type(net.blocks[0]).__name__
    if "Parallel" in block:
        raise Refused(f"timm's {block} has no counterpart here: its branches do not follow one another")
    places = locate(module, TABLE)
    blocks = [places[f"blocks.{i}"] for i in range(depth(places))]
    attentions: list[Any] = [places[f"blocks.{i}.attn"] for i in range(depth(places))]
    facts = _facts(net, family, places, blocks, attentions)
    backends = common("sdpa" if getattr(a, "fused_attn", False) else "eager" for a in attentions)
    return Built(
        host="timm",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=family.dialects,
        facts=facts,
        survey=survey(module, places, str(backends or "mixed")),
        taps=taps_of(places, head=net.head),
        inputs=Inputs("images", (_channels(net), *(facts.image_size or (0, 0)))),
        run=in_float64(run, family.rebuild),
        axes=family.axes(net),
        choices=family.choices(net),
    )


def _facts(
    net: Any, family: Family, places: dict[str, nn.Module], blocks: list[nn.Module], attentions: list[Any]
) -> Semantics:
    pooling = {"token": "token", "avg": "avg", "map": "map", "": "none"}.get(net.global_pool)
    # Eva pools by attention over all tokens.
    if getattr(net, "pool_include_prefix", type(net).__name__ == "Eva" and pooling == "map") and net.num_prefix_tokens:
        pooling = {"avg": "avg-prefix", "map": "map-prefix"}.get(pooling or "", pooling)
    placement = common(_PLACEMENT.get(type(b).__name__) for b in blocks)
    return Semantics().replaced(
        {
            "heads": heads_of(attentions),
            "norm_placement": placement,
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(_scale(a) for a in attentions),
            "kv_normalised": True if placement is not None else None,
            "pooling": pooling,
            "pool_heads": _pool_heads(net, attentions),
            **family.positions(net),
            **eps_facts(places),
        }
    )


def _pool_heads(net: Any, attentions: list[Any]) -> int | None:
    """Return the heads of an attention-pooling head that has other than the blocks."""
    heads = getattr(getattr(net, "attn_pool", None), "num_heads", None)
    return None if heads == common(a.num_heads for a in attentions) else heads


def _scale(attention: Any) -> float | None:
    """Return the scale of the logits, or None for an attention of the user's own, which does not say it."""
    width, heads = getattr(attention, "head_dim", None), getattr(attention, "num_heads", None)
    if width is None and heads and hasattr(attention, "qkv"):
        width = attention.qkv.weight.shape[0] // (3 * heads)
    return scale_fact(attention.scale, int(width)) if width and hasattr(attention, "scale") else None


def _channels(net: Any) -> int:
    patch = getattr(net, "patch_embed", None)
    return int(net.in_chans if patch is None else patch.proj.in_channels)


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o], or the features of a network without a head."""
    y = module(images)
    # A distilled network in distilled training returns both heads' logits.
    return (y[0] + y[1]) / 2 if isinstance(y, tuple) else y


HOST = Host(
    name="timm",
    title="timm's vision transformers",
    dialects=(*dict.fromkeys(d for family in FAMILIES for d in family.dialects), "timm-swin", "timm-swinv2"),
    options={"*": "any argument of timm.create_model, such as img_size, num_classes, drop_path_rate"},
    make=make,
    describe=describe,
    accepts=accepts,
    library="timm",
)
