"""Does a branch grow with the stream it reads, and how much does one step grow the stream"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.passes import rms
from vitconv.errors import Refused
from vitconv.hosts.base.tap import recording
from vitconv.layout.blocks import blocks_of, is_block
from vitconv.parity.bridge import Bridge, state_of

FACTOR = 10.0
# Examples that are run again; the figures are means over all their tokens.
FEW = 1


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Run with the stream made larger, then with every weight moved by Adam's first step."""
    if context.placement in ("post", "deepnorm"):
        raise NotApplicable("a norm stands after the sum, so the stream is 1 whatever happens")
    if not any(is_block(name) for name in context.network.taps):
        raise NotApplicable("no blocks are known in this network")
    found = False
    if context.placement == "pre":
        for finding in _response(context, limits):
            found = True
            yield finding
    for finding in _one_step(context, limits):
        found = True
        yield finding
    if not found:
        raise NotApplicable("the stream cannot be changed in this network, and no gradient has a role")


def exponents(context: Context) -> dict[str, dict[int, float]]:
    """Return {branch: {block: d log |branch| / d log |stream|}}, 0 for a branch that reads a norm's output."""
    built, seen = context.network, context.signals

    def change(name: str, whole: Tensor) -> Tensor | None:
        return whole * FACTOR if name == "embed" else None

    images = context.data.batch(context.plan.batch)[0][:FEW]
    with torch.no_grad(), recording(built.taps, change=change) as larger:
        built.run(built.module, images)
    found: dict[str, dict[int, float]] = {"attn": {}, "mlp": {}}
    for name, value in larger.values().items():
        part = name.rpartition(".")[2]
        before = rms(seen.taps[name][:FEW]) if name in seen.taps else 0.0
        after = rms(value)
        if name.startswith("blocks.") and part in found and before > 0 and after > 0:
            found[part][int(name.split(".")[1])] = math.log(after / before) / math.log(FACTOR)
    return found


def _response(context: Context, limits: Limits) -> Iterator[Finding]:
    try:
        found = exponents(context)
    except Refused:
        return
    # One picture of both, on one scale: what is normalised lies at 0, and its noise looks like what it is.
    curves = {
        f"power of {part}": tuple((float(i), x) for i, x in sorted(by.items())) for part, by in found.items() if by
    }
    ends = [float(i) for by in found.values() for i in by]
    if ends:
        curves["limit"] = ((min(ends), limits["power"]), (max(ends), limits["power"]))
    first = next((part for part, by in found.items() if by), "")
    for part, by_block in found.items():
        # The first block can be handed the stream twice, of which one is made larger.
        inner = {i: x for i, x in by_block.items() if i > 0} or by_block
        if not inner:
            continue
        power = median(inner.values())
        grows = not power <= limits["power"]
        what = "attention" if part == "attn" else "the MLP"
        cause = (
            "what it reads is not normalised: values grow with the stream, and the stream with the values"
            if grows
            else "it reads a normalised stream"
        )
        yield Finding(
            "error" if grows else "ok",
            f"a stream {FACTOR:g} times as large makes the output of {what} {FACTOR**power:.2f} times as large (power "
            f"{power:.2f}, limit {limits['power']:g}): {cause}",
            {f"power_{part}": power},
            tuple(f"blocks.{i}.{part}" for i in sorted(inner)[:8]) if grows else (),
            "normalise what keys and values read as well: xformers 0.0.10 and later do; a lower peak learning rate and "
            "fewer blocks only hide it" if grows and part == "attn" else "",
            curves if part == first else {},
            ("block", "power"),
            linear=True,
        )  # fmt: skip


def _one_step(context: Context, limits: Limits) -> Iterator[Finding]:
    """Move every weight by lr g/(|g| + eps), Adam's first step at the peak, and look at the stream again."""
    bridge, seen, plan = context.bridge, context.signals, context.plan
    if bridge is None or context.trained:
        return
    built = context.network
    blocks, image = {n: t for n, t in built.taps.items() if is_block(n)}, context.data.batch(plan.batch)[0][:FEW]
    moved = _moved(bridge, state_of(built.module), seen.grads, plan.lr)
    with moved, torch.no_grad(), recording(blocks) as after:
        built.run(built.module, image)
    now = {n: rms(x) for n, x in after.values().items()}
    if not now:
        # A block that runs several times in a pass leaves no value of its own.
        return
    last = blocks_of(now_name + ".x" for now_name in now)[-1]
    before = rms(seen.taps[last][:FEW])
    if before == 0.0:
        return
    growth = now[last] / before
    yield Finding(
        "warn" if not growth <= limits["growth"] else "ok",
        f"one step of Adam at the peak lr {plan.lr:g} makes the stream after the last block {growth:.3g} times as "
        f"large (limit {limits['growth']:g})",
        {"growth": growth, "before": before, "after": now[last]},
        (last,) if not growth <= limits["growth"] else (),
        "a warm-up and a lower peak learning rate; the deeper the network, the lower",
        {
            "stream before the step": tuple((float(i), rms(seen.taps[n][:FEW])) for i, n in enumerate(now)),
            "stream after it": tuple((float(i), x) for i, x in enumerate(now.values())),
        },
        ("block", "RMS"),
    )


@contextmanager
def _moved(bridge: Bridge, state: Mapping[str, Tensor], grads: Mapping[str, Tensor], lr: float) -> Iterator[None]:
    """Move every weight by lr g / (|g| + eps), where eps does not count; after that they are as they were.

    New memory stands in for the old, as in `module.to`: to move the weights and copy them back takes twice as long.
    """
    own = {key: t for key, t in state.items() if isinstance(t, nn.Parameter) and bridge.owns(key)}
    kept = {key: t.data for key, t in own.items()}
    new = {**state, **{key: torch.empty_like(t) for key, t in kept.items()}}
    before, after = (bridge.views(tensors, bridge.network.cells) for tensors in (state, new))
    with torch.no_grad():
        # Of two names of one tensor only the first has a gradient: it comes last.
        for name in sorted(before, key=grads.__contains__):
            if name in grads:
                torch.sign(grads[name], out=after[name])
                torch.add(before[name], after[name], alpha=-lr, out=after[name])
            else:
                after[name].copy_(before[name])
    try:
        for key, t in own.items():
            t.data = new[key]
        yield
    finally:
        for key, t in own.items():
            t.data = kept[key]


CHECK = Check(
    id="stream-growth",
    title="Does a branch grow with the stream it reads?",
    measures="pre-norm: the stream ahead of the blocks is made ten times as large; log10 of the growth of each "
    "branch's output, the median over blocks past the first. And the RMS of the stream after the last block, once "
    "every weight was moved by Adam's first step at the peak learning rate, over that before",
    threshold="error above a power of 0.5: a branch that reads a norm's output has 0 (measured -0.1 to 0.1 at 6 to 48 "
    "blocks), attention whose keys and values read the stream itself has 1 (0.9 to 1.1), which is how xformers up to "
    "0.0.9 is; warn when one step makes the stream more than four times as large (2.2 in a ViT-B at 1e-3, which "
    "trains). The growth under one step does not tell the two apart; the power does, on any network, without knowing "
    "its release",
    advice="look at what the branch that is named reads",
    cost="pass",
    run=run,
    limits={"power": 0.5, "growth": 4.0},
    source="a norm does not see the scale of its input (Ba et al., 2016); xformers 78bc58cb (2022-03-11)",
)
