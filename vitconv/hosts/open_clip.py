"""open_clip's own vision towers, by model name or from an open_clip_config.json"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitconv.errors import BadFile, Refused, UsageError
from vitconv.hosts.base.facts import activation_fact, common, eps_facts, norm_kind, scale_fact
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import Table, depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.hosts.base.tap import Tap
from vitconv.hosts.base.wide import in_float64
from vitconv.layout.semantics import Semantics

# mlfoundations/open_clip, src/open_clip/transformer.py, 3.3.0.
_B = "transformer.resblocks.{i}"
TABLE: Table = {
    "blocks.{i}": (_B,),
    "blocks.{i}.norm1": (f"{_B}.ln_1",),
    "blocks.{i}.attn": (f"{_B}.attn",),
    "blocks.{i}.attn.q_norm": (f"{_B}.attn.ln_q",),
    "blocks.{i}.attn.k_norm": (f"{_B}.attn.ln_k",),
    "blocks.{i}.attn.norm": (f"{_B}.attn.ln_inner",),
    "blocks.{i}.norm2": (f"{_B}.ln_2",),
    "blocks.{i}.mlp": (f"{_B}.mlp",),
    "blocks.{i}.mlp.act": (f"{_B}.mlp.gelu",),
    "blocks.{i}.mlp.norm": (f"{_B}.mlp.ln",),
    "embed.norm": ("ln_pre",),
    "norm": ("ln_post",),
}
_POOLS = {"tok": "token", "avg": "avg", "none": "none"}


def accepts(module: nn.Module) -> bool:
    """Return True for open_clip's own vision transformer."""
    return any(c.__module__ == "open_clip.transformer" and c.__name__ == "VisionTransformer" for c in _kinds(module))


def _kinds(module: nn.Module) -> tuple[type, ...]:
    return type(module).__mro__


def make(spec: Spec) -> nn.Module:
    """Build the vision tower of a model name of open_clip, of a folder or file with its configuration, or of `config`.

    Options are fields of the vision configuration; `embed_dim`, `quick_gelu`; `proj` (false leaves the projection out).

    Raises:
        UsageError: no such model or file, or a field that the configuration does not have.
        Refused: the tower is not open_clip's own vision transformer.
    """
    from open_clip.model import _build_vision_tower

    options = dict(spec.options)
    config = options.pop("config", None) or _config(spec.model)
    proj = options.pop("proj", True)
    embed = options.pop("embed_dim", config["embed_dim"])
    quick = options.pop("quick_gelu", config.get("quick_gelu", False))
    vision = {**config["vision_cfg"], **options}
    if vision.get("timm_model_name"):
        raise Refused(f"the tower of {spec.model} is timm's {vision['timm_model_name']}: use host timm")
    try:
        module = _build_vision_tower(embed, vision, quick)
    except TypeError as e:
        raise UsageError(f"open_clip cannot build {spec.model!r} with these arguments: {e}") from e
    if not accepts(module):
        raise Refused(f"open_clip's {spec.model} is {type(module).__name__}; only its VisionTransformer is known")
    if not proj:
        module.proj = None
    return module.eval()


def _config(model: str) -> Mapping[str, Any]:
    import open_clip

    path = Path(model.removeprefix("local-dir:"))
    path = path / "open_clip_config.json" if path.is_dir() else path
    if path.is_file():
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            return dict(raw.get("model_cfg", raw))
        except (ValueError, AttributeError, TypeError) as e:
            raise BadFile(f"{path}: no configuration of open_clip: {e}") from e
    names = open_clip.list_models()
    if model not in names:
        close = ", ".join(n for n in names if model[:6].lower() in n.lower()) or "see open_clip.list_models()"
        raise UsageError(f"open_clip has no model {model!r}; close names: {close}")
    return dict(open_clip.get_model_config(model))


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this tower is.

    Raises:
        Refused: its blocks have the tokens ahead of the batch.
    """
    net: Any = module
    if not getattr(net.transformer, "batch_first", True):
        raise Refused("open_clip's blocks with tokens ahead of the batch (batch_first=False) are not known")
    places = locate(module, TABLE)
    if getattr(net, "attn_pool_contrastive", None) is not None:
        raise Refused("open_clip's towers with two attentional poolers (parallel, cascade) are not known")
    coca = net.attn_pool is not None
    late = net.final_ln_after_pool and net.pool_type != "none" and not coca
    attentions: list[Any] = [places[f"blocks.{i}.attn"] for i in range(depth(places))]
    # Behind a pooler the last norm is the pooler's.
    taps = taps_of({k: m for k, m in places.items() if not ((late or coca) and k == "norm")})
    if late:
        taps["pool"] = Tap(net.ln_post, "output")
    facts = Semantics().replaced(
        {
            "heads": common(a.num_heads for a in attentions),
            "norm_placement": "pre",
            "norm_kind": norm_kind(places),
            "activation": activation_fact(places),
            "attention": "softmax",
            "attention_scale": common(scale_fact(_scale(a), a.head_dim) for a in attentions),
            "kv_normalised": True,
            "pooling": _POOLS[net.pool_type],
            "pool_heads": net.attn_pool.attn.num_heads if coca else None,
            "position": "learned",
            "grid": tuple(net.grid_size),
            "image_size": tuple(net.image_size),
            **eps_facts(places),
        }
    )
    return Built(
        host="open-clip",
        model=spec.model or type(module).__name__,
        module=module,
        dialects=("open-clip",),
        facts=facts,
        survey=survey(module, places, "torch.nn.MultiheadAttention: sdpa, its fast path in eval without gradients"),
        taps=taps,
        inputs=Inputs("images", (net.conv1.in_channels, *net.image_size)),
        run=in_float64(run),
        # Of the class token alone both orders are the same function.
        choices={"last_norm": "after-pooling"} if late and net.pool_type == "avg" else {},
    )


def _scale(attention: Any) -> float | None:
    scale = getattr(attention, "scale", None)
    return float(scale) if isinstance(scale, float) else None


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the projected features [b o], or without a projection the pooled ones [b d]."""
    y = module(images)
    return y[0] if isinstance(y, tuple) else y


HOST = Host(
    name="open-clip",
    title="open_clip's own vision towers",
    dialects=("open-clip",),
    options={
        "*": "any field of the vision configuration",
        "embed_dim": "width of the projection",
        "quick_gelu": "the activation of OpenAI's models",
        "proj": "whether there is a projection",
        "config": "the configuration as a mapping, in place of a name or a file",
    },
    make=make,
    describe=describe,
    accepts=accepts,
    library="open_clip",
)
