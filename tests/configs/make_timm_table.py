"""Write vitconv/configs/timm_models.json: what each VisionTransformer entrypoint of the installed timm builds.

Run: python tests/configs/make_timm_table.py
No network and no weights: every entrypoint is called on the meta device with one block.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "vitconv" / "configs" / "timm_models.json"
# Arguments that decide neither the function nor a size at inference.
IGNORED = {"weight_init", "fix_init", "dynamic_img_pad", "device", "dtype", "embed_layer"}
MODULES = ("vision_transformer", "deit")


def main() -> None:
    TABLE.write_text(text_of(collect()))


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON, one model on a line, so that a new release of timm gives a readable diff."""
    models = ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in sorted(table["models"].items()))
    head = "".join(f'"{k}": {json.dumps(v)},\n' for k, v in table.items() if k != "models")
    return f'{{{head}"models": {{\n{models}\n}}}}\n'


def collect() -> dict[str, Any]:
    """Return the table of the installed timm."""
    import timm
    import torch
    from timm.models import vision_transformer as vt
    from timm.models._registry import _module_to_models

    statistics: dict[str, list[list[float]]] = {}
    models: dict[str, Any] = {}
    names = sorted(n for m in MODULES for n in _module_to_models[m])
    seen: list[dict[str, Any]] = []
    original = vt.VisionTransformer.__init__
    defaults = {k: p.default for k, p in inspect.signature(original).parameters.items()}

    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        assert not args
        seen.append(dict(kwargs))
        original(self, **{**kwargs, "depth": 1})

    vt.VisionTransformer.__init__ = recording
    try:
        for name in names:
            seen.clear()
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                try:
                    model = timm.create_model(name)
                except RuntimeError:
                    # vit_*_224_sam: deprecated names that point at a tag which is gone, and build nothing.
                    continue
            if not isinstance(model, vt.VisionTransformer):
                continue
            models[name] = row_of(name, model, seen[-1], defaults, statistics)
    finally:
        vt.VisionTransformer.__init__ = original
    return {"timm": timm.__version__, "statistics": statistics, "models": models}


def row_of(name: str, model: Any, kwargs: dict[str, Any], defaults: dict[str, Any], statistics: dict) -> dict[str, Any]:
    from timm.models._registry import get_arch_pretrained_cfgs

    row: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in IGNORED or (key in defaults and value == defaults[key] and key not in ("num_classes", "img_size")):
            continue
        row[key] = plain(key, value)
    block = model.blocks[0]
    if type(block).__name__ != "Block":
        row["block_fn"] = type(block).__name__
    if type(model).__name__ != "VisionTransformer":
        row["class"] = type(model).__name__
    tags = {}
    for full, cfg in get_arch_pretrained_cfgs(name).items():
        tag = full.partition(".")[2]
        stats = [list(cfg.mean), list(cfg.std)]
        label = next((k for k, v in statistics.items() if v == stats), None)
        if label is None:
            label = f"s{len(statistics)}"
            statistics[label] = stats
        size = list(cfg.input_size[1:]) if cfg.fixed_input_size else None
        tags[tag] = [label, cfg.num_classes, size]
    # The first tag is the one that the bare name stands for.
    first = model.pretrained_cfg.get("tag") or ""
    row["tags"] = {first: tags.pop(first), **tags} if first in tags else tags
    return row


def plain(key: str, value: Any) -> Any:
    """Return a value as JSON can hold it: a norm as [name, eps], an activation by timm's own word."""
    import torch
    from timm.layers import get_act_layer, get_norm_layer

    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return list(value)
    if key in ("norm_layer", "embed_norm_layer"):
        layer = get_norm_layer(value)
        cls = layer.func if isinstance(layer, functools.partial) else layer
        return [cls.__name__.lower(), layer(8, device=torch.device("cpu")).eps]
    if key == "act_layer":
        words = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu")
        return next(w for w in words if isinstance(get_act_layer(value)(), get_act_layer(w)))
    if key == "mlp_layer":
        return name_of_mlp(value)
    if isinstance(value, str):
        return value
    return getattr(value, "__name__", None) or type(value).__name__


def name_of_mlp(value: Any) -> str:
    """Return Mlp, SwiGLU, SwiGLUPacked, or the class's name."""
    if isinstance(value, functools.partial):
        packed = value.func.__name__ == "GluMlp" and value.keywords.get("gate_last") is False
        return "SwiGLUPacked" if packed else value.func.__name__
    return value.__name__


if __name__ == "__main__":
    main()
