"""Read and write config.json of transformers' Swin and Swin V2.

Source: huggingface/transformers, models/swin and swinv2, configuration_*.py, 4.57.3 and 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs import preprocessor
from vitconv.configs.activations import FROM_HF, TO_HF
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.request import Draft, Request, Written
from vitconv.layout.semantics import Semantics

KINDS = ("swin", "swinv2")
# What the configuration classes take when the file does not say it: so it is what the network computes with.
DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "embed_dim": 96, "num_channels": 3}
# The norms after the patches and of the mergings are torch's as they come, whatever the configuration says.
STEM_EPS = 1e-5
_DTYPES: Mapping[str, str] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read(raw: Any, where: str) -> Found:
    """Read the facts of a Swin or Swin V2.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    kind = fields.text("model_type")
    v2 = kind == "swinv2"
    depths, heads = numbers(fields, "depths", (2, 2, 6, 2)), numbers(fields, "num_heads", (3, 6, 12, 24))
    if len(depths) != len(heads):
        raise fields.wrong("num_heads", f"one number for each of {len(depths)} stages")
    image, patch = fields.pair("image_size", 224), fields.pair("patch_size", 4)
    window = fields.integer("window_size", 8 if v2 else 7)
    width = fields.integer("embed_dim", DEFAULTS["embed_dim"])
    eps = fields.number("layer_norm_eps", DEFAULTS["layer_norm_eps"], least=0.0)
    act = fields.text("hidden_act", DEFAULTS["hidden_act"])
    trained = None
    if v2:
        told = numbers(fields, "pretrained_window_sizes", (0,) * len(depths))[: len(depths)]
        trained = tuple(0 if p == window else p for p in told)
    facts = Semantics(
        stage_heads=heads,
        window=(window,) * len(depths),
        pretrained_window=trained,
        norm_placement="res-post" if v2 else "pre",
        norm_kind="layernorm",
        norm_eps=eps,
        final_norm_eps=eps,
        embed_norm_eps=STEM_EPS,
        activation=FROM_HF.get(act),
        attention="cosine" if v2 else "softmax",
        kv_normalised=True,
        pooling="avg",
        image_size=image,
    )
    refusals = [] if act in FROM_HF else [f"{where}: hidden_act {act!r} has no name here"]
    sizes = {"d_0": width, "c": fields.integer("num_channels", DEFAULTS["num_channels"]), "p": patch[0], "q": patch[1]}
    return Found(facts, sizes, labelled(fields), (f"{where} (transformers {kind})",), (), tuple(refusals))


def labelled(fields: Fields) -> dict[str, Any]:
    """Return the architectures and, of a classifier, its labels in order."""
    architectures = fields.raw.get("architectures") or []
    extra: dict[str, Any] = {"architectures": tuple(map(str, architectures))}
    table = fields.inner("id2label").raw
    if table and any("ForImageClassification" in str(name) for name in architectures):
        extra["labels"] = tuple(str(v) for _, v in sorted(table.items(), key=lambda item: int(item[0])))
    return extra


