"""Write config.json of a NaFlexVit for `timm.create_model("local-dir:FOLDER")`.

The entrypoint taken as the base has no option that cannot be undone; norms are named by a word, which means eps 1e-6.
Source: huggingface/pytorch-image-models timm/models/naflexvit.py, 1.0.31.
"""

from __future__ import annotations

from typing import Any

from vitconv.configs.activations import TO_TIMM
from vitconv.configs.request import Draft, Request, Written
from vitconv.configs.timm_write import POOLS, files

BASE = "naflexvit_base_patch16_siglip"
_RESIZE = {
    "bicubic": ("bicubic", False),
    "bicubic-antialias": ("bicubic", True),
    "bilinear": ("bilinear", False),
    "bilinear-antialias": ("bilinear", True),
}


def write(request: Request) -> Written:
    """Return config.json, or what is lacking, or why timm's config.json cannot say it."""
    draft = Draft(request, "timm")
    eva = request.dialect == "timm-naflex-eva"
    draft.only("attention", "softmax", why="timm's NaFlexVit has softmax attention")
    draft.only("kv_normalised", True, why="timm gives keys and values the normalised input")
    draft.only("norm_placement", "pre", why="timm's config.json cannot say another block of NaFlexVit", needed=True)
    if request.sizes.get("a", request.sizes["d"]) != request.sizes["d"]:
        draft.refuse(f"the attention width {request.sizes['a']} is not the width {request.sizes['d']}")
    kind, eps = draft.norm_kind(), draft.one_eps()
    if not draft.lacking.keys() & {"norm_eps", "final_norm_eps", "embed_norm_eps", "qk_norm_eps"} and eps != 1e-6:
        draft.refuse(
            f"a norm that timm's config.json names has eps 1e-6, here it is {eps:g}; build the model with"
            f" norm_layer=partial(..., eps={eps:g}), or accept another eps for all norms, as with"
            " --set norm_eps=1e-6 --set final_norm_eps=1e-6"
        )
    args = _sizes(draft) | _position(draft) | _pooling(draft) | (_eva(draft) if eva else _block(draft))
    args |= {"norm_layer": kind, "num_heads": draft.heads()}
    if not (eva and request.in_block("mlp.gate.weight")):
        args["act_layer"] = draft.named("activation", TO_TIMM)
    draft.biased("timm", *(["head"] if request.has("head.weight") else []))
    image = tuple(n * side for n, side in zip(_grid(draft), args["patch_size"], strict=True))
    return files(draft, BASE, args, (image[0], image[1]), first="embeds.proj")


def _grid(draft: Draft) -> tuple[int, int]:
    sizes, facts = draft.request.sizes, draft.request.facts
    if "rows" in sizes:
        return sizes["rows"], sizes["columns"]
    grid: tuple[int, int] = facts.grid or draft.need("grid") or (1, 1)
    return grid


def _sizes(draft: Draft) -> dict[str, Any]:
    request = draft.request
    sizes, pre_norm = request.sizes, request.has("embed.norm.weight")
    if pre_norm == request.has("embed.patch.bias"):
        draft.refuse("timm couples a norm before the blocks with a patch projection without a bias")
    d, m = sizes["d"], sizes["m"]
    return {
        "patch_size": [sizes["p"], sizes["q"]],
        "in_chans": sizes["c"],
        "embed_dim": d,
        "depth": sizes["i"],
        # timm computes int(width * ratio): half a unit above where the plain quotient would be cut one short.
        "mlp_ratio": m / d if int(d * (m / d)) == m else (m + 0.5) / d,
        "class_token": request.has("embed.cls"),
        "reg_tokens": sizes.get("r", 0) if request.has("embed.reg") else 0,
        "pre_norm": pre_norm,
        "embed_proj_type": "conv" if request.options.get("stem") == "conv" else "linear",
        "patchify_channels_last": request.options.get("stem") != "linear-channels-first",
        **({"embed_norm_layer": draft.norm_kind()} if request.has("embed.patch_norm.weight") else {}),
        "qkv_bias": request.in_block("attn.q.bias"),
        "qk_norm": request.in_block("attn.q_norm.weight"),
        "scale_attn_inner_norm": request.in_block("attn.norm.weight"),
        "scale_mlp_norm": request.in_block("mlp.norm.weight"),
        # The value only starts a fresh model; here the weights bring their own.
        **({"init_values": 1e-5} if request.in_block("ls1") else {}),
    }


