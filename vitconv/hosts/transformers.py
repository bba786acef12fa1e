"""Vision transformers of transformers, from a config.json or a model type"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from torch import nn

from vitconv.errors import Refused, UsageError
from vitconv.hosts import _transformers as families
from vitconv.hosts._transformers import FAMILIES, TABLE, TOWERS, Family, pair, run
from vitconv.hosts.base import stages
from vitconv.hosts.base.facts import activation_fact, common, eps_facts, norm_kind, scale_fact
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import Places, depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.hosts.base.tap import Tap
from vitconv.hosts.base.wide import in_float64
from vitconv.layout.semantics import Semantics

__all__ = ["HOST", "TABLE", "accepts", "describe", "make", "run"]

_SWIN = {"swin": "Swin", "swinv2": "Swinv2"}
_PYRAMIDS = {"pvt": "Pvt", "pvt_v2": "PvtV2"}
_STAGES = {**_SWIN, **_PYRAMIDS}
_KNOWN = (*FAMILIES, *_STAGES)


def accepts(module: nn.Module) -> bool:
    """Return True for a network of transformers of one of the known model types."""
    return getattr(getattr(module, "config", None), "model_type", None) in _KNOWN and any(
        c.__module__.startswith("transformers.") for c in type(module).__mro__
    )


def make(spec: Spec) -> nn.Module:
    """Build from a `config.json`, a folder that has one, or a model type such as `vit`; nothing is downloaded.

    Of a configuration with two towers (CLIP, SigLIP) the vision tower is built. Options: `class` (default: the
    configuration's architecture, else the usual class of the model type), `attn` (eager or sdpa), `pooler` (whether a
    bare model has one), and any field of the configuration.

    Raises:
        UsageError: no such file, model type or class.
        Refused: the model type or the class is not known here.
    """
    import transformers

    options = dict(spec.options)
    name, attn = options.pop("class", None), options.pop("attn", None)
    more = {"add_pooling_layer": options.pop("pooler")} if "pooler" in options else {}
    config, tower = _config(spec.model, options)
    kind = config.model_type
    if kind not in _KNOWN:
        raise Refused(f"model type {kind!r}: known are {', '.join((*_KNOWN, *TOWERS))}")
    if attn is not None:
        config._attn_implementation = attn  # noqa: SLF001
    usual = FAMILIES[kind].classes[0] if kind in FAMILIES else f"{_STAGES[kind]}ForImageClassification"
    stated = next(iter(config.architectures or ()), None)
    name = name or tower or stated or usual
    if not hasattr(transformers, name):
        raise UsageError(f"transformers has no class {name!r}")
    if kind in FAMILIES and name not in FAMILIES[kind].classes:
        raise Refused(f"{name} is not one of the classes of {kind} that are known: {', '.join(FAMILIES[kind].classes)}")
    return getattr(transformers, name)(config, **more).eval()


def _config(model: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the configuration of a vision network, and the class where it comes out of one with two towers."""
    import transformers

    path = Path(model)
    if path.exists():
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    elif model in _KNOWN:
        return transformers.AutoConfig.for_model(model, **options), ""
    else:
        raise UsageError(f"{model!r} is neither a configuration file or folder nor a model type ({', '.join(_KNOWN)})")
    tower = ""
    if config.model_type in TOWERS:
        tower, projection = TOWERS[config.model_type][1], getattr(config, "projection_dim", None)
        config = config.vision_config
        if projection is not None:
            # The tower's own configuration has a width of its own that nothing reads.
            config.projection_dim = projection
    config.update(options)
    return config, tower


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network of transformers is."""
    net: Any = module
    config = net.config
    if config.model_type in _SWIN:
        return _describe_swin(module, spec)
    if config.model_type in _PYRAMIDS:
        return _describe_pyramid(module, spec)
    family = FAMILIES[config.model_type]
    places = locate(module, families.table(family.root))
    pool = places.pop("pool", None)
    if places.get("trunk_norm") is places.get("norm"):
        places.pop("trunk_norm", None)
    image = _image_size(config)
    return Built(
        host="transformers",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=family.dialects,
        facts=_facts(net, family, places, image),
        survey=survey(module, places, str(config._attn_implementation)),  # noqa: SLF001
        taps=_taps(net, family, places, pool),
        inputs=Inputs("images", (config.num_channels, *image)),
        run=in_float64(family.run or run, family.rebuild),
        notes=family.notes(net),
        axes=family.axes(net),
    )


def _taps(net: Any, family: Family, places: Places, pool: nn.Module | None) -> dict[str, Tap]:
    stream = {name: m for name, m in places.items() if not (family.late_norm and name == "norm")}
    head = getattr(net, "classifier", places.get("head"))
    taps = taps_of(stream, head=head)
    pool = places.get("norm") if family.late_norm else pool
    if head is None and pool is not None:
        taps["pool"] = Tap(pool, "output")
    return taps


def _image_size(config: Any) -> tuple[int, int]:
    if getattr(config, "image_size", None) is not None:
        return pair(config.image_size)
    # SigLIP 2 states the rows of its table, that of a square.
    return pair(round(config.num_patches**0.5) * config.patch_size)


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
    rule = "transformers-v2" if v2 else "microsoft"
    kind = stages.Kind("transformers", names, dialects, run, pair(config.image_size), trained, backend, rule)
    built = stages.describe(module, spec, kind)
    windows = (int(pair(config.window_size)[0]),) * len(config.depths)
    facts = built.facts if built.facts.window else built.facts.replaced({"window": windows})
    if v2 and facts.pretrained_window is None:
        pairs = zip(trained or (), windows, strict=True)
        facts = facts.replaced({"pretrained_window": tuple(0 if p == w else p for p, w in pairs)})
    # Measured in 5.24: places that a shift keeps apart get -200 where every other codebase adds -100.
    twice = ("transformers adds the mask of shifted windows twice in Swin V2",) if v2 else ()
    return dataclasses.replace(built, facts=facts, notes=(*built.notes, *twice))


def _describe_pyramid(module: nn.Module, spec: Spec) -> Built:
    net: Any = module
    config, v2 = net.config, net.config.model_type == "pvt_v2"
    root = f"{config.model_type}." if hasattr(net, config.model_type) else ""
    at = f"{root}encoder."
    first = f"{at}layers.0.patch_embedding" if v2 else f"{at}patch_embeddings.0"
    names = stages.Names(
        block=re.escape(at) + (r"layers\.(\d+)\.blocks\.(\d+)" if v2 else r"block\.(\d+)\.(\d+)"),
        norms=("layer_norm_1", "layer_norm_2"),
        act="mlp.intermediate_act_fn",
        attn="attention",
        patch=f"{first}.proj" if v2 else f"{first}.projection",
        stem=f"{first}.layer_norm",
        # Every stage of PVTv2 ends with a norm; there is none behind the last one.
        norm="" if v2 else f"{at}layer_norm",
        head="classifier",
        ways=r".*\.(patch_embedding|patch_embeddings\.\d+|attention|self)\.layer_norm",
    )
    backend = str(config._attn_implementation)  # noqa: SLF001
    kind = stages.Kind(
        "transformers", names, ("hf-pvtv2" if v2 else "hf-pvt",), run, pair(config.image_size), backend=backend,
        pooling="avg" if v2 else "token",
    )  # fmt: skip
    return stages.describe(module, spec, kind)


def _facts(net: Any, family: Family, places: Places, image: tuple[int, int]) -> Semantics:
    attentions = [_attention(places[f"blocks.{i}.attn"]) for i in range(depth(places))]
    patch = pair(net.config.patch_size)
    return Semantics().replaced(
        {
            "heads": common(_heads(a) for a in attentions),
            "norm_placement": "pre",
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(scale_fact(_scale(a), _head_width(a)) for a in attentions),
            "kv_normalised": True,
            "pooling": family.pooling(net),
            "position": family.position,
            "grid": (image[0] // patch[0], image[1] // patch[1]),
            "image_size": image,
            **eps_facts(places),
            **family.more(net),
        }
    )


def _attention(module: nn.Module) -> Any:
    """Return the module that holds the head count: the attention itself, or the one inside it."""
    return next(m for m in module.modules() if hasattr(m, "num_attention_heads") or hasattr(m, "num_heads"))


def _heads(attention: Any) -> int:
    return attention.num_attention_heads if hasattr(attention, "num_attention_heads") else attention.num_heads


def _scale(attention: Any) -> float | None:
    return getattr(attention, "scaling", getattr(attention, "scale", None))


def _head_width(attention: Any) -> int:
    return getattr(attention, "head_dim", None) or attention.attention_head_size


HOST = Host(
    name="transformers",
    title="vision transformers of transformers",
    dialects=(
        *dict.fromkeys(name for family in FAMILIES.values() for name in family.dialects),
        "hf-swin-5",
        "hf-swin",
        "hf-swinv2",
    ),
    options={
        "*": "any field of the configuration",
        "class": "the model class, such as ViTModel",
        "attn": "eager or sdpa",
        "pooler": "whether a bare model has its pooler, where its class asks",
    },
    make=make,
    describe=describe,
    accepts=accepts,
    library="transformers",
)
