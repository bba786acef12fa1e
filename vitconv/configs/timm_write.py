"""Write config.json for `timm.create_model("local-dir:FOLDER")`.

JSON can override every size and flag of an entrypoint, and name a norm or an activation by its word; but a norm's
word always means eps 1e-6, and blocks and MLP classes have no words. So an entrypoint is chosen as the base that has
the right eps, MLP and block already, and its sizes are overridden.
Source: huggingface/pytorch-image-models timm/models/{vision_transformer,deit,_hub}.py,
timm/layers/create_norm.py, 1.0.31.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import TO_TIMM
from vitconv.configs.request import Draft, Request, Written

# (block, MLP, with distillation): the entrypoint that has them, and the norm it has.
_BASES: Mapping[tuple[str, str, bool], tuple[tuple[str, str, float], ...]] = {
    ("pre", "Mlp", False): (
        ("vit_base_patch16_224", "layernorm", 1e-6),
        ("vit_base_patch16_clip_224", "layernorm", 1e-5),
    ),
    ("pre", "SwiGLUPacked", False): (("vit_giant_patch14_dinov2", "layernorm", 1e-6),),
    ("pre", "SwiGLU", False): (("aimv2_large_patch14_224", "rmsnorm", 1e-5),),
    ("res-post", "Mlp", False): (("vit_base_patch16_rpn_224", "layernorm", 1e-6),),
    ("parallel", "Mlp", False): (("vit_small_patch16_18x2_224", "layernorm", 1e-6),),
    ("pre", "Mlp", True): (("deit_base_distilled_patch16_224", "layernorm", 1e-6),),
}
# In these the argument is not None by default, so that leaving it out would switch it on.
_SWITCHED_ON: Mapping[str, tuple[str, ...]] = {
    "vit_giant_patch14_dinov2": ("init_values",),
    "vit_base_patch16_rpn_224": ("init_values",),
    "vit_small_patch16_18x2_224": ("init_values",),
    "aimv2_large_patch14_224": ("embed_norm_layer",),
}
POOLS: Mapping[str, str] = {
    "token": "token",
    "avg": "avg",
    "avg-prefix": "avg",
    "map": "map",
    "map-prefix": "map",
    "none": "",
}


def write(request: Request) -> Written:
    """Return config.json, or what is lacking, or why timm's config.json cannot say it."""
    draft = Draft(request, "timm")
    image = draft.image_size()
    draft.only("attention", "softmax", why="timm's VisionTransformer has softmax attention")
    draft.only("kv_normalised", True, why="timm gives keys and values the normalised input")
    draft.only("position", "learned", "sincos", "none", why="timm's VisionTransformer adds a table, or nothing")
    if request.sizes.get("a", request.sizes["d"]) != request.sizes["d"]:
        draft.refuse(f"the attention width {request.sizes['a']} is not the width {request.sizes['d']}")
    base, args = _base(draft)
    args |= _sizes(request, image) | _tokens(draft) | _layers(draft) | _pooling(draft)
    args["num_heads"] = draft.heads()
    args["act_layer"] = draft.named("activation", TO_TIMM)
    return files(draft, base, args, image, first="patch_embed.proj")


