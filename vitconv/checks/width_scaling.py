"""Do activations keep their size when the network is made wider, at the start and after a few steps"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from statistics import fmean

import torch

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.data import made_up
from vitconv.checks.base.passes import loss_of, rms
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import optimiser
from vitconv.hosts.base.host import Built
from vitconv.hosts.base.tap import recording
from vitconv.inits.base.change import changes_of
from vitconv.layout.blocks import is_block
from vitconv.layout.canonical import role_of
from vitconv.parity.bridge import state_of

WIDTHS = (32, 64, 128, 256)
STEPS = 3
# Matrices from width to width: their rate is divided by the width's multiple in muP.
HIDDEN = ("attn.q.weight", "attn.k.weight", "attn.v.weight", "attn.out.weight", "mlp.up.weight", "mlp.down.weight")


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train networks of four widths for three steps, and take the slope of log2 RMS over log2 width."""
    if context.trained:
        raise NotApplicable("the weights are trained")
    if context.weights is None:
        raise NotApplicable(context.lacking or "no dialect explains its tensors")
    if context.arch.staged:
        raise NotApplicable("a network of stages is not built at other widths here")
    claims = context.scheme == "mup" or (not context.scheme and context.audit.fits[0].scheme.name == "mup")
    scheme = context.scheme or context.audit.fits[0].scheme.name
    by_width = claims and bool(limits["rule"])
    sizes = coordinates(context, scheme, limits["lr"], by_width=by_width)
    slopes = {part: slope(sizes[part]) for part in sizes}
    part, steepest = max(slopes.items(), key=lambda item: item[1])
    curves = {
        name: tuple((math.log2(w), math.log2(x)) for w, x in by_width.items() if x > 0)
        for name, by_width in sizes.items()
    }
    listed = ", ".join(f"{name} {value:+.2f}" for name, value in slopes.items())
    rule = "hidden matrices at lr / width multiple" if by_width else "one lr for all"
    text = (
        f"slope of log2 RMS over log2 width after {STEPS} steps at lr {limits['lr']:g} ({rule}), widths "
        f"{WIDTHS[0]} to {WIDTHS[-1]}: {listed}"
    )
    if not claims:
        text += "; only muP claims 0, so a learning rate found at one width does not hold at another"
        yield Finding("info", text, {**slopes, "worst": steepest}, curves=curves, axes=("log2 width", "log2 RMS"))
        return
    yield Finding(
        "error" if not steepest <= limits["error"] else "warn" if steepest > limits["warn"] else "ok",
        f"{text}; limits {limits['warn']:g} and {limits['error']:g}",
        {**slopes, "worst": steepest},
        (part,) if not steepest <= limits["warn"] else (),
        curves=curves,
        axes=("log2 width", "log2 RMS"),
    )


def coordinates(context: Context, scheme: str, lr: float, *, by_width: bool) -> dict[str, dict[int, float]]:
    """Return {stream or branch: {width: RMS after `STEPS` steps}}, averaged over blocks.

    With `by_width` the step of hidden matrices is divided by width / the smallest width, as muP has it.
    """
    arch, found = context.arch, dict[str, dict[int, float]]()
    depth = min(arch.depth, 3)
    for width in WIDTHS:
        # muP's logits are scaled by 8/e: a constant head width keeps that the same at every width.
        sets = [f"depth={depth}", f"dim={width}", f"heads={width // 16}", "patch=4", "image=16", "channels=3"]
        sets += ["classes=10", *(f"{name}={value}" for name, value in changes_of(arch).items())]
        sets += ["attention_scale=0.5"] if scheme == "mup" else []
        sets += [f"norm_eps={context.facts.norm_eps}"] if context.facts.norm_eps is not None else []
        sets += ["kv_normalised=false"] if context.facts.kv_normalised is False else []
        wide = context_of("vit_tiny", Wanted(tuple(sets), scheme=scheme, seed=context.plan.seed))
        data = made_up(wide.network.inputs, 16, 10, context.plan.seed)
        for name, size in _after(wide, data.images, data.labels, lr, width // WIDTHS[0] if by_width else 1).items():
            found.setdefault(name, {})[width] = size
    return found


def _after(of: Context, images: torch.Tensor, labels: torch.Tensor, lr: float, multiple: int) -> dict[str, float]:
    built = of.fresh()
    built.module.eval()
    plan = dataclasses.replace(of.plan, decay=0.0)
    steps = optimiser(built.module, of.bridge, plan)
    for _ in range(STEPS):
        built.module.zero_grad(set_to_none=True)
        loss_of(built.run(built.module, images), labels).backward()
        before = _hidden(of, built) if multiple > 1 else {}
        steps.step(lr)
        _slow_down(of, built, before, multiple)
    with torch.no_grad(), recording(built.taps) as seen:
        built.run(built.module, images)
    groups: dict[str, list[float]] = {}
    for name, value in seen.values().items():
        part = "stream" if is_block(name) else name.rpartition(".")[2] if name.startswith("blocks.") else ""
        if part:
            groups.setdefault(part, []).append(rms(value))
    return {part: fmean(values) for part, values in groups.items()}


def _hidden(of: Context, built: Built) -> dict[str, torch.Tensor]:
    assert of.bridge is not None
    weights = of.bridge.read(state_of(built.module))
    return {name: w for name, w in weights.items() if name.startswith("blocks.") and role_of(name) in HIDDEN}


def _slow_down(of: Context, built: Built, before: Mapping[str, torch.Tensor], multiple: int) -> None:
    """Take back all but 1/multiple of the step of the hidden matrices."""
    if not before:
        return
    assert of.bridge is not None
    state = state_of(built.module)
    weights = of.bridge.read(state)
    for name, old in before.items():
        weights[name] = old + (weights[name] - old) / multiple
    of.bridge.write(weights, state)


def slope(by_width: Mapping[int, float]) -> float:
    """Return the slope of log2 RMS over log2 width, by least squares."""
    points = [(math.log2(w), math.log2(x)) for w, x in by_width.items() if x > 0 and math.isfinite(x)]
    if len(points) < 2:
        return math.inf
    mx, my = fmean(x for x, _ in points), fmean(y for _, y in points)
    return sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)


CHECK = Check(
    id="width-scaling",
    title="Do activations keep their size when the network is made wider?",
    measures="RMS of the stream and of the branches of networks of its kind at widths 32 to 256, after three steps of "
    "Adam at a large learning rate on made-up images; slope of its log2 over the log2 of the width. Weights of scheme "
    "mup are trained by muP's rule, hidden matrices at lr / width multiple",
    threshold="scheme mup: warn at a slope of 0.2, error at 0.3 (measured: muP at most 0.12, the usual init with one "
    "learning rate 0.4 and more); `rule` 0 is a training with one learning rate for all; for other schemes the slope "
    "is only told, since they claim nothing",
    advice="see that hidden matrices have variance 1/fan-in, a learning rate of lr / width multiple, and logits "
    "divided by the head width",
    cost="steps",
    run=run,
    limits={"warn": 0.2, "error": 0.3, "lr": 0.01, "rule": 1.0},
    source="Yang et al., Tensor Programs V, 2022, section D.1; microsoft/mup, README, coordinate check",
)
