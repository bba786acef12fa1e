"""Read recipe.yaml: a scripted check before training; or a configuration of xformers' factory as it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitconv.checks.base import told
from vitconv.checks.base.context import Context
from vitconv.checks.base.data import digits, read_data
from vitconv.checks.base.plan import PLANS, Plan
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.variants import parse
from vitconv.configs.parse import parse_file
from vitconv.errors import UsageError
from vitconv.registry import unknown

SUFFIXES = (".yaml", ".yml")
KEYS: Mapping[str, str] = {
    "model": "a checkpoint, a size, or host:model; not beside xformers or timm",
    "xformers": "a configuration of the factory, with layer_norm_style (up to 0.0.11) or residual_norm_style",
    "timm": "arguments of timm.create_model, model_name among them",
    "release": "the xformers release",
    "set": "facts, options of the host, sizes and changes, by name",
    "init": "the init scheme",
    "precision": "fp32, amp-fp16 or amp-bf16",
    "checks": "the checks to run; all that need no training otherwise",
    "skip": "checks to leave out",
    "thresholds": "by check: limits by name",
    "training": "the plan: lr, betas, decay, warmup, steps, batch, smoothing, clip, mixup, cutmix, seed, "
    "no_decay; or `first-report`, or `like: first-report` beside changes to it",
    "vary": "variants for training-probe, a list of values by axis: norm, init, eps, release, precision, depth, lr, "
    "warmup, kv_normalised",
    "data": "digits, a .npz, or a folder of class folders",
    "beside": "a second network to train step by step beside the first",
    "seed": "of weights and images",
}
_XFORMERS = ("block_type", "dim_model", "block_config", "stack_configs", "multi_head_config")
# The last releases whose configuration has the key. The first report is of the time of 0.0.9, whose pre-norm leaves
# keys and values un-normalised.
_OLD, _NEW = "0.0.9", "0.0.28.post3"


@dataclass(frozen=True)
class Recipe:
    """A recipe: the network and how it is to be checked.

    `model` is a target of `context_of`; `only` and `skip` name checks; `thresholds` change limits; `notes` say what was
    assumed; `name` is what a network that is configured in the file itself is called.
    """

    model: str
    wanted: Wanted
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    data: str = ""
    beside: str = ""
    vary: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""

    def context(self) -> Context:
        """Build what the recipe describes."""
        wanted = self.wanted
        if self.data:
            found = digits()[0] if self.data == "digits" else read_data(self.data)
            wanted = dataclasses.replace(wanted, data=found)
        context = context_of(self.model, wanted)
        other = None
        if self.beside:
            other = context_of(self.beside, Wanted(data=wanted.data, plan=wanted.plan, seed=wanted.seed))
        name = self.name or context.name
        notes = (*self.notes, *context.notes)
        return dataclasses.replace(context, name=name, other=other, vary=self.vary, notes=notes)


def is_recipe(target: str) -> bool:
    """Return True for the path of a YAML file."""
    return Path(target).suffix.lower() in SUFFIXES and Path(target).is_file()


def read_recipe(path: str | Path, wanted: Wanted | None = None) -> Recipe:
    """Read a recipe, or a configuration of xformers' factory; what `wanted` sets wins over the file.

    Raises:
        BadFile: it is no YAML, or a key stands twice.
        UsageError: an unknown key, a value that is none of its key, or keys that do not go together.
    """
    path, wanted = Path(path), wanted or Wanted()
    raw = parse_file(path)
    if isinstance(raw, list) or (isinstance(raw, Mapping) and not set(raw) & set(KEYS) and _of_factory(raw)):
        raw = {"xformers": raw, "init": "first-report"}
    if not isinstance(raw, Mapping):
        found = "nothing" if raw is None else type(raw).__name__
        raise UsageError(f"{path}: found {found}; expected a recipe: a mapping of {', '.join(KEYS)}")
    for key in raw:
        if key not in KEYS:
            raise unknown("key of a recipe", str(key), list(KEYS))
    return _recipe(path, dict(raw), wanted)


def _of_factory(raw: Mapping[str, Any]) -> bool:
    inner = [raw, *(v for v in raw.values() if isinstance(v, Mapping))]
    return any(key in one for one in inner for key in _XFORMERS)


def _recipe(path: Path, raw: dict[str, Any], wanted: Wanted) -> Recipe:
    named = [key for key in ("model", "xformers", "timm") if key in raw]
    if len(named) != 1:
        raise UsageError(f"{path}: found {' and '.join(named) or 'no network'}; expected one of model, xformers, timm")
    model, options, notes = _network(raw, wanted)
    sets = tuple(f"{k}={told.value(f'set: {k}', v)}" for k, v in told.mapping(raw, "set").items())
    held = {k: told.mapping(v, f"thresholds: {k}") for k, v in told.mapping(raw, "thresholds").items()}
    return Recipe(
        model,
        dataclasses.replace(
            wanted,
            sets=(*sets, *wanted.sets),
            options={**options, **wanted.options},
            scheme=wanted.scheme or told.text(raw, "init"),
            plan=_plan(raw, wanted.plan),
            seed=told.seed("seed", raw.get("seed", wanted.seed)),
        ),
        told.texts(raw, "checks"),
        told.texts(raw, "skip"),
        {k: {n: told.number(f"thresholds: {k}: {n}", x) for n, x in v.items()} for k, v in held.items()},
        told.text(raw, "data"),
        told.text(raw, "beside"),
        parse(f"{k}={told.value(f'vary: {k}', v, ',')}" for k, v in told.mapping(raw, "vary").items()),
        notes,
        path.name if "xformers" in raw else "",
    )


def _network(raw: dict[str, Any], wanted: Wanted) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    if "model" in raw:
        if not isinstance(raw["model"], str):
            raise UsageError(f"model: found {type(raw['model']).__name__}; expected a checkpoint, a size or host:model")
        return raw["model"], {}, ()
    if "timm" in raw:
        arguments = {"model_name": raw["timm"]} if isinstance(raw["timm"], str) else told.mapping(raw, "timm")
        name = arguments.pop("model_name", None)
        if name is None:
            raise UsageError("timm: expected model_name among the arguments")
        return f"timm:{name}", arguments, ()
    stated = raw.get("release") or next((s.partition("=")[2] for s in wanted.sets if s.startswith("release=")), None)
    if stated is not None:
        return "xformers-style:config", {"config": raw["xformers"], "release": str(stated)}, ()
    old = "layer_norm_style" in str(raw["xformers"])
    release = _OLD if old else _NEW
    note = (
        f"no release is stated: the key {'layer_norm_style' if old else 'residual_norm_style'} was read as "
        f"{release} reads "
        f"it; say --set release=0.0.x"
    )
    return "xformers-style:config", {"config": raw["xformers"], "release": release}, (note,)


def _plan(raw: dict[str, Any], plan: Plan) -> Plan:
    given = {"like": raw["training"]} if isinstance(raw.get("training"), str) else told.mapping(raw, "training")
    if "like" in given:
        name = str(given.pop("like"))
        if name not in PLANS:
            raise unknown("training", name, list(PLANS))
        plan = PLANS[name]
    known = {f.name for f in dataclasses.fields(Plan)}
    for name in given:
        if name not in known:
            raise unknown("key of training", name, sorted(known))
    if "precision" in raw:
        given["precision"] = raw["precision"]
    return dataclasses.replace(plan, **{k: told.of_yaml(v) for k, v in given.items()})
