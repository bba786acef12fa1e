"""What the real factory and its twin share: reading a configuration, the user's ViT around the stack, places, facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitconv.errors import BadFile, UsageError
from vitconv.hosts.base.facts import activation_fact, common, eps_facts
from vitconv.hosts.base.host import Built, Inputs, Spec
from vitconv.hosts.base.places import Places, Table, depth, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.layout.semantics import Semantics
from vitconv.vit.xformers_style.report import ReportViT

# The attention and the feedforward stand at another path for each norm style, and in a block with a final norm.
_BLOCK = {
    "blocks.{i}.norm1": ("wrap_att.layer.norm", "wrap_att.norm"),
    "blocks.{i}.attn": ("wrap_att.layer.sublayer", "wrap_att.sublayer.layer"),
    "blocks.{i}.norm2": ("wrap_ff.sublayer.layer.norm", "wrap_ff.layer.norm", "wrap_ff.norm"),
    "blocks.{i}.mlp": ("wrap_ff.sublayer.layer.sublayer", "wrap_ff.layer.sublayer", "wrap_ff.sublayer.layer"),
}

OPTIONS = {
    "config": "the configuration as a mapping or a list, in place of a file",
    "wrap": "report (the user's ViT of the first public report around the stack) or none; report unless the stack has"
    " a patch embedding",
    "image": "image size in pixels, height and width (224 224)",
    "patch": "patch size in pixels (16 16)",
    "channels": "image channels (3)",
    "classes": "classes of the head (1000)",
}


def read_config(spec: Spec) -> Any:
    """Return the configuration of the stack: the option `config`, or the YAML or JSON file that `spec.model` names.

    Raises:
        UsageError: neither is given, or there is no such file.
        BadFile: the file is neither YAML nor JSON.
    """
    if spec.options.get("config") is not None:
        return spec.options["config"]
    path = Path(spec.model)
    if not spec.model or not path.is_file():
        raise UsageError(f"no such configuration file: {spec.model!r}; expected YAML or JSON of xformers' factory")
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return json.loads(text)
        import yaml

        return yaml.safe_load(text)
    except ImportError:
        raise UsageError(f"{path}: reading YAML needs pyyaml") from None
    except (ValueError, yaml.YAMLError) as e:
        raise BadFile(f"{path}: {e}") from None


def wrapped(stack: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """Put the first report's ViT around the stack, unless the stack embeds its own patches or `wrap` is none."""
    encoders: Any = stack.encoders
    wrap = options.get("wrap") or ("none" if encoders[0].patch_emb is not None else "report")
    if wrap not in ("report", "none"):
        raise UsageError(f"wrap={wrap!r}: expected report or none")
    if wrap == "none":
        return stack
    return ReportViT(
        stack,
        width_of(stack),
        image=_pair(options.get("image", 224)),
        patch=_pair(options.get("patch", 16)),
        channels=int(options.get("channels", 3)),
        classes=int(options.get("classes", 1000)),
    )


def width_of(stack: Any) -> int:
    """Return the width d of a stack."""
    return next(m for m in stack.encoders[0].modules() if isinstance(m, nn.Linear)).out_features


def stack_of(module: nn.Module) -> Any:
    """Return the stack inside a network: the module itself, or its backbone."""
    return module.backbone if isinstance(module, ReportViT) else module