def numbers(fields: Fields, key: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of whole numbers.

    Raises:
        BadFile: it is something else.
    """
    value = fields.raw.get(key, otherwise)
    fits = isinstance(value, (list, tuple)) and value and all(type(n) is int and n >= 0 for n in value)
    if not fits:
        raise fields.wrong(key, "a list of whole numbers")
    return tuple(value)


def write(request: Request) -> Written:
    """Return the configuration files of a Swin or Swin V2, or what is lacking, or why they cannot say it."""
    v2 = request.dialect.startswith("hf-swinv2")
    kind, title = ("swinv2", "transformers' Swin V2") if v2 else ("swin", "transformers' Swin")
    draft, sizes, facts = Draft(request, title), request.sizes, request.facts
    heads, windows, image = draft.need("stage_heads"), draft.need("window"), draft.need("image_size")
    trained = draft.need("pretrained_window") if v2 else None
    eps = draft.need("norm_eps")
    draft.only("final_norm_eps", eps, why=f"{title} states one eps for the norms of blocks and the last", needed=True)
    draft.only("embed_norm_eps", STEM_EPS, why=f"{title} has {STEM_EPS:g} after patches and mergings", needed=True)
    draft.only("norm_placement", "res-post" if v2 else "pre", why=f"{title} has its norms elsewhere", needed=True)
    draft.only("attention", "cosine" if v2 else "softmax", why=f"{title} attends otherwise")
    stages = len({name.split(".")[1] for name in request.names if name.startswith("stages.")})
    depths = [depth_of(request, s) for s in range(stages)]
    if windows is not None and len(set(windows)) > 1:
        draft.refuse(f"window={','.join(map(str, windows))}: {title} has one window for all stages")
    if facts.window_width not in (None, windows):
        draft.refuse(f"window_width={','.join(map(str, facts.window_width or ()))}: {title} has square windows")
    wide = [sizes[f"d_{s}"] for s in range(stages)]
    if wide != [wide[0] * 2**s for s in range(stages)]:
        draft.refuse(f"widths of {', '.join(map(str, wide))}: {title} doubles them from stage to stage")
    ratios = {sizes[f"m_{s}"] / sizes[f"d_{s}"] for s in range(stages)}
    if len(ratios) > 1:
        draft.refuse(f"MLPs of {sorted(ratios)} times the width: {title} has one ratio for all stages")
    if not request.has("embed.norm.weight"):
        draft.refuse(f"no norm after the patches: {title} always has one")
    p, q = sizes["p"], sizes.get("q", sizes["p"])
    ratio = ratios.pop()
    config: dict[str, Any] = {
        "architectures": [f"{kind.capitalize()}{'ForImageClassification' if request.has('head.weight') else 'Model'}"],
        "model_type": kind,
        "embed_dim": wide[0],
        "depths": depths,
        "num_heads": list(each(heads, stages)),
        "window_size": (windows or (0,))[0],
        # A float: the class refuses a whole number.
        "mlp_ratio": float(ratio),
        "qkv_bias": any(name.endswith("attn.q.bias") for name in request.names),
        "hidden_act": draft.named("activation", TO_HF),
        "layer_norm_eps": eps,
        "image_size": (image[0] if image[0] == image[1] else list(image)) if image else 0,
        "patch_size": p if p == q else [p, q],
        "num_channels": sizes["c"],
        "use_absolute_embeddings": request.has("embed.pos"),
        "encoder_stride": p * 2 ** (stages - 1),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "initializer_range": 0.02,
    }
    if v2:
        config["pretrained_window_sizes"] = list(each(trained, stages))
    config |= labels_of(request) | dtype_of(request)
    if v2 and facts.attention == "cosine":
        draft.notes.append(
            "transformers adds the mask of shifted windows twice in Swin V2: other numbers where it shows"
        )
    files: dict[str, Any] = {"config.json": config}
    images = preprocessor.written(request, image) if image else None
    if images is not None:
        files["preprocessor_config.json"] = images
    return draft.close(files)


def labels_of(request: Request) -> dict[str, Any]:
    """Return the labels of a classifier both ways, as transformers wants them."""
    if not request.has("head.weight"):
        return {}
    labels, classes = request.extra.get("labels") or (), request.sizes["o"]
    names = labels if len(labels) == classes else [f"LABEL_{j}" for j in range(classes)]
    return {
        "id2label": {str(j): name for j, name in enumerate(names)},
        "label2id": {name: j for j, name in enumerate(names)},
    }


def dtype_of(request: Request) -> dict[str, str]:
    """Return the dtype of the weights in transformers' words."""
    dtype = str(request.extra.get("dtype"))
    return {"torch_dtype": _DTYPES[dtype]} if dtype in _DTYPES else {}


def depth_of(request: Request, s: int) -> int:
    """Return the number of blocks of a stage."""
    return len({n.split(".")[3] for n in request.names if n.startswith(f"stages.{s}.blocks.")})


def each(values: tuple[int, ...] | None, stages: int) -> tuple[int, ...]:
    """Return a number for every stage, where one may stand for all."""
    values = values or (0,)
    return values * stages if len(values) == 1 else values
