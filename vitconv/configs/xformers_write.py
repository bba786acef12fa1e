"""Write the configuration with which xformers' factory builds the stack of a converted file.

As JSON, which a YAML loader reads as well. The factory states no eps: what its norms run at is a note.
Source: facebookresearch/xformers xformers/factory and xformers/components, v0.0.2 to v0.0.28.post3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import TO_XFORMERS
from vitconv.configs.request import Draft, Request, Written
from vitconv.configs.xformers_block import NEW_STYLE, OLD_STYLE
from vitconv.configs.xformers_release import release_number
from vitconv.errors import UsageError

FILE = "xformers.json"


def write(request: Request) -> Written:
    """Return the factory's configuration, or what is lacking, or why the factory cannot say it."""
    draft = Draft(request, "xformers")
    fused = request.dialect == "xformers-fused"
    release = _release(draft, fused)
    sizes = request.sizes
    style = draft.need("norm_placement")
    draft.only("norm_placement", "pre", "post", "deepnorm", why="the factory has pre, post and deepnorm")
    draft.only("norm_kind", "layernorm", why="the factory has LayerNorm only")
    draft.only("attention", "softmax", "causal", why="written for scaled_dot_product only")
    draft.only("kv_normalised", not (fused and release < (10, 0) and style == "pre"), why=_KV)
    if style == "deepnorm" and release < (9, 1):
        draft.refuse("deepnorm came with xformers 0.0.10")
    heads, eps = draft.heads(), request.facts.norm_eps
    if sizes.get("a", sizes["d"]) != sizes["d"]:
        draft.refuse(f"the attention width {sizes['a']} is not the width {sizes['d']}")
    if eps not in (None, 1e-5):
        draft.notes.append(
            f"the factory's norms run at eps 1e-5 (1e-6 with Triton, 0.0.10 to 0.0.26) and cannot be told otherwise: "
            f"after building, set eps={eps:g} on every norm"
        )
    block: dict[str, Any] = {
        "block_type": "encoder",
        "num_layers": sizes["i"],
        "dim_model": sizes["d"],
        OLD_STYLE if fused else NEW_STYLE: style,
        "reversible": False,
        "multi_head_config": _heads(draft, heads, fused),
        "feedforward_config": _forward(draft, fused),
    }
    stack = _stack(draft, block, fused)
    if fused and release < (8, 0):
        stack = [{"reversible": b.pop("reversible"), "block_config": b} for b in stack]
    return draft.close({FILE: stack})


_KV = "only releases up to 0.0.9 leave keys and values without the norm, and they always do (--set release=)"


def _release(draft: Draft, fused: bool) -> tuple[int, int]:
    """Return the release to write for: the one stated, else the newest of the epoch."""
    stated = draft.request.facts.release
    newest = (11, 0) if fused else (28, 0)
    if stated is None:
        return newest
    try:
        number = release_number(stated)
    except UsageError as e:
        draft.refuse(str(e))
        return newest
    if (number < (12, 0)) != fused:
        # The release says where the weights came from; they may be going elsewhere.
        return newest
    return number


def _heads(draft: Draft, heads: int, fused: bool) -> dict[str, Any]:
    request = draft.request
    bias = tuple(request.in_block(f"attn.{part}.bias") for part in ("q", "k", "v", "out"))
    if fused and len(set(bias)) > 1:
        draft.refuse("up to 0.0.11 one flag holds for the biases of query, key, value and output")
    out: dict[str, Any] = {"num_heads": heads, "residual_dropout": 0.0}
    if len(set(bias)) == 1:
        out["bias"] = bias[0]
    else:
        out["bias"] = list(bias)
    if not fused:
        out["bias"] = list(bias)
        out["use_separate_proj_weight"] = not _shares_projection(request)
    if request.facts.position == "rope":
        out["use_rotary_embeddings"] = True
    out["attention"] = {
        "name": "scaled_dot_product",
        "dropout": 0.0,
        "causal": request.facts.attention == "causal",
    }
    return out


def _shares_projection(request: Request) -> bool:
    return any(k.endswith("k_proj.weight") for k in request.keys) and not any(
        k.endswith("q_proj.weight") for k in request.keys
    )