def files(
    draft: Draft,
    base: str,
    args: dict[str, Any],
    image: tuple[int, int],
    *,
    first: str,
    head: str = "head",
    width: int | None = None,
) -> Written:
    """Return config.json of the entrypoint `base` with the arguments `args`, or what is lacking.

    `image` is (height, width) in pixels, `first` and `head` the paths of the patch projection and the classifier,
    `width` that of the features.
    """
    request, facts = draft.request, draft.request.facts
    classes = request.sizes["o"] if request.has("head.weight") else 0
    cfg: dict[str, Any] = {
        "input_size": [request.sizes["c"], *image],
        "fixed_input_size": True,
        "num_classes": classes,
        "first_conv": first,
        "classifier": ["head", "head_dist"] if request.has("embed.dist") else head,
    }
    for name in ("mean", "std"):
        value = getattr(facts, name)
        if value is not None:
            cfg[name] = list(value)
    if facts.mean is None or facts.std is None:
        draft.notes.append("image mean and std are unknown: timm will take its own default; say --set mean= std=")
    cfg |= {k: request.extra[k] for k in ("interpolation", "crop_pct", "crop_mode") if k in request.extra}
    config: dict[str, Any] = {
        "architecture": base,
        "num_classes": classes,
        "num_features": width or request.sizes["d"],
        "global_pool": args["global_pool"],
        "model_args": args,
        "pretrained_cfg": cfg,
    }
    labels = request.extra.get("labels") or ()
    if labels and len(labels) == classes:
        config["label_names"] = list(labels)
    return draft.close({"config.json": config})


def _base(draft: Draft) -> tuple[str, dict[str, Any]]:
    """Return the entrypoint that has what JSON cannot say, and the arguments that undo what is not wanted of it."""
    request = draft.request
    block, kind, eps = draft.need("norm_placement"), draft.norm_kind(), draft.one_eps()
    mlp = _mlp(request)
    block = "parallel" if block == "pre" and request.in_block("twin.norm1.weight") else block
    bases = _BASES.get((block, mlp, request.has("embed.dist")))
    if block is not None and bases is None:
        twist = " with a distillation token" if request.has("embed.dist") else ""
        what = f"a {block}-norm block with {mlp}{twist}"
        draft.refuse(f"no VisionTransformer of timm has {what}")
    if not bases or draft.lacking.keys() & {"norm_kind", "norm_eps"}:
        return "", {}
    name, word = entrypoint(draft, bases, kind, eps)
    return name, {**dict.fromkeys(_SWITCHED_ON.get(name, ())), **word}


def entrypoint(
    draft: Draft, bases: tuple[tuple[str, str, float], ...], kind: str | None, eps: float, *, words: bool = True
) -> tuple[str, dict[str, Any]]:
    """Return the entrypoint of `bases`, each (name, norm, its eps), that has this norm, and the argument that says it.

    `words`: the class takes a norm by its word, and by its word any norm has eps 1e-6. An eps that is smaller than the
    smallest that can be said is one that the library's network does not have: that is written, and said aloud.
    """
    for name, has, at in bases:
        if (kind, eps) == (has, at):
            return name, {}
    said = {(k, e) for _, k, e in bases} | ({("layernorm", 1e-6), ("rmsnorm", 1e-6)} if words else set())
    if (kind, eps) in said:
        return bases[0][0], {"norm_layer": kind}
    least = min((e for k, e in said if k == kind), default=0.0)
    if eps < least <= 1e-6:
        draft.notes.append(
            f"norm_eps is {eps:g}, and timm's config.json can say no less than {least:g}: the network that timm opens"
            f" computes with {least:g}, which shows where activations are small; build it with"
            f" norm_layer=partial(..., eps={eps:g}), or by vitconv.load, to keep {eps:g}"
        )
        return entrypoint(draft, bases, kind, least, words=words)
    choices = sorted(f"{k} at {e:g}" for k, e in said)
    draft.refuse(
        f"timm's config.json cannot say {kind} at eps {eps:g} here, only {' or '.join(choices)}; "
        f"build the model with norm_layer=partial(..., eps={eps:g}), or accept another eps for all norms,"
        " as with --set norm_eps=1e-6 --set final_norm_eps=1e-6"
    )
    return "", {}


def ratio_of(hidden: int, width: int) -> float:
    """Return the ratio of which timm makes this hidden width: int(width * ratio)."""
    # Half a unit above where the plain quotient would be cut one short.
    return hidden / width if int(width * (hidden / width)) == hidden else (hidden + 0.5) / width


