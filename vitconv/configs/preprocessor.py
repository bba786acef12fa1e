"""preprocessor_config.json of transformers: image mean, std and size, read and written.

Source: huggingface/transformers, image_processing_utils.py and models/vit/image_processing_vit.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.request import Request
from vitconv.layout.semantics import Semantics

# PIL's numbers, which the file uses.
RESAMPLE: Mapping[str, int] = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


def accepts(raw: Any) -> bool:
    """Return True for the configuration of an image processor."""
    marks = ("image_mean", "image_processor_type", "feature_extractor_type")
    return isinstance(raw, Mapping) and any(mark in raw for mark in marks) and "model_type" not in raw


def read(raw: Any, where: str) -> Found:
    """Read mean and std of the 0..1 range; anything that is not plain rescale-then-normalise is a note.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    source = (f"{where} (transformers image processor)",)
    extra: dict[str, Any] = {}
    size = _size(fields)
    if size is not None:
        extra["input_size"] = size
    names = {number: name for name, number in RESAMPLE.items()}
    if fields.raw.get("resample") in names:
        extra["interpolation"] = names[fields.raw["resample"]]
    scale = fields.number("rescale_factor", 1 / 255)
    if not fields.flag("do_rescale", True) or abs(scale * 255 - 1) > 1e-3:
        note = f"{where}: pixels are not scaled to 0..1 before mean and std, so these are not taken"
        return Found(extra=extra, sources=source, notes=(note,))
    if not fields.flag("do_normalize", True):
        return Found(extra=extra, sources=source, notes=(f"{where}: pixels are not normalised",))
    facts = Semantics(
        mean=fields.numbers("image_mean") if "image_mean" in fields else None,
        std=fields.numbers("image_std") if "image_std" in fields else None,
    )
    return Found(facts, extra=extra, sources=source)


def _size(fields: Fields) -> tuple[int, int] | None:
    key = "crop_size" if fields.raw.get("do_center_crop") is True and "crop_size" in fields else "size"
    value = fields.raw.get(key)
    if isinstance(value, Mapping):
        inner = fields.inner(key)
        return (inner.integer("height"), inner.integer("width")) if "height" in inner and "width" in inner else None
    return fields.pair(key) if value is not None else None


def written(request: Request, image_size: tuple[int, int]) -> dict[str, Any] | None:
    """Return the configuration of the image processor, or None while mean or std is unknown."""
    mean, std = request.facts.mean, request.facts.std
    if mean is None or std is None:
        return None
    out: dict[str, Any] = {
        "image_processor_type": "DeiTImageProcessor" if "deit" in request.dialect else "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": image_size[0], "width": image_size[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
    if "deit" in request.dialect:
        out["do_center_crop"] = False
    if request.extra.get("interpolation") in RESAMPLE:
        out["resample"] = RESAMPLE[request.extra["interpolation"]]
    return out
