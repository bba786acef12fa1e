"""Vision transformers of transformers: ViT, DeiT and DINOv2, from a config.json or a model type"""

from __future__ import annotations

import dataclasses
import inspect
import re
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

# huggingface/transformers, src/transformers/models/{vit,deit,dinov2}/modeling_*.py, 4.57 (`encoder.layer`, attention in
# two modules, the residual added inside `output`) and 5.x (`layers`).
_ROOTS = ("", "vit.", "deit.", "dinov2.", "dinov2_with_registers.")


def _paths(*names: str) -> tuple[str, ...]:
    return tuple(f"{root}{name}" for name in names for root in _ROOTS)


def _block(*names: str) -> tuple[str, ...]:
    return _paths(*(f"{stem}.{{i}}{name}" for name in names for stem in ("layers", "encoder.layer", "encoder.layers")))


TABLE = {
    "blocks.{i}": _block(""),
    "blocks.{i}.norm1": _block(".layernorm_before", ".norm1"),
    "blocks.{i}.attn": _block(".attention"),
    "blocks.{i}.norm2": _block(".layernorm_after", ".norm2"),
    # 4.x adds the residual inside `output`: the branch is what its dense layer gives.
    "blocks.{i}.mlp": _block(".mlp", ".output.dense"),
    "blocks.{i}.mlp.act": _block(
        ".mlp.activation_fn", ".mlp.activation", ".mlp.act_fn", ".intermediate.intermediate_act_fn"
    ),
    "norm": _paths("layernorm"),
    "head": ("classifier", "cls_classifier"),
    "head_dist": ("distillation_classifier",),
}
_DIALECTS = {
    "vit": "hf-vit",
    "deit": "hf-deit",
    "dinov2": "hf-dinov2",
    "dinov2_with_registers": "hf-dinov2-registers",
}
_SWIN = {"swin": "Swin", "swinv2": "Swinv2"}
_CLASSES = {
    "vit": "ViTForImageClassification",
    "deit": "DeiTForImageClassification",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
}


def accepts(module: nn.Module) -> bool:
    """Return True for a network of transformers of one of the known model types."""
    known = (*_DIALECTS, *_SWIN)
    return getattr(getattr(module, "config", None), "model_type", None) in known and any(
        c.__module__.startswith("transformers.") for c in type(module).__mro__
    )


