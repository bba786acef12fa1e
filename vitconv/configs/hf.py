"""Read config.json of a transformers ViT or DeiT.

Source: huggingface/transformers, models/vit and models/deit, configuration_*.py and modeling_*.py, 4.57.3 and 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import FROM_HF
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.layout.semantics import Semantics

# What the configuration classes take when the file does not say it: so it is what the network computes with.
DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "pooler_act": "tanh",
}
MODEL_TYPES = ("vit", "deit")


def accepts(raw: Any) -> bool:
    """Return True for any configuration that transformers wrote, of whatever model."""
    return isinstance(raw, Mapping) and isinstance(raw.get("model_type"), str) and "architecture" not in raw


def read(raw: Any, where: str) -> Found:
    """Read the facts of a ViT or DeiT; another model type is a note and no fact.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    kind = fields.text("model_type")
    from vitconv.configs import hf_models

    if kind in ("pvt", "pvt_v2"):
        from vitconv.configs import hf_pvt

        return hf_pvt.read(raw, where)
    if kind in ("swin", "swinv2"):
        from vitconv.configs import hf_swin

        return hf_swin.read(raw, where)
    if hf_models.tower(raw, where)[0] in hf_models.KINDS:
        return hf_models.read(raw, where)
    if kind not in MODEL_TYPES:
        # A larger model, as LLaVA or Depth Anything: its vision network has a configuration of its own inside.
        parts = [key for key, value in fields.raw.items() if isinstance(value, Mapping) and _known(value)]
        if len(parts) == 1:
            return read(fields.raw[parts[0]], f"{where}: {parts[0]}")
        from vitconv.configs import hf_alike

        if stated := hf_alike.read(fields.raw, where):
            return stated
        what = f"model_type {kind!r} is not one that is read ({', '.join((*MODEL_TYPES, *hf_models.KINDS))})"
        return Found(notes=(f"{where}: {what}; nothing taken from it",))

    def whole(key: str) -> int:
        return fields.integer(key, DEFAULTS[key])

    width, heads = whole("hidden_size"), whole("num_attention_heads")
    patch, image = fields.pair("patch_size", 16), fields.pair("image_size", 224)
    grid = (image[0] // patch[0], image[1] // patch[1])
    # Since 5.9 a head_dim in the file is heeded; no released checkpoint is known to carry one.
    head_width = fields.integer("head_dim", width // heads)
    if "head_dim" not in fields and width % heads:
        raise fields.wrong("num_attention_heads", f"a divisor of hidden_size {width}")
    eps = fields.number("layer_norm_eps", DEFAULTS["layer_norm_eps"], least=0.0)
    act = fields.text("hidden_act", DEFAULTS["hidden_act"])
    classes, labels = _labels(fields)
    architectures = fields.raw.get("architectures") or []
    classifies = any("ForImageClassification" in str(name) for name in architectures)
    notes = [
        f"{where}: {key} is not stated; transformers then takes {DEFAULTS[key]}"
        for key in ("layer_norm_eps", "hidden_act", "num_attention_heads")
        if key not in fields
    ]
    refusals = []
    if act not in FROM_HF:
        refusals.append(f"{where}: hidden_act {act!r} has no name here")
    pooler = fields.text("pooler_act", DEFAULTS["pooler_act"])
    if pooler != "tanh" and not classifies:
        refusals.append(f"{where}: pooler_act {pooler!r}: a pooler is taken to end in tanh")
    sizes = {
        "d": width,
        "a": heads * head_width,
        "m": whole("intermediate_size"),
        "i": whole("num_hidden_layers"),
        "c": whole("num_channels"),
        "p": patch[0],
        "q": patch[1],
        "n": grid[0] * grid[1],
    }
    if classifies:
        sizes["o"] = classes
    facts = Semantics(
        heads=heads,
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=eps,
        final_norm_eps=eps,
        activation=FROM_HF.get(act),
        attention="softmax",
        kv_normalised=True,
        pooling="token",
        position="learned",
        position_resize="bicubic",
        grid=grid,
        image_size=image,
    )
    extra: dict[str, Any] = {"architectures": tuple(map(str, architectures))}
    if labels and classifies:
        extra["labels"] = labels
    source = f"{where} (transformers {kind})"
    return Found(facts, sizes, extra, (source,), tuple(notes), tuple(refusals))


def _known(raw: Mapping[str, Any]) -> bool:
    from vitconv.configs import hf_models

    return raw.get("model_type") in (*MODEL_TYPES, *hf_models.KINDS, "swin", "swinv2", "pvt", "pvt_v2")


def _labels(fields: Fields) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes and their names; without either, transformers makes two."""
    table = fields.inner("id2label").raw
    if not table:
        return fields.integer("num_labels", 2), ()
    try:
        order = {int(k): str(v) for k, v in table.items()}
    except (TypeError, ValueError):
        raise fields.wrong("id2label", "names by class number") from None
    if sorted(order) != list(range(len(order))):
        raise fields.wrong("id2label", f"the class numbers 0 to {len(order) - 1}")
    names = tuple(order[i] for i in range(len(order)))
    return len(names), () if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names
