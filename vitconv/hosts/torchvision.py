"""torchvision's vision transformers: vit_b_16 and its kin, or VisionTransformer with its own arguments"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from vitconv.errors import Refused, UsageError
from vitconv.hosts.base import stages
from vitconv.hosts.base.facts import activation_fact, common, eps_facts, heads_of, norm_kind
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.layout.semantics import Semantics

# pytorch/vision, torchvision/models/vision_transformer.py, 0.29.
_BLOCK = "encoder.layers.encoder_layer_{i}"
TABLE = {
    "blocks.{i}": (_BLOCK,),
    "blocks.{i}.norm1": (f"{_BLOCK}.ln_1",),
    "blocks.{i}.attn": (f"{_BLOCK}.self_attention",),
    "blocks.{i}.norm2": (f"{_BLOCK}.ln_2",),
    "blocks.{i}.mlp": (f"{_BLOCK}.mlp",),
    "blocks.{i}.mlp.act": (f"{_BLOCK}.mlp.1",),
    "norm": ("encoder.ln",),
    "head": ("heads.head",),
}


# pytorch/vision, torchvision/models/swin_transformer.py, 0.29.
STAGES = stages.Names(
    block=r"features\.(\d+)\.(\d+)",
    norms=("norm1", "norm2"),
    act="mlp.1",
    attn="attn",
    patch="features.0.0",
    stem="features.0.2",
    norm="norm",
    head="head",
    first=1,
    step=2,
)


def accepts(module: nn.Module) -> bool:
    """Return True for torchvision's VisionTransformer and what is derived from it."""
    return _swin(module) or any(c.__module__ == "torchvision.models.vision_transformer" for c in type(module).__mro__)


def _swin(module: nn.Module) -> bool:
    return any(c.__module__ == "torchvision.models.swin_transformer" for c in type(module).__mro__)


def make(spec: Spec) -> nn.Module:
    """Build a model by torchvision's name without weights, or `VisionTransformer` itself; options are its arguments.

    Raises:
        UsageError: no such model, or an argument it does not take.
        Refused: the model is not a VisionTransformer.
    """
    from torchvision.models import SwinTransformer, VisionTransformer, get_model

    classes: dict[str, Any] = {"VisionTransformer": VisionTransformer, "SwinTransformer": SwinTransformer}
    make_model: Any = classes.get(spec.model, partial(get_model, spec.model))
    options = dict(spec.options)
    if spec.model.lower().startswith("swin"):
        # Its networks take images of any size; the one told is that of the images they are run on.
        options.pop("image_size", None)
    try:
        module = make_model(**options)
    except (TypeError, ValueError) as e:
        raise UsageError(f"torchvision cannot build {spec.model!r} with these arguments: {e}") from e
    if not accepts(module):
        found = type(module).__name__
        raise Refused(f"torchvision's {spec.model} is {found}; only VisionTransformer and SwinTransformer are known")
    return module.eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this torchvision network is."""
    net: Any = module
    if _swin(module):
        v2 = hasattr(net.features[1][0].attn, "logit_scale")
        stage_count = sum(isinstance(m, nn.Sequential) for m in net.features[1::2])
        kind = stages.Kind(
            "torchvision",
            STAGES,
            ("torchvision-swinv2" if v2 else "torchvision-swin",),
            run,
            pretrained=(0,) * stage_count if v2 else None,
            rule="torchvision",
        )
        return stages.describe(module, spec, kind)
    places = locate(module, TABLE)
    attentions: list[Any] = [places[f"blocks.{i}.attn"] for i in range(depth(places))]
    side = net.image_size // net.patch_size
    facts = Semantics().replaced(
        {
            "heads": heads_of(attentions),
            "norm_placement": "pre",
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(a.head_dim**-0.5 if hasattr(a, "head_dim") else None for a in attentions),
            "kv_normalised": True,
            "pooling": "token",
            "position": "learned",
            "grid": (side, side),
            "image_size": (net.image_size, net.image_size),
            **eps_facts(places),
        }
    )
    return Built(
        host="torchvision",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=("torchvision",),
        facts=facts,
        survey=survey(module, places, "torch.nn.MultiheadAttention: sdpa, its fast path in eval without gradients"),
        taps=taps_of(places, head=getattr(net.heads, "head", None)),
        inputs=Inputs("images", (3, net.image_size, net.image_size)),
        run=run,
    )


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o]."""
    return module(images)


HOST = Host(
    name="torchvision",
    title="torchvision's VisionTransformer",
    dialects=("torchvision", "torchvision-swin", "torchvision-swinv2"),
    options={"*": "any argument of torchvision.models.get_model, such as image_size, num_classes, dropout"},
    make=make,
    describe=describe,
    accepts=accepts,
    library="torchvision",
)
