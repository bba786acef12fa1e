"""Write config.json and preprocessor_config.json with which transformers opens a converted ViT or DeiT.

Source: huggingface/transformers, models/vit and models/deit, 4.57.3 and 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs import preprocessor
from vitconv.configs.activations import TO_HF
from vitconv.configs.request import Draft, Request, Written

_DTYPES: Mapping[str, str] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def write(request: Request) -> Written:
    """Return the configuration files of a ViT or DeiT, or what is lacking, or why they cannot say it."""
    deit = "deit" in request.dialect
    title = "transformers' DeiT" if deit else "transformers' ViT"
    draft = Draft(request, title)
    sizes = request.sizes
    heads, eps, image = draft.heads(), draft.one_eps(), draft.image_size()
    _check(draft, title, deit, image)
    d, p, q = sizes["d"], sizes["p"], sizes.get("q", sizes["p"])
    architecture = _architecture(draft, deit)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "deit" if deit else "vit",
        "hidden_size": d,
        "num_hidden_layers": sizes["i"],
        "num_attention_heads": heads,
        "intermediate_size": sizes["m"],
        "hidden_act": draft.named("activation", TO_HF),
        "layer_norm_eps": eps,
        "image_size": image[0] if image[0] == image[1] else list(image),
        "patch_size": p if p == q else [p, q],
        "num_channels": sizes["c"],
        "qkv_bias": request.in_block("attn.q.bias"),
        # Only a masked-image decoder reads it; the classes refuse a value other than the patch there.
        "encoder_stride": p,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
    }
    if request.has("pool.dense.weight"):
        config |= {"pooler_output_size": sizes.get("d2", d), "pooler_act": "tanh"}
    if "Classification" in architecture:
        config |= label_maps(request, sizes["o"])
    return finished(draft, request, config, image)


def label_maps(request: Request, classes: int) -> dict[str, Any]:
    """Return the names of the classes both ways, made up where the source has none or another number of them."""
    labels = request.extra.get("labels") or ()
    names = labels if len(labels) == classes else [f"LABEL_{j}" for j in range(classes)]
    return {
        "id2label": {str(j): name for j, name in enumerate(names)},
        "label2id": {name: j for j, name in enumerate(names)},
    }


def finished(draft: Draft, request: Request, config: dict[str, Any], image: Any) -> Written:
    """Add the dtype, and the preprocessor's file where the statistics of images are known."""
    if request.extra.get("dtype") in _DTYPES:
        # The older of its two names: 4.x knows no other, and 5.x takes both.
        config["torch_dtype"] = _DTYPES[request.extra["dtype"]]
    files: dict[str, Any] = {"config.json": config}
    images = preprocessor.written(request, image)
    if images is None:
        draft.notes.append("preprocessor_config.json is left out: image mean and std are unknown (--set mean= std=)")
    else:
        files["preprocessor_config.json"] = images
    return draft.close(files)


def _check(draft: Draft, title: str, deit: bool, image: tuple[int, int]) -> None:
    request, sizes = draft.request, draft.request.sizes
    draft.only("norm_placement", "pre", why=f"{title} is pre-norm", needed=True)
    draft.only("norm_kind", "layernorm", why=f"{title} has LayerNorm only")
    draft.only("attention", "softmax", why=f"{title} has softmax attention only")
    draft.only("kv_normalised", True, why=f"{title} gives keys and values the normalised input")
    if request.has("head.weight"):
        draft.only("pooling", "token", why=f"{title} classifies the first token", needed=True)
    if sizes.get("a", sizes["d"]) != sizes["d"]:
        draft.refuse(f"the attention width {sizes['a']} is not the width {sizes['d']}: {title} has no place for it")
    needed = ["embed.cls", "embed.pos", "embed.patch.bias", "norm.weight", *(["embed.dist"] if deit else [])]
    absent = [name for name in needed if not request.has(name)]
    if absent:
        draft.refuse(f"{title} has {', '.join(absent)}, this network does not")
    biases = [part for part in "qkv" if request.in_block(f"attn.{part}.bias")]
    if biases and len(biases) < 3:
        bare = " and ".join(part for part in "qkv" if part not in biases)
        draft.refuse(f"{' and '.join(biases)} have a bias and {bare} has none: qkv_bias is for all three")
    if image[0] // sizes["p"] != image[1] // sizes.get("q", sizes["p"]):
        draft.notes.append(f"{title} resizes positions as if the grid were square: use it at its own image size only")


def _architecture(draft: Draft, deit: bool) -> str:
    request, family = draft.request, "DeiT" if deit else "ViT"
    if request.has("head.weight"):
        draft.biased(f"transformers' {family}", "head", *(["head_dist"] if request.has("head_dist.weight") else []))
        return f"{family}ForImageClassification{'WithTeacher' if request.has('head_dist.weight') else ''}"
    if not request.has("pool.dense.weight"):
        draft.notes.append(
            f"there is no pooler: {family}Model makes one up unless it is opened with add_pooling_layer=False"
        )
    return f"{family}Model"
