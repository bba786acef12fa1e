"""Read timm's config.json (hub and local-dir format) and the args.yaml of its training script.

Source: huggingface/pytorch-image-models, timm/models/_hub.py, _factory.py, _builder.py and train.py, 1.0.31.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitconv.configs import timm_eva, timm_naflex, timm_table
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.timm_facts import facts_of
from vitconv.configs.timm_table import DEFAULTS
from vitconv.layout.semantics import Semantics

# PretrainedCfg's own defaults (timm/models/_pretrained.py): they hold for a file that leaves them out.
_IMAGENET: Mapping[str, tuple[float, ...]] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_CARRIED = ("crop_pct", "crop_mode", "interpolation", "label_names", "label_descriptions", "license", "origin_url")


def accepts(raw: Any) -> bool:
    """Return True for the config.json that timm pushes to the hub, also inside transformers' TimmWrapper."""
    return isinstance(raw, Mapping) and isinstance(raw.get("architecture"), str)


def accepts_args(raw: Any) -> bool:
    """Return True for the arguments that timm's train.py stores beside its checkpoints."""
    return (
        isinstance(raw, Mapping)
        and isinstance(raw.get("model"), str)
        and "opt" in raw
        and any(key in raw for key in ("model_kwargs", "gp", "img_size", "input_size"))
    )


def read(raw: Any, where: str) -> Found:
    """Read the facts of a hub config.json.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    name = fields.text("architecture").partition(".")[0]
    # Before `pretrained_cfg` existed the file was that mapping itself.
    cfg = fields.inner("pretrained_cfg") if "pretrained_cfg" in fields else fields
    given = dict(fields.inner("model_args").raw)
    size = cfg.numbers("input_size") if "input_size" in cfg else ()
    if size and len(size) != 3:
        raise cfg.wrong("input_size", "[channels, height, width]")
    implied: dict[str, Any] = {}
    notes: list[str] = []
    if size:
        implied["in_chans"] = int(size[0])
        # Where the size is not fixed it is only what the weights were tested at.
        if cfg.raw.get("fixed_input_size") is True:
            implied["img_size"] = [int(size[1]), int(size[2])]
    # At the top level the file says what the weights are; `pretrained_cfg` may be about where they came from.
    for holder in (fields, cfg):
        if "num_classes" in holder and "num_classes" not in implied:
            implied["num_classes"] = holder.integer("num_classes", least=0)
    if "global_pool" in cfg:
        implied["global_pool"] = cfg.text("global_pool")
    extra: dict[str, Any] = {"architecture": name, **{k: cfg.raw[k] for k in _CARRIED if k in cfg}}
    extra |= {k: fields.raw[k] for k in ("label_names", "label_descriptions") if k in fields}
    names = extra.get("label_names")
    if isinstance(names, (list, tuple)):
        extra["labels"] = tuple(map(str, names))
    found = built(name, {**implied, **given}, where, f"{where} (timm {name})")
    facts, sizes = found.facts, dict(found.sizes)
    # NaFlexVit keeps its table on a grid of its own.
    free = "img_size" not in implied and given.get("img_size") is None and "rows" not in sizes
    if facts.image_size is not None and free:
        notes.append(f"{where}: the image size is not fixed, so the grid of the position table is unknown")
        facts = facts.replaced({"grid": None, "image_size": None})
        sizes.pop("n", None)
    stated = {}
    for key, default in _IMAGENET.items():
        stated[key] = cfg.numbers(key) if key in cfg else default
        if key not in cfg:
            notes.append(f"{where}: image {key} is not stated; timm then takes {list(default)}")
    return dataclasses.replace(
        found, facts=facts.filled(stated), sizes=sizes, extra=extra, notes=(*found.notes, *notes)
    )


def read_args(raw: Any, where: str) -> Found:
    """Read the facts of a training run of timm's train.py.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(raw, where)
    full = fields.text("model")
    name, _, tag = full.partition(".")
    given = dict(fields.inner("model_kwargs").raw)
    implied: dict[str, Any] = {}
    notes: list[str] = []
    for key, arg in (("num_classes", "num_classes"), ("gp", "global_pool"), ("in_chans", "in_chans")):
        if key in fields:
            implied[arg] = fields.raw[key]
    size = fields.numbers("input_size") if "input_size" in fields else ()
    wanted = [int(v) for v in size[1:]] if len(size) == 3 else None
    if wanted is None and "img_size" in fields:
        wanted = [fields.integer("img_size")] * 2
    if len(size) == 3:
        implied.setdefault("in_chans", int(size[0]))
    if wanted:
        if given.get("dynamic_img_size"):
            notes.append(
                f"{where}: trained at {wanted[0]}x{wanted[1]} with dynamic_img_size; the table's grid may differ"
            )
        else:
            implied["img_size"] = wanted
    stored = timm_table.pretrained(name, tag)
    if stored is not None and stored.size is not None:
        implied.setdefault("img_size", list(stored.size))
        implied.setdefault("num_classes", stored.classes)
    found = built(name, {**implied, **given}, where, f"{where} (timm training of {full})")
    facts = found.facts
    if notes and facts.known():
        facts = facts.replaced({"grid": None, "image_size": None})
    stated = Semantics(
        mean=fields.numbers("mean") if "mean" in fields else None,
        std=fields.numbers("std") if "std" in fields else None,
    )
    if stored is not None:
        stated = stated.filled({"mean": stored.mean, "std": stored.std})
    sizes = {k: v for k, v in found.sizes.items() if not (notes and k == "n")}
    extra = {"architecture": name, **{k: fields.raw[k] for k in ("crop_pct", "interpolation") if k in fields}}
    return dataclasses.replace(
        found, facts=facts.filled(stated), sizes=sizes, extra=extra, notes=(*found.notes, *notes)
    )


def built(name: str, given: Mapping[str, Any], where: str, source: str) -> Found:
    """Return what an entrypoint builds with these arguments beside its own.

    Raises:
        BadFile: a value of the wrong kind.
    """
    base = timm_table.arguments(name)
    if base is None and (eva := timm_eva.arguments(name)) is not None:
        found = timm_eva.facts_of({**eva, **{k: v for k, v in given.items() if v is not None}}, where)
        return dataclasses.replace(found, sources=(source,))
    if base is None and (naflex := timm_naflex.arguments(name)) is not None:
        found = timm_naflex.facts_of({**naflex, **{k: v for k, v in given.items() if v is not None}}, where)
        return dataclasses.replace(found, sources=(source,))
    if base is None:
        note = (
            f"{where}: {name!r} is no VisionTransformer of timm {timm_table.release()}, so the name says nothing here; "
            f"only image mean and std are taken"
        )
        return Found(sources=(source,), notes=(note,))
    # A null is the class's own default: no layer scale, the norm and the activation of the class.
    args = {**base, **{k: DEFAULTS.get(k) if v is None else v for k, v in given.items()}}
    found = facts_of(args, where)
    return dataclasses.replace(found, sources=(source,))
