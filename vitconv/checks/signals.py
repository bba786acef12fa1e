"""Do the stream and its gradient keep their size from block to block"""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, Points
from vitconv.checks.base.context import Context
from vitconv.checks.base.halves import half_pass, run_out
from vitconv.checks.base.passes import Pass, rms
from vitconv.layout.blocks import blocks_of

FLOAT32 = 3.4e38


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Follow the RMS and the largest |value| of the stream and the RMS of its gradient by depth."""
    seen = context.signals
    yield from _trained(context, seen)
    stream = seen.stream()
    if not stream:
        yield Finding("info", "no blocks are known in this network, so nothing is followed by depth")
        return
    lost = next((name for name, x in seen.taps.items() if not bool(x.isfinite().all())), None)
    sizes = [rms(x) for _, x in stream]
    tops = [float(x.abs().max()) for _, x in stream]
    curves = _curves(seen, sizes, tops)
    if lost is not None:
        yield Finding(
            "error",
            f"{lost} is the first value that is not finite, in float32: this is no matter of half precision",
            {"first": lost},
            (lost,),
            curves=curves,
            axes=("block", "RMS"),
        )
        return
    figures = {"rms_first": sizes[0], "rms_last": sizes[-1], "largest": max(tops)}
    text = f"stream RMS {sizes[0]:.3g} ahead of the blocks, {sizes[-1]:.3g} after {len(sizes) - 1}"
    over = next((i for i, top in enumerate(tops) if top > limits["largest"]), None)
    # What leads into a stage has a norm of its own: the stream begins anew, at another width.
    within = [i for i in range(1, len(sizes)) if _stage(stream[i][0]) == _stage(stream[i - 1][0]) or i == 1]
    jump = next((i for i in within if i > 2 and sizes[i] > limits["jump"] * sizes[i - 1] > 0), None)
    if not context.trained or max(sizes) > limits["rms"]:
        # The first blocks may grow a small stream, but not so much.
        leap = next((i for i in within if sizes[i] > limits["leap"] * sizes[i - 1] > 0), None)
        jump = leap if leap is not None else jump
    if over is not None:
        name = stream[over][0]
        yield Finding(
            "error", f"{text}; {name} reaches {tops[over]:.3g}, above {limits['largest']:g}: a quarter of float16's "
            "range",
            {**figures, "block": name}, (name,), curves=curves, axes=("block", "RMS"),
            advice=_growth_advice(context),
        )  # fmt: skip
    elif jump is not None or max(sizes) > limits["rms"]:
        at = jump if jump is not None else sizes.index(max(sizes))
        yield Finding(
            "warn", f"{text}; {stream[at][0]} is {sizes[at] / max(sizes[at - 1], 1e-30):.3g} times the block before",
            figures, (stream[at][0],), curves=curves, axes=("block", "RMS"), advice=_growth_advice(context),
        )  # fmt: skip
    else:
        blind = context.placement in ("post", "deepnorm")
        more = " (1 by construction after a norm: this says nothing here)" if blind else ""
        yield Finding("ok", text + more, figures, curves=curves, axes=("block", "RMS"))
    yield from _constant(context, seen)
    yield from _gradients(seen, limits)


def _trained(context: Context, seen: Pass) -> Iterator[Finding]:
    """Say that nothing can be trained: all parameters are frozen, the graph is cut, or gradients are not finite."""
    if seen.graded:
        yield from _sick(context, seen)
        return
    named = dict(context.network.module.named_parameters())
    if not named:
        text = "the network has no parameters, so nothing can be trained"
        yield Finding("error", text, {"parameters": 0}, advice="give the factory of the network that is to be trained")
        return
    frozen = [n for n, p in named.items() if not p.requires_grad]
    cut = len(frozen) < len(named)
    yield Finding(
        "error",
        "no gradient reaches any parameter, so nothing can be trained: "
        + (
            "the output is cut off from them, as under torch.no_grad(), detach() or argmax"
            if cut
            else f"all {len(named)} are frozen (requires_grad is False)"
        ),
        {"frozen": len(frozen), "parameters": len(named)},
        advice="take torch.no_grad() and detach() out of forward"
        if cut
        else "set requires_grad of what is to be trained, before the optimiser is made",
    )


def _sick(context: Context, seen: Pass) -> Iterator[Finding]:
    """Name the operator whose gradient is not finite although the output is: sqrt or norm of 0, log, division."""
    sick = [n for n, g in seen.grads.items() if not bool(g.isfinite().all())]
    if not sick or not bool(seen.output.isfinite().all()):
        return
    again = half_pass(context.network, context.data.batch(context.plan.batch), "fp32")
    # What the forward pass hides, as torch.where does, comes back in the backward pass.
    passes = (again.forward, *again.backward.values())
    first = next((one for steps in passes if (one := run_out(steps)) is not None), None)
    named = "" if first is None else f": {first} is the first to give infinite or NaN from finite inputs"
    yield Finding(
        "error",
        f"the output is finite, and the gradients of {len(sick)} of {len(seen.grads)} parameters are not, in float32"
        f"{named}",
        {"gradients": len(sick), "op": "" if first is None else first.op},
        (first.module,) if first is not None and first.module else tuple(sick[:8]),
        "the slope of sqrt, norm or log is infinite at 0, and torch.where keeps the NaN of the branch not taken: add "
        "an eps inside the root, or replace the argument before the function",
    )


def _stage(name: str) -> str:
    return name.split(".")[1] if name.startswith("stages.") else ""


def _curves(seen: Pass, sizes: list[float], tops: list[float]) -> dict[str, Points]:
    grads = [(float(i), rms(seen.tap_grads[n])) for i, (n, _) in enumerate(seen.stream()) if n in seen.tap_grads]
    return {
        "stream, RMS": tuple((float(i), x) for i, x in enumerate(sizes)),
        "stream, largest": tuple((float(i), x) for i, x in enumerate(tops)),
        "gradient of the stream, RMS": tuple(grads),
    }


def _constant(context: Context, seen: Pass) -> Iterator[Finding]:
    """Find a block whose output is the same for all images: a norm that overflowed gives zeros, not NaN."""
    for name, x in seen.taps.items():
        if x.dim() < 2 or len(x) < 2 or name == "head" or context.trained:
            continue
        spread, size = rms(x - x.mean(0, keepdim=True)), rms(x)
        gated = size == 0.0 and name.endswith((".attn", ".mlp"))
        if spread <= 1e-7 * size and not gated and name != "pool":
            yield Finding("error", f"{name} is the same for all images", {"spread": spread, "rms": size}, (name,))
            return


def _gradients(seen: Pass, limits: Limits) -> Iterator[Finding]:
    grads = {n.removesuffix(".mlp.down.weight"): g for n, g in seen.grads.items() if n.endswith(".mlp.down.weight")}
    values = [float(grads[block].double().norm()) for block in blocks_of(seen.grads) if block in grads]
    if len(values) < 2 or max(values) == 0.0:
        return
    if not all(math.isfinite(v) for v in values):
        # Said of all parameters already.
        return
    ratio = values[-1] / values[0] if values[0] > 0 else math.inf
    level = "error" if not 1 / limits["gradient"] <= ratio <= limits["gradient"] else "ok"
    yield Finding(
        "error" if level == "error" else "ok",
        f"gradient of the second MLP weight, last block over first: {ratio:.3g} (limit 1/{limits['gradient']:g} to "
        f"{limits['gradient']:g})",
        {"ratio": ratio},
        curves={"gradient of mlp.down": tuple((float(i), v) for i, v in enumerate(values))},
        axes=("block", "norm"),
    )


def _growth_advice(context: Context) -> str:
    if context.facts.norm_placement == "pre" and context.facts.residual_alpha not in (None, 1.0):
        return "a factor above 1 on a pre-norm stream grows as alpha^(2N): it belongs to DeepNorm's blocks only"
    if context.placement == "res-post":
        return "start the gains of the branches' norms at 0, or at 1e-5"
    return (
        "look at the weights of the block that is named, or scale output projections by 1/sqrt(2N) (init gpt2); "
        "bfloat16 has float32's range"
    )


CHECK = Check(
    id="signals",
    title="Do the stream and its gradient keep their size from block to block?",
    measures="RMS and largest |value| of the residual stream ahead of the blocks and after each, RMS of the loss "
    "gradient "
    "there, norm of the gradient of mlp.down by block",
    threshold="error when a value or a gradient is not finite in float32, when no gradient reaches a parameter, above "
    "16376 (a quarter of float16's range), when a block gives all images the same, or when the MLP gradients of the "
    "last and the first block differ by 1000; warn when a block past the second grows the RMS by 1.5, or any by 20 "
    "before training, or it passes 100. Post-norm streams are 1 by construction: see gradient-profile for them",
    advice="look at the block that is named",
    cost="pass",
    run=run,
    limits={"largest": 16376.0, "rms": 100.0, "jump": 1.5, "leap": 20.0, "gradient": 1000.0},
    source="Xiong et al., On layer normalization, 2020; De and Smith, 2020",
)
