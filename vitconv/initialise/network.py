"""The network to initialise: by a name and changes to it, or as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitconv.configs.sizes import SIZES, Size
from vitconv.configs.timm_facts import facts_of
from vitconv.conversion.facts import Wishes
from vitconv.conversion.recognise import recognise
from vitconv.errors import NotRecognised, Refused, UsageError
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.change import CHANGES
from vitconv.layout.network import decode
from vitconv.layout.semantics import Semantics
from vitconv.registry import unknown
from vitconv.vit.config import ViTConfig

# Blocks, and any other size, that no network has: a table of its tensors alone would fill the memory.
DEEPEST, WIDEST = 10_000, 1 << 24

# What `--set` may change of a network by name, and the timm argument it stands for.
SIZE_OPTIONS: Mapping[str, str] = {
    "depth": "depth",
    "dim": "embed_dim",
    "heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "patch": "patch_size",
    "image": "img_size",
    "classes": "num_classes",
    "channels": "in_chans",
    "registers": "reg_tokens",
    "class_token": "class_token",
    "qk_norm": "qk_norm",
    "qkv_bias": "qkv_bias",
    "mlp": "mlp_layer",
    "pool": "global_pool",
    "final_norm": "final_norm",
}


@dataclass(frozen=True)
class Job:
    """What to initialise.

    Attributes:
        scheme: name of the scheme.
        to: target dialect; None keeps a checkpoint's own, and is canonical for a name.
        seed: seed of the network.
        changes: {name of `CHANGES`: value}.
        size: {name of `SIZE_OPTIONS`: value}, of a network by name only.
        facts: facts that win over those known.
        choices: options of the target dialect.
        dtype: float dtype of the output, or None for float32.
        source: how a checkpoint is to be read.
    """

    scheme: str
    to: str | None = None
    seed: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    size: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    dtype: str | None = None
    source: Wishes = field(default_factory=Wishes)


def architecture(what: str, job: Job) -> tuple[Architecture, str]:
    """Return the architecture that a name or the path of a checkpoint stands for, and its own dialect.

    Raises:
        UsageError: neither a known name nor a file, or an option that does not apply.
        Refused: timm builds something by that name that is not known by role.
    """
    if what in SIZES:
        return _by_name(SIZES[what], job), "canonical"
    if not Path(what).exists():
        found = _by_timm(what, job)
        if found is not None:
            return found
        raise unknown("size, and no such checkpoint:", what, list(SIZES)[:5] + [n for n in SIZES if what[:8] in n][:12])
    if job.size:
        raise UsageError(f"--set {next(iter(job.size))}: the sizes of a checkpoint are its own")
    source = recognise(what, job.source)
    with source.checkpoint:
        network = decode(source.match, source.dtypes, source.facts)
    return Architecture(network.shapes, network.facts.replaced(dict(job.facts))), source.match.dialect.name


def options(sets: Iterable[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Sort `--set` values: (options of a size, changes of the architecture, what is left as text)."""
    size: dict[str, str] = {}
    changes: dict[str, str] = {}
    left = []
    for text in sets:
        name, eq, value = (part.strip() for part in text.partition("="))
        if eq and name in CHANGES:
            changes[name] = value
        elif eq and name in SIZE_OPTIONS:
            size[name] = value
        else:
            left.append(text)
    return size, changes, left


def _by_name(size: Size, job: Job) -> Architecture:
    size = size.changed({SIZE_OPTIONS[name]: _value(name, text) for name, text in job.size.items()})
    args = size.args
    found = facts_of(args, size.name)
    if found.refusals:
        raise Refused(f"{size.name} is no plain ViT: {'; '.join(found.refusals)}")
    _possible(size.name, found.sizes)
    facts = found.facts.replaced(dict(job.facts))
    return Architecture(_config(args, found.sizes, facts).shapes(), facts)


def of_timm(name: str) -> bool:
    """Say whether timm is there and builds something by this name."""
    if find_spec("timm") is None:
        return False
    import timm

    return bool(timm.is_model(name))