def describe(
    module: nn.Module,
    spec: Spec,
    host: str,
    dialects: tuple[str, ...],
    more: Callable[[Any, Places], dict[str, Any]],
    notes: tuple[str, ...] = (),
) -> Built:
    """Tell what a network with a stack of the factory is; `more(stack, places)` gives the facts that differ by host."""
    report = isinstance(module, ReportViT)
    stack = stack_of(module)
    places = locate(module, _table("backbone." if report else "", report))
    if any(getattr(b.wrap_ff, "norm", None) is not None and hasattr(b.wrap_att, "layer") for b in stack.encoders):
        _final_norms(stack, places, report)
    attentions: list[Any] = [places[f"blocks.{i}.attn"] for i in range(depth(places))]
    alphas = [_alpha(b) for b in stack.encoders]
    post = common(not hasattr(b.wrap_att, "layer") for b in stack.encoders)
    deep = any(alpha is not None for alpha in alphas)
    placement = None if post is None else "pre" if not post else "deepnorm" if deep else "post"
    known = more(stack, places)
    facts = Semantics().replaced(
        {
            "heads": common(a.num_heads if hasattr(a, "num_heads") else a.heads for a in attentions),
            "norm_placement": placement,
            "residual_alpha": common(alphas),
            "norm_kind": "layernorm",
            "activation": known["activation"] if "activation" in known else activation_fact(places),
            "attention": common(_kind(a.attention) for a in attentions),
            "attention_scale": (width_of(stack) // _heads(attentions[0])) ** -0.5,
            "pooling": "token" if report else "none",
            "position": "learned" if report else _position(stack),
            **eps_facts(places),
            **known,
        }
    )
    if report:
        proj = module.patch_embed.proj
        facts = facts.replaced({"grid": module.patch_embed.grid_size, "image_size": module.image_size})
        inputs = Inputs("images", (proj.in_channels, *module.image_size))
    else:
        inputs = _stack_inputs(stack)
    return Built(
        host=host,
        model=spec.model,
        module=module,
        dialects=dialects,
        facts=facts,
        survey=survey(module, places, "softmax"),
        taps=taps_of(places, head=places.get("head"), token=0 if report else None),
        inputs=inputs,
        run=run,
        notes=notes,
    )


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the class token's logits [b o] of the report's ViT, or the stack's output [b t d]."""
    y = module(images)
    return y["CLS"] if isinstance(y, dict) else y


def _table(prefix: str, report: bool) -> Table:
    # blocks.{i} is the block, or the residual inside it where a final norm stands at its end (see _final_norms).
    table = {place: tuple(f"{prefix}encoders.{{i}}.{path}" for path in paths) for place, paths in _BLOCK.items()}
    mlp = table["blocks.{i}.mlp"]
    return {
        "blocks.{i}": (f"{prefix}encoders.{{i}}",),
        **table,
        "blocks.{i}.mlp.act": tuple(f"{path}.mlp.1" for path in mlp),
        "embed.end": (f"{prefix}encoders.0.wrap_att",),
        **({"norm": ("head.0",), "head": ("head.1",)} if report else {}),
    }


def _final_norms(stack: Any, places: Places, report: bool) -> None:
    """Let the stream of a block end ahead of its final norm; the last one is the trunk's norm."""
    for i, block in enumerate(stack.encoders):
        if hasattr(block.wrap_att, "layer") and getattr(block.wrap_ff, "norm", None) is not None:
            places[f"blocks.{i}"] = block.wrap_ff.sublayer
            if i == len(stack.encoders) - 1:
                places["trunk_norm" if report else "norm"] = block.wrap_ff.norm


def _alpha(block: Any) -> float | None:
    inner = getattr(block.wrap_att, "sublayer", None)
    return getattr(inner, "scale", None)


def _kind(attention: Any) -> str | None:
    """Return softmax or causal for dense attention; the factory's other kinds have no name among the facts."""
    if type(attention).__name__ not in ("ScaledDotProduct", "DotProduct"):
        return None
    return "causal" if attention.causal else "softmax"


def _heads(attention: Any) -> int:
    return attention.num_heads if hasattr(attention, "num_heads") else attention.heads


def _position(stack: Any) -> str | None:
    encoding = stack.encoders[0].pose_encoding
    rotary = any(getattr(m, "rotary_embeddings", None) is not None for m in stack.modules())
    if rotary:
        return "rope"
    if encoding is None:
        return None
    return "learned" if hasattr(encoding, "pos_emb") else "sincos"


def _stack_inputs(stack: Any) -> Inputs:
    first = stack.encoders[0]
    encoding = first.pose_encoding
    tokens = 17 if not hasattr(encoding, "pos_emb") else encoding.pos_emb.shape[1]
    tokens -= int(getattr(encoding, "class_token", None) is not None)
    if first.patch_emb is None:
        return Inputs("tokens", (tokens, width_of(stack)))
    conv = first.patch_emb[1]
    side = round(tokens**0.5)
    pixels = tuple(
        (side - 1) * s + k - 2 * p for s, k, p in zip(conv.stride, conv.kernel_size, conv.padding, strict=True)
    )
    return Inputs("images", (conv.in_channels, *pixels))


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