def _forward(draft: Draft, fused: bool) -> dict[str, Any]:
    request, sizes = draft.request, draft.request.sizes
    d, m = sizes["d"], sizes["m"]
    if m % d:
        draft.refuse(
            f"the MLP width {m} is no multiple of the width {d}, and hidden_layer_multiplier is a whole number"
        )
    name = _mlp_class(request)
    out: dict[str, Any] = {
        "name": name,
        "dropout": request.facts.mlp_dropout or 0.0,
        "activation": draft.named("activation", TO_XFORMERS),
        "hidden_layer_multiplier": m // d,
    }
    if name == "MLP" and not request.in_block("mlp.up.bias"):
        if fused:
            draft.refuse("up to 0.0.11 the MLP always has biases")
        out["bias"] = False
    if request.facts.mlp_dropout is None:
        draft.notes.append("dropout rates are not known and written as 0")
    if not fused and name == "MLP" and _ends(request, "mlp.3.bias") and not _ends(request, "mlp.3.weight"):
        draft.notes.append(
            "the file has nvFuser's MLP: set xformers._is_functorch_available before building (<= 0.0.21)"
        )
    return out


def _ends(request: Request, suffix: str) -> bool:
    return any(key.endswith(f".{suffix}") for key in request.keys)


def _mlp_class(request: Request) -> str:
    """Return MLP or FusedMLP, told by the numbers of the modules in the file."""
    if _ends(request, "mlp.3.weight"):
        return "MLP"
    # F1 (0.0.4 to 0.0.7) and nvFuser's MLP (0.0.12 to 0.0.21) have the same names.
    if _ends(request, "mlp.3.bias"):
        return "FusedMLP" if request.dialect == "xformers-fused" else "MLP"
    return "FusedMLP" if _ends(request, "mlp.2.weight") else "MLP"


def _stack(draft: Draft, block: Mapping[str, Any], fused: bool) -> list[dict[str, Any]]:
    """Return the configurations: split where the factory only does a thing for a configuration of its own."""
    request, depth = draft.request, int(draft.request.sizes["i"])
    patch, position = _patch(draft), _position(request)
    alone = any(re.search(r"encoders\.\d+\.wrap_ff\.sublayer\.layer\.norm\.", key) for key in request.keys)
    pre = request.facts.norm_placement == "pre"
    if pre and depth == 1 and not alone and request.keys:
        draft.refuse("a pre-norm stack of one layer always ends with a norm of its own, which this file does not have")
    first = 1 if patch and not fused and depth > 1 else 0
    last = 1 if alone and depth > 1 else 0
    body = depth - first - last
    if fused and alone and body == 1:
        draft.refuse("up to 0.0.11 two configurations of one layer both end with a norm, one of them inside the stack")
    parts = [first] * (first > 0) + [body] * (body > 0) + [last] * (last > 0)
    if request.facts.norm_placement == "deepnorm":
        parts = _deepnorm_parts(draft, depth, first)
    stack = [{**block, "num_layers": n} for n in parts]
    if stack and patch:
        stack[0]["patch_embedding_config"] = patch
    if stack and position:
        stack[0]["position_encoding_config"] = position
    return stack


def _deepnorm_parts(draft: Draft, depth: int, first: int) -> list[int]:
    """Return the split whose alpha = (2 N)^(1/4), with N the layers of one configuration, is the stated one."""
    alpha = draft.need("residual_alpha")
    if alpha is None:
        return []
    layers = round(alpha**4 / 2)
    fits = layers >= 1 and abs((2 * layers) ** 0.25 - alpha) < 1e-3 * alpha and depth % layers == 0
    if not fits or (first and layers != 1):
        draft.refuse(
            f"residual_alpha={alpha:g}: the factory takes (2 N)^(1/4) with N the layers of one configuration, "
            f"and no split of {depth} layers gives that"
        )
        return []
    return [layers] * (depth // layers)


def _patch(draft: Draft) -> dict[str, Any] | None:
    request, sizes = draft.request, draft.request.sizes
    if not any(".patch_emb." in key for key in request.keys):
        return None
    p = sizes["p"]
    if sizes.get("q", p) != p:
        draft.refuse("the factory's patches are square")
    out = {"in_channels": sizes["c"], "out_channels": sizes["d"], "kernel_size": p, "stride": p, "padding": 0}
    return {**out, "pool_type": "CONV_2D"}


def _position(request: Request) -> dict[str, Any] | None:
    if not any(".pose_encoding.pos_emb" in key for key in request.keys):
        return None
    with_class = any(".pose_encoding.class_token" in key for key in request.keys)
    return {"name": "learnable", "seq_len": request.sizes["n"], "add_class_token": with_class}