def _by_timm(name: str, job: Job) -> tuple[Architecture, str] | None:
    """Return what timm builds by a name that is no plain ViT's (Swin, Beit, Eva), None where it has no such name."""
    if not of_timm(name):
        return None
    import timm

    from vitconv.inits.base.live import recognised

    given = {SIZE_OPTIONS[key]: _value(key, text) for key, text in job.size.items()}
    try:
        live = recognised(timm.create_model(name, **given), job.facts)
    except TypeError as e:
        raise UsageError(f"timm's {name} does not take {', '.join(f'--set {key}' for key in job.size)}: {e}") from None
    except NotRecognised as e:
        said = str(e).partition("\n  expected:")[0]
        raise Refused(f"{name} is not known by role: {said}") from None
    if live.rest:
        raise Refused(f"no role is known for {', '.join(live.rest)} of {name}")
    return live.arch, live.dialect


def _possible(name: str, sizes: Mapping[str, int]) -> None:
    """Refuse sizes that no network has, before a table of its tensors is made."""
    words = {
        "d": "the width",
        "i": "the depth",
        "m": "the width of the MLP, by mlp_ratio,",
        "n": "the number of patches",
    }
    for axis, size in sizes.items():
        most = DEEPEST if axis == "i" else WIDEST
        if not (axis not in "or") <= size <= most:
            hint = ": the image is smaller than a patch" if axis == "n" and size < 1 else ""
            raise Refused(f"{name}: {words.get(axis, f'the size {axis}')} is {size}, expected 1 to {most}{hint}")


def _config(args: Mapping[str, Any], sizes: Mapping[str, int], facts: Semantics) -> ViTConfig:
    """Return the configuration of timm's arguments (timm/models/vision_transformer.py and deit.py, 1.0.31)."""
    if args["global_pool"] == "map" or args["class"] not in ("VisionTransformer", "VisionTransformerDistilled"):
        raise Refused("only networks that end in a class token or an average are drawn by name")
    cls, dist = bool(args["class_token"]), args["class"] == "VisionTransformerDistilled"
    table, rows = args["pos_embed"] == "learn", not args["no_embed_class"]
    average = args["global_pool"] == "avg" if args["fc_norm"] is None else bool(args["fc_norm"])
    # In a res-post block it is the start of the norms' gain.
    scaled = args["init_values"] is not None and args["block_fn"] != "ResPostBlock"
    final, norm_bias = bool(args["final_norm"]), facts.norm_kind != "rmsnorm"
    return ViTConfig(
        width=sizes["d"], depth=sizes["i"], attention_width=sizes["a"], mlp_width=sizes["m"],
        patch=(sizes["p"], sizes["q"]), channels=sizes["c"], positions=sizes["n"] if table else 0, facts=facts,
        classes=sizes.get("o", 0), classes_dist=sizes.get("o", 0) if dist else 0, registers=sizes.get("r", 0),
        cls=cls, dist=dist, pos_cls=table and rows and cls, pos_dist=table and dist,
        pos_reg=table and rows and "r" in sizes, patch_bias=not args["pre_norm"],
        q_bias=bool(args["qkv_bias"]), k_bias=bool(args["qkv_bias"]), v_bias=bool(args["qkv_bias"]),
        out_bias=bool(args["proj_bias"]), mlp_bias=bool(args["proj_bias"]), norm_bias=norm_bias,
        qk_norm=bool(args["qk_norm"]), qk_norm_bias=norm_bias, attn_norm=bool(args["scale_attn_norm"]),
        mlp_norm=bool(args["scale_mlp_norm"]), layer_scale=scaled,
        gated=args["mlp_layer"] in ("SwiGLU", "SwiGLUPacked"), embed_norm=bool(args["pre_norm"]),
        norm=final and not average, pool_norm=final and average,
    )  # fmt: skip


def _value(name: str, text: str) -> Any:
    try:
        if name in ("class_token", "qk_norm", "qkv_bias", "final_norm"):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if name in ("patch", "image"):
            sides = [int(part) for part in text.lower().split("x")]
            return sides * 2 if len(sides) == 1 else sides
        if name == "mlp":
            return {"mlp": "Mlp", "swiglu": "SwiGLU", "swiglupacked": "SwiGLUPacked"}[text.lower()]
        if name in ("mlp_ratio", "pool"):
            return float(text) if name == "mlp_ratio" else {"none": ""}.get(text, text)
        return int(text)
    except (KeyError, ValueError):
        raise UsageError(f"--set {name}={text}: not a value of {name}") from None
