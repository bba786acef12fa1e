"""Variants of a small network like the one in question: one value per axis, and how each is built and trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from vitconv.checks.base.check import NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.data import Data, digits
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import Run, train
from vitconv.errors import UsageError
from vitconv.inits.base.architecture import PLACEMENTS
from vitconv.inits.base.change import changes_of
from vitconv.registry import INITS, names, unknown
from vitconv.vit.xformers_style.release import release

# What can be varied, and what it means.
AXES: Mapping[str, str] = {
    "norm": "where the norms of a block stand: pre, post, deepnorm, res-post, or none",
    "init": "the init scheme",
    "eps": "of the norms in the blocks",
    "release": "xformers' behaviour: our twin of that release, pre, post or deepnorm",
    "precision": "fp32, amp-fp16 or amp-bf16, emulated",
    "depth": "blocks",
    "lr": "peak learning rate",
    "warmup": "steps of warm-up",
    "kv_normalised": "whether keys and values read the norm's output: true or false",
}
_PLAN = ("precision", "lr", "warmup")

Axes = Mapping[str, str]


@dataclass(frozen=True)
class Tried:
    """One variant and how it went: as planned, and without warm-up where the plan has one."""

    axes: Axes
    planned: Run
    without: Run | None

    @property
    def name(self) -> str:
        """Return the variant in words."""
        return named(self.axes)

    @property
    def verdict(self) -> str:
        """Return trains, needs warm-up, stuck, collapses or diverges."""
        if self.planned.verdict == "trains" and self.without is not None and self.without.verdict != "trains":
            return "needs warm-up"
        return self.planned.verdict


def named(axes: Axes) -> str:
    """Return a variant in words."""
    return ", ".join(f"{k}={v}" for k, v in axes.items()) or "as it is"


def parse(texts: Iterable[str]) -> tuple[Axes, ...]:
    """Return all combinations of `AXIS=VALUE,VALUE` texts.

    Raises:
        UsageError: no such axis, no value, or one that the axis cannot have.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name.strip() not in AXES:
            raise unknown("axis to vary", name.strip(), list(AXES))
        found = [v.strip() for v in values.split(",") if v.strip()]
        if not found:
            raise UsageError(f"--vary {text}: expected {name}=VALUE,VALUE")
        for value in found:
            _check(name.strip(), value)
        axes.setdefault(name.strip(), []).extend(found)
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values())) if axes else ()


def _check(axis: str, value: str) -> None:
    """Refuse a value that no training has, before anything is trained."""
    named_values = {
        "norm": PLACEMENTS,
        "init": names(INITS),
        "precision": ("fp32", "amp-fp16", "amp-bf16"),
        "kv_normalised": ("true", "false"),
    }
    if axis in named_values:
        if value not in named_values[axis]:
            raise UsageError(f"--vary {axis}={value}: expected one of {', '.join(named_values[axis])}")
    elif axis == "release":
        release(value)
    else:
        whole, least = axis in ("depth", "warmup"), 0 if axis == "warmup" else 1
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (number < least if whole else number <= 0):
            expected = f"a whole number of at least {least}" if whole else "a number above 0"
            raise UsageError(f"--vary {axis}={value}: expected {expected}")


def smaller(context: Context, width: int, depth: int, axes: Axes | None = None) -> Context:
    """Return a network of the context's depth, norms, eps and init at a small width, with some of it changed.

    Raises:
        Refused: the init scheme does not go with the norm placement.
        UsageError: an axis has no such value.
    """
    axes = axes or {}
    arch, facts = context.arch, context.facts
    if arch.staged:
        raise NotApplicable("a network of stages has no small twin here; give it --data, and it is trained itself")
    data = data_of(context)
    shape = tuple(data.images.shape[1:])
    # Sixteen patches and a class token, whatever the images are.
    side, channels = (8, 1) if shape == (1, 8, 8) else (32, min(3, shape[0]))
    deep = int(axes.get("depth", min(arch.depth, depth)))
    plan = planned(context.plan, axes)
    scheme = axes.get("init") or context.scheme or context.audit.fits[0].scheme.name
    common = {"depth": deep, "dim": width, "heads": 3, "patch": side // 4, "image": side, "channels": channels}
    common |= {"classes": max(2, data.classes)}
    changes = changes_of(arch) | ({"norm": axes["norm"]} if "norm" in axes else {})
    if "release" in axes:
        return _of_release(axes, common, changes["norm"], scheme, data, plan)
    if changes["norm"] == "none" and "eps" in axes:
        raise UsageError(f"eps={axes['eps']} is that of the norms in the blocks, and there are none; vary norm as well")
    sets = [f"{k}={v}" for k, v in (common | changes).items()]
    told = {"norm_eps": axes.get("eps", facts.norm_eps), "kv_normalised": axes.get("kv_normalised")}
    if "norm" not in axes and told["kv_normalised"] is None:
        told["kv_normalised"] = facts.kv_normalised
    sets += [f"{k}={v}" for k, v in told.items() if v is not None]
    return context_of("vit_tiny", Wanted(tuple(sets), scheme=scheme, data=data, plan=plan, seed=plan.seed))


def _of_release(axes: Axes, common: Mapping[str, int], placement: str, scheme: str, data: Data, plan: Plan) -> Context:
    """Build our twin of a release; eps and keys and values are its own."""
    clash = [name for name in ("eps", "kv_normalised") if name in axes]
    if clash:
        raise UsageError(f"release={axes['release']} decides {' and '.join(clash)} itself; vary one or the other")
    which = release(axes["release"])
    if placement not in which.styles:
        raise UsageError(f"xformers {which.text} has the norms {', '.join(which.styles)}, not {placement}")
    config: dict[str, Any] = {
        "block_type": "encoder",
        "num_layers": common["depth"],
        "dim_model": common["dim"],
        which.style_key: placement,
        "multi_head_config": {
            "num_heads": common["heads"],
            "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }
    options = {k: common[k] for k in ("image", "patch", "channels", "classes")}
    wanted = Wanted(
        options={"config": config, "release": which.text, **options}, scheme=scheme, data=data, plan=plan,
        seed=plan.seed,
    )  # fmt: skip
    return context_of("xformers-style:config", wanted)


def data_of(context: Context) -> Data:
    """Return the user's images at the size they came in, or digits."""
    if not context.data.real:
        return digits()[0]
    return context.data.whole or context.data


def planned(plan: Plan, axes: Axes) -> Plan:
    """Return the plan with the axes that are part of it changed.

    Raises:
        UsageError: a value is no number.
    """
    from vitconv.parity.precision import precision_of

    try:
        return dataclasses.replace(
            plan,
            precision=precision_of(axes.get("precision", "fp32")).name,
            lr=float(axes.get("lr", plan.lr)),
            warmup=int(axes.get("warmup", plan.warmup)),
        )
    except ValueError as e:
        raise UsageError(f"{named({k: v for k, v in axes.items() if k in _PLAN})}: {e}") from None


def trial(context: Context, axes: Axes) -> Tried:
    """Train a variant as its plan says, and again without warm-up."""
    plan, without = context.plan, None
    run = train(context.fresh(), context.data, plan, context.bridge)
    if plan.warmup > 1:
        bare = dataclasses.replace(plan, warmup=1)
        without = train(context.fresh(), context.data, bare, context.bridge)
    return Tried(axes, run, without)
