"""Write config.json of a BEiT for `timm.create_model("local-dir:FOLDER")`.

Source: huggingface/pytorch-image-models timm/models/beit.py, 1.0.31.
"""

from __future__ import annotations

from vitconv.configs.request import Draft, Request, Written
from vitconv.configs.timm_write import POOLS, entrypoint, files, ratio_of

_BASES = (("beit_base_patch16_224", "layernorm", 1e-6),)


def write(request: Request) -> Written:
    """Return config.json, or what is lacking, or why timm's config.json cannot say it."""
    draft, sizes = Draft(request, "timm"), request.sizes
    image, pooling = draft.image_size(), draft.need("pooling")
    draft.only("attention", "softmax", why="timm's Beit has softmax attention")
    draft.only("kv_normalised", True, why="timm gives keys and values the normalised input")
    draft.only("norm_placement", "pre", why="timm's Beit is pre-norm", needed=True)
    gated = request.in_block("mlp.gate.weight")
    draft.only("activation", "silu" if gated else "gelu", why="timm's Beit has silu in a gated MLP and gelu otherwise")
    draft.only("pooling", "token", "avg", "none", why="timm's Beit pools the class token or the patches")
    kind, eps = draft.norm_kind(), draft.one_eps()
    known = not draft.lacking.keys() & {"norm_kind", "norm_eps", "final_norm_eps"}
    base = entrypoint(draft, _BASES, kind, eps, words=False)[0] if known else ""
    extra = [name for name in ("mim.weight", "embed.mask") if request.has(name)]
    if "mim.weight" in extra:
        draft.refuse("timm's Beit has no head of masked modelling; --edit drop:mim.* leaves it out")
    elif extra:
        draft.refuse("timm's Beit has no mask token; --edit drop:embed.mask leaves it out")
    if any(key.endswith("relative_position_index") for key in request.keys):
        draft.refuse("timm's Beit opens no file that holds its index; --set buffers=left-out leaves it out")
    before, after = request.has("norm.weight"), request.has("pool.norm.weight")
    if before == after:
        draft.refuse("timm's Beit has one norm, before the pooling or after it")
    draft.biased("timm", *(["head"] if request.has("head.weight") else []))
    shared, own = request.has("rel_pos"), request.in_block("attn.rel_pos")
    p, q = sizes["p"], sizes.get("q", sizes["p"])
    args = {
        "img_size": list(image),
        "patch_size": p if p == q else [p, q],
        "in_chans": sizes["c"],
        "embed_dim": sizes["d"],
        "depth": sizes["i"],
        "num_heads": draft.heads(),
        "mlp_ratio": ratio_of(sizes["m"], sizes["d"]),
        "qkv_bias": request.in_block("attn.q.bias"),
        "swiglu_mlp": gated,
        "scale_mlp": request.in_block("mlp.norm.weight"),
        "init_values": 1e-5 if request.in_block("ls1") else None,
        "use_abs_pos_emb": request.has("embed.pos"),
        "use_rel_pos_bias": own,
        "use_shared_rel_pos_bias": shared,
        "use_fc_norm": after,
        "global_pool": POOLS.get(pooling or "", ""),
    }
    return files(draft, base, args, image, first="patch_embed.proj")