def make(spec: Spec) -> nn.Module:
    """Build from a `config.json`, a folder that has one, or a model type such as `vit`; nothing is downloaded.

    Options: `class` (default: the configuration's architecture, else the image classifier of ViT and DeiT, the bare
    model of DINOv2), `attn` (eager or sdpa), and any field of the configuration.

    Raises:
        UsageError: no such file or model type.
        Refused: the model type is not known here.
    """
    import transformers

    options = dict(spec.options)
    name, attn = options.pop("class", None), options.pop("attn", None)
    path = Path(spec.model)
    if path.exists():
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, **options)
    elif spec.model in _DIALECTS or spec.model in _SWIN:
        config = transformers.AutoConfig.for_model(spec.model, **options)
    else:
        known = ", ".join((*_DIALECTS, *_SWIN))
        raise UsageError(f"{spec.model!r} is neither a configuration file or folder nor a model type ({known})")
    if config.model_type not in (*_DIALECTS, *_SWIN):
        raise Refused(f"model type {config.model_type!r}: known are {', '.join((*_DIALECTS, *_SWIN))}")
    if attn is not None:
        config._attn_implementation = attn  # noqa: SLF001
    name = name or next(iter(config.architectures or ()), None)
    name = name or _CLASSES.get(config.model_type) or f"{_SWIN[config.model_type]}ForImageClassification"
    if not hasattr(transformers, name):
        raise UsageError(f"transformers has no class {name!r}")
    return getattr(transformers, name)(config).eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network of transformers is."""
    net: Any = module
    config = net.config
    if config.model_type in _SWIN:
        return _describe_swin(module, spec)
    places = locate(module, TABLE)
    image = _pair(config.image_size)
    dialect = _DIALECTS[config.model_type]
    older = any("encoder.layer." in key for key in module.state_dict())
    head = getattr(net, "classifier", getattr(net, "cls_classifier", None))
    return Built(
        host="transformers",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=(dialect,) if older else (f"{dialect}-5", dialect),
        facts=_facts(net, places, image),
        survey=survey(module, places, str(config._attn_implementation)),  # noqa: SLF001
        taps=taps_of(places, head=head),
        inputs=Inputs("images", (config.num_channels, *image)),
        run=run,
    )


def _describe_swin(module: nn.Module, spec: Spec) -> Built:
    net: Any = module
    config, v2 = net.config, net.config.model_type == "swinv2"
    older = any(".attention.self." in key for key in module.state_dict())
    root = f"{config.model_type}." if hasattr(net, config.model_type) else ""
    names = stages.Names(
        block=rf"{re.escape(root)}encoder\.layers\.(\d+)\.blocks\.(\d+)",
        norms=("layernorm_before", "layernorm_after"),
        act="intermediate.intermediate_act_fn" if older else "mlp.activation_fn",
        attn="attention",
        patch=f"{root}embeddings.patch_embeddings.projection",
        stem=f"{root}embeddings.norm",
        norm=f"{root}layernorm",
        head="classifier",
    )
    dialects = ("hf-swinv2",) if v2 else ("hf-swin",) if older else ("hf-swin-5", "hf-swin")
    trained = tuple(config.pretrained_window_sizes)[: len(config.depths)] if v2 else None
    backend = str(config._attn_implementation)  # noqa: SLF001
    kind = stages.Kind("transformers", names, dialects, run, _pair(config.image_size), trained, backend)
    built = stages.describe(module, spec, kind)
    windows = (int(_pair(config.window_size)[0]),) * len(config.depths)
    facts = built.facts if built.facts.window else built.facts.replaced({"window": windows})
    if v2 and facts.pretrained_window is None:
        pairs = zip(trained or (), windows, strict=True)
        facts = facts.replaced({"pretrained_window": tuple(0 if p == w else p for p, w in pairs)})
    # Measured in 5.24: places that a shift keeps apart get -200 where every other codebase adds -100.
    twice = ("transformers adds the mask of shifted windows twice in Swin V2",) if v2 else ()
    return dataclasses.replace(built, facts=facts, notes=(*built.notes, *twice))


def _facts(net: Any, places: dict[str, nn.Module], image: tuple[int, int]) -> Semantics:
    config = net.config
    attentions = [_attention(places[f"blocks.{i}.attn"]) for i in range(depth(places))]
    patch = _pair(config.patch_size)
    return Semantics().replaced(
        {
            "heads": common(a.num_attention_heads for a in attentions),
            "norm_placement": "pre",
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(scale_fact(getattr(a, "scaling", None), _head_width(a)) for a in attentions),
            "kv_normalised": True,
            "pooling": _pooling(net),
            "position": "learned",
            "grid": (image[0] // patch[0], image[1] // patch[1]),
            "image_size": image,
            **eps_facts(places),
        }
    )


def _attention(module: nn.Module) -> Any:
    """Return the module that holds the head count: the attention itself, or the one inside it."""
    return next(m for m in module.modules() if hasattr(m, "num_attention_heads"))


def _head_width(attention: Any) -> int:
    return getattr(attention, "head_dim", None) or attention.attention_head_size


def _pooling(net: Any) -> str | None:
    if getattr(net.config, "model_type", "").startswith("dinov2") and hasattr(net, "classifier"):
        # The class token beside the mean of the patches: no pooling of ours.
        return None
    if hasattr(net, "classifier") or hasattr(net, "cls_classifier") or getattr(net, "pooler", None) is not None:
        return "token"
    return "none"


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o]; of a bare model the pooler's output [b d], else the last hidden state [b t d].

    Images of another size than the configuration's are run with positions resized, where the network can.
    """
    net: Any = module
    more = {}
    own = _pair(getattr(net.config, "image_size", None) or tuple(images.shape[-2:]))
    if tuple(images.shape[-2:]) != own and "interpolate_pos_encoding" in inspect.signature(net.forward).parameters:
        more = {"interpolate_pos_encoding": True}
    output = module(pixel_values=images, **more)
    for name in ("logits", "pooler_output", "last_hidden_state"):
        value = getattr(output, name, None)
        if value is not None:
            return value
    raise Refused(f"{type(module).__name__} gives {type(output).__name__}, with neither logits nor features")


HOST = Host(
    name="transformers",
    title="vision transformers of transformers",
    dialects=("hf-vit-5", "hf-vit", "hf-deit-5", "hf-deit"),
    options={
        "*": "any field of the configuration",
        "class": "the model class, such as ViTModel",
        "attn": "eager or sdpa",
    },
    make=make,
    describe=describe,
    accepts=accepts,
    library="transformers",
)