def _mlp(request: Request) -> str:
    if not request.in_block("mlp.gate.weight"):
        return "Mlp"
    return "SwiGLU" if any(key.endswith("mlp.fc1_g.weight") for key in request.keys) else "SwiGLUPacked"


def _sizes(request: Request, image: tuple[int, int]) -> dict[str, Any]:
    sizes = request.sizes
    d, p = sizes["d"], sizes["p"]
    hidden = sizes["m"] * (2 if _mlp(request) == "SwiGLUPacked" else 1)
    return {
        "img_size": list(image),
        "patch_size": p if p == sizes.get("q", p) else [p, sizes["q"]],
        "in_chans": sizes["c"],
        # No num_classes: timm takes that of the file itself, and transformers' TimmWrapper gives its own.
        "embed_dim": d,
        "depth": sizes["i"],
        "mlp_ratio": ratio_of(hidden, d),
    }


def _tokens(draft: Draft) -> dict[str, Any]:
    request = draft.request
    cls, registers = request.has("embed.cls"), request.sizes.get("r", 0) if request.has("embed.reg") else 0
    pre_norm = request.has("embed.norm.weight")
    if pre_norm == request.has("embed.patch.bias"):
        how = "has both a norm before the blocks and" if pre_norm else "has neither a norm before the blocks nor"
        draft.refuse(f"the network {how} a bias in the patch projection; timm couples them")
    heads = [name for name in ("head", "head_dist") if request.has(f"{name}.weight")]
    if request.has("embed.dist") and len(heads) == 1:
        draft.refuse(f"timm's distilled model has two heads, this network only {heads[0]}")
    draft.biased("timm", *heads)
    if request.has("embed.dist") and (registers or pre_norm):
        draft.refuse("timm's distilled model has no registers and no norm before the blocks")
    out: dict[str, Any] = {
        "class_token": cls,
        "reg_tokens": registers,
        "pre_norm": pre_norm,
        "pos_embed": "learn" if request.has("embed.pos") else "none",
    }
    if cls or registers:
        out["no_embed_class"] = not (request.has("embed.pos_cls") or request.has("embed.pos_reg"))
    if not request.has("embed.pos"):
        out["no_embed_class"] = False
    return out


def _layers(draft: Draft) -> dict[str, Any]:
    request = draft.request
    out_bias, mlp_bias = request.in_block("attn.out.bias"), request.in_block("mlp.down.bias")
    if out_bias != mlp_bias:
        draft.refuse("timm's proj_bias holds for attention and MLP alike; here one has a bias, the other none")
    scale = request.in_block("ls1")
    if scale and request.facts.norm_placement == "res-post":
        draft.refuse("timm's ResPostBlock has no LayerScale")
    return {
        "qkv_bias": request.in_block("attn.q.bias"),
        "proj_bias": out_bias,
        "qk_norm": request.in_block("attn.q_norm.weight"),
        "scale_attn_norm": request.in_block("attn.norm.weight"),
        "scale_mlp_norm": request.in_block("mlp.norm.weight"),
        # The value only starts a fresh model; here the weights bring their own.
        **({"init_values": 1e-5} if scale else {}),
    }


def _pooling(draft: Draft) -> dict[str, Any]:
    request = draft.request
    pooling = draft.need("pooling")
    draft.only("pooling", *POOLS, why="timm pools the class token, a mean, or by an attention-pooling head")
    if pooling == "token" and not request.has("embed.cls"):
        draft.refuse("pooling=token, but there is no class token")
    before, after = request.has("norm.weight"), request.has("pool.norm.weight")
    if before and after:
        draft.refuse("timm has a norm before the pooling or after it, not both")
    draft.only("pool_heads", why="timm's VisionTransformer pools by as many heads as its blocks have")
    return {
        "global_pool": POOLS.get(pooling or "", ""),
        "pool_include_prefix": pooling in ("avg-prefix", "map-prefix"),
        "final_norm": before or after,
        "fc_norm": after,
    }
