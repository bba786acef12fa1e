"""What the real factory and its twin share: reading a configuration, the user's ViT around the stack, places, facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitconv.configs.parse import parse_file
from vitconv.configs.xformers_write import FILE as CONFIG
from vitconv.errors import UsageError
from vitconv.hosts.base.facts import activation_fact, common, eps_facts
from vitconv.hosts.base.host import Built, Inputs, Spec
from vitconv.hosts.base.images import image_shape
from vitconv.hosts.base.places import Places, Table, depth, locate, taps_of
from vitconv.hosts.base.survey import is_norm, survey
from vitconv.layout.semantics import Semantics
from vitconv.vit.xformers_style.encoder import XFormer
from vitconv.vit.xformers_style.report import ReportViT

_REAL = ("xformers.factory.model_factory", "xFormer")

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
    if spec.model and path.is_dir():
        path = path / CONFIG
    if not spec.model or not path.is_file():
        named = repr(str(path) if spec.model else "")
        raise UsageError(
            f"no such configuration file: {named}; expected YAML or JSON of xformers' factory or a folder with {CONFIG}"
        )
    return parse_file(path)


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


def is_stack(module: nn.Module) -> bool:
    """Return True for a stack of the factory, the twin's or the library's."""
    kinds = type(module).__mro__
    return isinstance(module, XFormer) or any((k.__module__, k.__name__) == _REAL for k in kinds)


def find(module: nn.Module) -> tuple[str, Any]:
    """Return (its name with a dot, the stack) in a network: the network itself, or the only one inside it.

    ("", module) where there is none, or more than one.
    """
    inside = [(name, m) for name, m in module.named_modules() if is_stack(m)]
    if len(inside) != 1 or not inside[0][0]:
        return "", module
    return f"{inside[0][0]}.", inside[0][1]


def stack_of(module: nn.Module) -> Any:
    """Return the stack inside a network; the network itself where it is one, or holds none or several."""
    return find(module)[1]


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
    prefix, stack = find(module)
    # A network of the user's own: what stands around the stack is known by its names only.
    own = stack is not module and not report
    places = locate(module, {**_table(prefix, report), **(_around(module, prefix) if own else {})})
    if any(getattr(b.wrap_ff, "norm", None) is not None and hasattr(b.wrap_att, "layer") for b in stack.encoders):
        _final_norms(stack, places, stack is not module)
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
            "pooling": "token" if report else None if own else "none",
            "position": "learned" if report else _position(stack),
            **eps_facts(places),
            **known,
        }
    )
    if report:
        proj = module.patch_embed.proj
        facts = facts.replaced({"grid": module.patch_embed.grid_size, "image_size": module.image_size})
        inputs = Inputs("images", (proj.in_channels, *module.image_size))
    elif own:
        inputs = Inputs("images", image_shape(module, spec))
        notes = (*notes, f"{prefix[:-1]} of {type(module).__name__} is a stack of xformers' factory")
    else:
        inputs = _stack_inputs(stack)
    return Built(
        host=host,
        model=spec.model,
        module=module,
        dialects=dialects,
        facts=facts,
        survey=survey(module, places, "softmax"),
        taps=taps_of(_tapped(places, own), head=places.get("head") if report else None, token=0 if report else None),
        inputs=inputs,
        run=_run_own if own else run,
        notes=notes,
    )


def _tapped(places: Places, own: bool) -> Places:
    # Whether a norm and a head of the user's own see one token or all is not known.
    return {k: m for k, m in places.items() if k not in ("norm", "head")} if own else places


def _run_own(module: nn.Module, images: Tensor) -> Tensor:
    from vitconv.hosts import python

    return python.run(module, images)


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


def _around(module: nn.Module, prefix: str) -> Table:
    """Return the last norm and the classifier outside the stack, where there is only one."""
    outside = [(name, m) for name, m in module.named_modules() if not f"{name}.".startswith(prefix)]
    found = {
        "norm": [name for name, m in outside if is_norm(m)],
        "head": [name for name, m in outside if isinstance(m, nn.Linear)],
    }
    return {place: tuple(names) for place, names in found.items() if len(names) == 1}


def _final_norms(stack: Any, places: Places, inside: bool) -> None:
    """Let the stream of a block end ahead of its final norm; the last one is the trunk's norm."""
    for i, block in enumerate(stack.encoders):
        if hasattr(block.wrap_att, "layer") and getattr(block.wrap_ff, "norm", None) is not None:
            places[f"blocks.{i}"] = block.wrap_ff.sublayer
            if i == len(stack.encoders) - 1:
                places["trunk_norm" if inside else "norm"] = block.wrap_ff.norm


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
