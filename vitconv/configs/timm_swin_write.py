"""Write config.json of a Swin or Swin V2 for `timm.create_model("local-dir:FOLDER")`.

Source: huggingface/pytorch-image-models timm/models/swin_transformer.py and swin_transformer_v2.py, 1.0.31: every norm
is torch's, at its own eps.
"""

from __future__ import annotations

from typing import Any

from vitconv.configs.activations import TO_TIMM
from vitconv.configs.request import Draft, Request, Written
from vitconv.configs.timm_write import POOLS, files, ratio_of

EPS = 1e-5


def write(request: Request) -> Written:
    """Return config.json, or what is lacking, or why timm's config.json cannot say it."""
    v2 = request.dialect == "timm-swinv2"
    title = f"timm's Swin{' V2' if v2 else ''}"
    draft, sizes = Draft(request, "timm"), request.sizes
    heads, windows, image = draft.need("stage_heads"), draft.need("window"), draft.need("image_size")
    trained, pooling = draft.need("pretrained_window") if v2 else None, draft.need("pooling")
    for name in ("norm_eps", "final_norm_eps", "embed_norm_eps"):
        draft.only(name, EPS, why=f"{title} has {EPS:g} in every norm", needed=name == "norm_eps")
    draft.only("norm_placement", "res-post" if v2 else "pre", why=f"{title} has its norms elsewhere", needed=True)
    draft.only("attention", "cosine" if v2 else "softmax", why=f"{title} attends otherwise")
    draft.only("pooling", "avg", "none", why=f"{title} averages the places of its last map")
    draft.only("window_width", windows, why=f"{title} is written with square windows only")
    act = draft.named("activation", TO_TIMM)
    if not v2 and act != "gelu":
        draft.only("activation", "gelu", why=f"{title} has gelu, and no argument that changes it")
    stages = len({name.split(".")[1] for name in request.names if name.startswith("stages.")})
    wide = [sizes[f"d_{s}"] for s in range(stages)]
    ratios = {sizes[f"m_{s}"] / sizes[f"d_{s}"] for s in range(stages)}
    widths = ", ".join(map(str, wide))
    for wrong, why in (
        (wide != [wide[0] * 2**s for s in range(stages)], f"widths of {widths}: {title} doubles them"),
        (request.has("head.weight") and not request.has("head.bias"), f"{title} always has head.bias"),
        (len(ratios) > 1, f"{title} has one ratio of MLP and width for all stages"),
        (not request.has("embed.norm.weight"), f"no norm after the patches: {title} always has one"),
        (not request.has("norm.weight"), f"no final norm: {title} always has one"),
        (request.has("embed.pos"), f"a position table: {title} has none"),
        (not v2 and len(set(windows or ())) > 1, f"{title} has one window for all stages"),
    ):
        if wrong:
            draft.refuse(why)
    p, q = sizes["p"], sizes.get("q", sizes["p"])
    if p != q:
        draft.refuse(f"patches of {p}x{q}: {title} has square ones")
    args: dict[str, Any] = {
        "img_size": list(image or (0, 0)),
        "patch_size": p,
        "in_chans": sizes["c"],
        "embed_dim": wide[0],
        "depths": [_depth(request, s) for s in range(stages)],
        "num_heads": list(_each(heads, stages)),
        "window_size": (windows or (0,))[0] if len(set(windows or ())) < 2 else list(_each(windows, stages)),
        "mlp_ratio": ratio_of(sizes["m_0"], wide[0]),
        "qkv_bias": any(name.endswith("attn.q.bias") for name in request.names),
        "global_pool": POOLS.get(pooling or "", ""),
        **({"act_layer": act, "pretrained_window_sizes": list(_each(trained, stages))} if v2 else {}),
    }
    base = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
    return files(draft, base, args, image or (0, 0), first="patch_embed.proj", width=wide[-1], head="head.fc")


def _depth(request: Request, s: int) -> int:
    return len({n.split(".")[3] for n in request.names if n.startswith(f"stages.{s}.blocks.")})


def _each(values: tuple[int, ...] | None, stages: int) -> tuple[int, ...]:
    values = values or (0,)
    return values * stages if len(values) == 1 else values
