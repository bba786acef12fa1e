"""Write config.json of an Eva (EVA, EVA-02, DINOv3) for `timm.create_model("local-dir:FOLDER")`.

Nearly all of it is arguments; a norm has no word here, so an entrypoint with the right eps is the base, and every
argument that decides the function is said again.
Source: huggingface/pytorch-image-models timm/models/eva.py, 1.0.31.
"""

from __future__ import annotations

from typing import Any

from vitconv.configs.request import Draft, Request, Written
from vitconv.configs.timm_naflex_write import pool_ratio
from vitconv.configs.timm_write import POOLS, entrypoint, files, ratio_of

_BASES = (
    ("eva02_base_patch14_224", "layernorm", 1e-6),
    ("vit_small_patch16_dinov3", "layernorm", 1e-5),
)
# Of EVA-02's code.
_INTERLEAVED_THETA = 10000.0


def write(request: Request) -> Written:
    """Return config.json, or what is lacking, or why timm's config.json cannot say it."""
    draft = Draft(request, "timm")
    image = draft.image_size()
    draft.only("attention", "softmax", why="timm's Eva has softmax attention")
    draft.only("kv_normalised", True, why="timm gives keys and values the normalised input")
    draft.only("norm_placement", "pre", "res-post", why="timm's Eva has no such block", needed=True)
    if request.sizes.get("a", request.sizes["d"]) != request.sizes["d"]:
        draft.refuse(f"the attention width {request.sizes['a']} is not the width {request.sizes['d']}")
    kind, eps = draft.norm_kind(), draft.one_eps()
    base = "" if draft.lacking.keys() & _EPS else entrypoint(draft, _BASES, kind, eps, words=False)[0]
    args = _sizes(draft, image) | _block(draft) | _rope(draft) | _ends(draft)
    return files(draft, base, args, image, first="patch_embed.proj")


_EPS = {"norm_kind", "norm_eps", "final_norm_eps", "embed_norm_eps", "qk_norm_eps"}


def _sizes(draft: Draft, image: tuple[int, int]) -> dict[str, Any]:
    sizes = draft.request.sizes
    p, q = sizes["p"], sizes.get("q", sizes["p"])
    return {
        "img_size": list(image),
        "patch_size": p if p == q else [p, q],
        "in_chans": sizes["c"],
        "embed_dim": sizes["d"],
        "depth": sizes["i"],
        "num_heads": draft.heads(),
        "mlp_ratio": ratio_of(sizes["m"], sizes["d"]),
    }


def _block(draft: Draft) -> dict[str, Any]:
    request = draft.request
    gated, post = request.in_block("mlp.gate.weight"), request.facts.norm_placement == "res-post"
    draft.only("activation", "silu" if gated else "gelu", why="timm's Eva has silu in a gated MLP and gelu otherwise")
    if post and any(request.in_block(name) for name in ("attn.q_norm.weight", "ls1")):
        draft.refuse("timm's Eva has neither norms of queries and keys nor LayerScale in blocks that norm at their end")
    aligned = gated and request.options.get("mlp") == "SwiGLU" and not request.in_block("mlp.norm.weight")
    return {
        "qkv_bias": request.in_block("attn.q.bias"),
        "qkv_fused": request.options.get("attention") != "split",
        "qk_norm": request.in_block("attn.q_norm.weight"),
        "swiglu_mlp": gated,
        # Any alignment has two projections in place of one; to whole numbers it aligns nothing.
        "swiglu_align_to": 1 if aligned else 0,
        "scale_mlp": request.in_block("mlp.norm.weight"),
        "scale_attn_inner": request.in_block("attn.norm.weight"),
        "attn_type": "rope" if str(request.options.get("attention")).startswith("AttentionRope") else "eva",
        "use_post_norm": post,
        "init_values": 1e-5 if request.in_block("ls1") else None,
    }


def _rope(draft: Draft) -> dict[str, Any]:
    facts, table = draft.request.facts, draft.request.has("embed.pos")
    draft.only("position", "learned", "sincos", "none", "rope", why="timm's Eva adds a table or turns queries and keys")
    # Beside a table too the keys of EVA-02 do not say whether queries and keys are turned.
    unsure = not table or (facts.position is None and "rope" in draft.request.open.get("position", ()))
    position = draft.need("position") if unsure else facts.position
    if position != "rope":
        return {"use_rot_pos_emb": False, "use_abs_pos_emb": table}
    half, mixed = draft.need("rope_layout") == "half", draft.request.in_block("attn.rope")
    # Networks with a bias of keys number either side first, and need no reference.
    keys = draft.request.in_block("attn.k.bias") and not half
    theta, offset = facts.rope_theta, facts.rope_offset or 0.0
    if theta is None and not mixed:
        theta = draft.need("rope_theta") if half or keys else _INTERLEAVED_THETA
    order = draft.need("rope_order") if keys or mixed else facts.rope_order
    if half and (order == "columns" or offset):
        draft.refuse("timm numbers the places of DINOv3's rotary positions by rows first and from 0")
    # One base makes its waves anew for every image, in which float64 comes out rounded.
    fixed: dict[str, Any] = {} if half else {"dynamic_img_size": False}
    scaled: dict[str, Any] = {} if half or mixed else {"ref_feat_shape": None}
    if scaled and (facts.rope_reference is not None or not keys):
        scaled = {"ref_feat_shape": list(draft.need("rope_reference") or (1, 1))}
    return {
        "use_rot_pos_emb": True,
        "use_abs_pos_emb": table,
        "rope_type": "dinov3" if half else "mixed" if mixed else "cat",
        "rope_rotate_half": half,
        # It draws what frequencies start from, and the file has those.
        "rope_temperature": 10.0 if theta is None else theta,
        "rope_grid_offset": offset,
        "rope_grid_indexing": "xy" if order == "columns" else "ij",
        **scaled,
        **fixed,
    }


def _ends(draft: Draft) -> dict[str, Any]:
    request, pooling = draft.request, draft.need("pooling")
    prefix = request.has("embed.cls") or request.has("embed.reg")
    draft.only(
        "pooling", "token", "avg", "none", "map-prefix" if prefix else "map",
        why="timm's Eva pools the class token, the mean of the patches, or all tokens by attention",
    )  # fmt: skip
    cls, pre = request.has("embed.cls"), request.has("embed.norm.weight")
    if pooling == "token" and not cls:
        draft.refuse("pooling=token, but there is no class token")
    if pre == request.has("embed.patch.bias"):
        draft.refuse("timm couples a norm before the blocks with a patch projection without a bias")
    draft.biased("timm", *(["head"] if request.has("head.weight") else []))
    return {
        "class_token": cls,
        "num_reg_tokens": request.sizes.get("r", 0) if request.has("embed.reg") else 0,
        "no_embed_class": request.has("embed.pos") and not request.has("embed.pos_cls"),
        "use_pre_transformer_norm": pre,
        "use_post_transformer_norm": request.has("norm.weight"),
        "use_fc_norm": request.has("pool.norm.weight"),
        "global_pool": POOLS.get(pooling or "", ""),
        **(
            {"attn_pool_mlp_ratio": pool_ratio(request), "attn_pool_num_heads": request.facts.pool_heads}
            if request.has("pool.probe")
            else {}
        ),
    }
