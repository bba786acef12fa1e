"""Read and write config.json of transformers' PVT and PVTv2.

Source: huggingface/transformers, models/pvt and pvt_v2, configuration_*.py, 5.24.0.
"""

from __future__ import annotations

from typing import Any

from vitconv.configs import preprocessor
from vitconv.configs.activations import FROM_HF, TO_HF
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.hf_swin import depth_of, dtype_of, each, labelled, labels_of, numbers
from vitconv.configs.request import Draft, Request, Written
from vitconv.layout.semantics import Semantics

KINDS = ("pvt", "pvt_v2")
_HEADS = (1, 2, 5, 8)


def read(raw: Any, where: str) -> Found:
    """Read the facts of a PVT or PVTv2.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    kind = fields.text("model_type")
    v2 = kind == "pvt_v2"
    widths = numbers(fields, "hidden_sizes", (32, 64, 160, 256) if v2 else (64, 128, 320, 512))
    eps, act = fields.number("layer_norm_eps", 1e-6, least=0.0), fields.text("hidden_act", "gelu")
    refusals = [] if act in FROM_HF else [f"{where}: hidden_act {act!r} has no name here"]
    steps = numbers(fields, "strides", (4, 2, 2, 2))
    if steps != (4, 2, 2, 2):
        refusals.append(f"{where}: strides {list(steps)} have no counterpart here, only 4, 2, 2, 2")
    patches = numbers(fields, "patch_sizes", (7, 3, 3, 3) if v2 else (4, 2, 2, 2))
    facts = Semantics(
        stage_heads=numbers(fields, "num_attention_heads", _HEADS),
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=eps,
        final_norm_eps=eps,
        embed_norm_eps=eps,
        activation=FROM_HF.get(act),
        attention="softmax",
        kv_normalised=True,
        pooling="avg" if v2 else "token",
        image_size=fields.pair("image_size", 224),
    )
    sizes = {f"d_{s}": width for s, width in enumerate(widths)}
    sizes |= {"c": fields.integer("num_channels", 3), "p": patches[0], "q": patches[0]}
    extra = labelled(fields)
    return Found(facts, sizes, extra, (f"{where} (transformers {kind})",), (), tuple(refusals))


def write(request: Request) -> Written:
    """Return the configuration files of a PVT or PVTv2, or what is lacking, or why they cannot say it."""
    v2 = request.dialect == "hf-pvtv2"
    kind, title = ("pvt_v2", "transformers' PVTv2") if v2 else ("pvt", "transformers' PVT")
    draft, sizes = Draft(request, title), request.sizes
    heads, image, eps = draft.need("stage_heads"), draft.need("image_size"), draft.need("norm_eps")
    for name in ("final_norm_eps", "embed_norm_eps"):
        draft.only(
            name, eps, why=f"{title} states one eps for all norms, also after patches and reductions", needed=True
        )
    if image and image[0] != image[1] and not v2:
        draft.refuse(f"image_size={image[0]}x{image[1]}: {title} takes squares")
    stages = len({name.split(".")[1] for name in request.names if name.startswith("stages.")})
    ratios = [sizes.get(f"v_{s}_0", 1) for s in range(stages)]
    linear = v2 and request.has("stages.0.blocks.0.attn.sr.weight") and ratios[0] == 1
    patches = [sizes["p"], *(sizes[f"p_{s}"] for s in range(1, stages))]
    config: dict[str, Any] = {
        "architectures": [
            ("PvtV2" if v2 else "Pvt") + ("ForImageClassification" if request.has("head.weight") else "Model")
        ],
        "model_type": kind,
        "num_encoder_blocks": stages,
        "hidden_sizes": [sizes[f"d_{s}"] for s in range(stages)],
        "depths": [depth_of(request, s) for s in range(stages)],
        "num_attention_heads": list(each(heads, stages)),
        # Wholly linear attention has no reduction of a size; the class wants numbers all the same.
        "sr_ratios" if v2 else "sequence_reduction_ratios": [8, 4, 2, 1][:stages] if linear else ratios,
        "patch_sizes": patches,
        "strides": [4, 2, 2, 2][:stages],
        "mlp_ratios": [_ratio(sizes[f"m_{s}"], sizes[f"d_{s}"]) for s in range(stages)],
        "qkv_bias": any(name.endswith("attn.q.bias") for name in request.names),
        "hidden_act": draft.named("activation", TO_HF),
        "layer_norm_eps": eps,
        "image_size": (image[0] if image[0] == image[1] else list(image)) if image else 0,
        "num_channels": sizes["c"],
        **({"linear_attention": linear} if v2 else {}),
        **labels_of(request),
        # PVT's class takes this number, 1000 by itself, over that of the labels.
        **({"num_labels": sizes["o"]} if request.has("head.weight") else {}),
        **dtype_of(request),
    }
    files: dict[str, Any] = {"config.json": config}
    images = preprocessor.written(request, image) if image else None
    if images is not None:
        files["preprocessor_config.json"] = images
    return draft.close(files)


def _ratio(hidden: int, width: int) -> int | float:
    return hidden // width if hidden % width == 0 else hidden / width