def _position(draft: Draft) -> dict[str, Any]:
    request = draft.request
    grid = list(_grid(draft))
    if request.has("embed.pos_y"):
        return {"pos_embed": "factorized", "pos_embed_grid_size": grid}
    if not request.has("embed.pos"):
        return {"pos_embed": "none", "pos_embed_grid_size": grid}
    rule = request.facts.position_resize
    if rule is not None and rule not in _RESIZE:
        draft.notes.append(f"timm cannot resize positions by {rule}; it takes bicubic with antialias")
    mode, antialias = _RESIZE.get(rule or "", ("bicubic", True))
    return {
        "pos_embed": "learned",
        "pos_embed_grid_size": grid,
        "pos_embed_interp_mode": mode,
        "pos_embed_antialias": antialias,
    }


def _pooling(draft: Draft) -> dict[str, Any]:
    request, pooling = draft.request, draft.need("pooling")
    draft.only("pooling", *POOLS, why="timm pools the class token, a mean, or by an attention-pooling head")
    before, after = request.has("norm.weight"), request.has("pool.norm.weight")
    if before and after:
        draft.refuse("timm has a norm before the pooling or after it, not both")
    if pooling == "token" and not request.has("embed.cls"):
        draft.refuse("pooling=token, but there is no class token")
    out = {
        "global_pool": POOLS.get(pooling or "", ""),
        "pool_include_prefix": pooling in ("avg-prefix", "map-prefix"),
        "final_norm": before or after,
        "fc_norm": after,
    }
    if not request.has("pool.probe"):
        return out
    return out | {"attn_pool_mlp_ratio": pool_ratio(request), "attn_pool_num_heads": request.facts.pool_heads}


def pool_ratio(request: Request) -> float:
    """Return the ratio of which timm makes the hidden width of its attention-pooling head."""
    w, d = request.sizes["w"], request.sizes["d"]
    return w / d if int(d * (w / d)) == w else (w + 0.5) / d


def _block(draft: Draft) -> dict[str, Any]:
    request = draft.request
    if request.in_block("mlp.gate.weight"):
        draft.refuse("timm's config.json cannot say a gated MLP for the plain blocks of NaFlexVit")
    draft.only("position", "learned", "sincos", "none", why="the plain blocks of NaFlexVit have no rotary positions")
    if request.in_block("attn.out.bias") != request.in_block("mlp.down.bias"):
        draft.refuse("timm's proj_bias holds for attention and MLP alike; here one has a bias, the other none")
    return {"proj_bias": request.in_block("attn.out.bias")}


def _eva(draft: Draft) -> dict[str, Any]:
    request, facts = draft.request, draft.request.facts
    gated = request.in_block("mlp.gate.weight")
    if gated:
        draft.only("activation", "silu", why="timm's gated MLP has SiLU")
    split = any(".attn.q_proj." in key for key in request.keys)
    if gated and any(".mlp.fc1_g." in key for key in request.keys) != request.in_block("mlp.norm.weight"):
        draft.refuse("timm keeps the two halves of a gated MLP apart exactly when a norm follows them")
    rope = facts.position == "rope"
    out: dict[str, Any] = {"attn_type": "eva", "qkv_fused": not split, "swiglu_mlp": gated}
    if not rope:
        return out
    layout, theta = draft.need("rope_layout"), draft.need("rope_theta")
    out |= {"rope_temperature": theta, "rope_type": "dinov3" if layout == "half" else "axial"}
    out["rope_rotate_half"] = layout == "half"
    if layout == "interleaved" and facts.rope_reference is not None:
        out["rope_ref_feat_shape"] = list(facts.rope_reference)
    return out
