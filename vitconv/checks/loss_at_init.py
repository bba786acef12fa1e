"""Is the loss of the untrained network that of guessing"""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.gated import branches_gated
from vitconv.checks.base.halves import half_pass, run_out


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Hold the cross-entropy against ln C plus what logits of this spread add by themselves."""
    if context.trained:
        raise NotApplicable("the weights are trained")
    seen = context.signals
    if not seen.logits:
        raise NotApplicable("it gives no logits [b o]")
    y = seen.output.double()
    if not bool(y.isfinite().all()):
        yield _not_finite(context, seen.loss)
        return
    count, classes = y.shape
    if classes > 1 and bool((y >= 0).all()) and bool(((y.sum(1) - 1).abs() < 1e-3).all()):
        yield Finding(
            "warn",
            "the outputs are not negative and sum to 1: they look like probabilities, and cross-entropy takes logits",
            {"loss": seen.loss},
            advice="leave the softmax to the loss; a softmax of a softmax is nearly flat, and so is its gradient",
        )
        return
    spread = float(y.std(1, correction=0).mean())
    expected = math.log(classes) + spread**2 / 2
    room = 3 * spread / math.sqrt(count) + limits["room"]
    figures = {"loss": seen.loss, "ln_classes": math.log(classes), "logit_std": spread, "expected": expected}
    text = (
        f"loss {seen.loss:.4f}; ln {classes} = {math.log(classes):.4f}, plus s²/2 = {spread**2 / 2:.4f} for logits "
        "of std "
        f"{spread:.3f}; room {room:.3f}"
    )
    if seen.loss > limits["factor"] * math.log(classes):
        yield Finding("error", f"{text}: {seen.loss / math.log(classes):.1f} times the loss of guessing", figures)
    elif seen.loss - expected > room:
        yield Finding("warn", text, figures)
    elif spread > limits["logit_std"]:
        yield Finding("warn", f"{text}: logits of std above {limits['logit_std']:g} prefer classes at random", figures)
    else:
        yield Finding("ok", text, figures)
    over_images = float(y.std(0, correction=0).max())
    if count > 1 and over_images <= 1e-6 * max(spread, 1e-12) and spread > 0:
        by_design = branches_gated(context)
        yield Finding(
            "info" if by_design else "error",
            "every image gets the same logits: "
            + (
                "the branches are gated off at the start, so that the class token has seen no patch yet"
                if by_design
                else "the images do not reach the head"
            ),
            {"logit_std_over_images": over_images},
            advice="look where the stream becomes constant in signals; a hand-written norm that overflows does this",
        )


def _not_finite(context: Context, loss: float) -> Finding:
    """Name the first operator that runs out in float32, which is no matter of half precision."""
    first = run_out(half_pass(context.network, context.data.batch(1), "fp32").forward)
    text = "the logits are not finite in float32"
    if first is not None:
        text += f": {first} is the first to give infinite or NaN from finite inputs"
    return Finding(
        "error",
        text,
        {"loss": loss, "op": "" if first is None else first.op, "module": "" if first is None else first.module},
        (first.module,) if first is not None and first.module else (),
        "look at what is computed there: division by 0, exp or a power without bound, a softmax of masked logits only",
    )


CHECK = Check(
    id="loss-at-init",
    title="Is the loss of the untrained network that of guessing?",
    measures="cross-entropy L, and the std s of the logits over classes, on the first batch; a head of zeros gives "
    "exactly "
    "ln C, random logits of std s add s²/2",
    threshold="warn when L - ln C > s²/2 + 3 s/sqrt(b) + 0.05, the last being sampling noise; error at twice ln C; "
    "warn at s > 2 (1.3, of a small Xavier head, trained in every network tried); error when all images get the same "
    "logits and no branch is gated off by design",
    advice="make the head smaller (std .02, or zero), and check that labels and classes match",
    cost="pass",
    run=run,
    limits={"room": 0.05, "factor": 2.0, "logit_std": 2.0},
    source="Karpathy, A recipe for training neural networks, 2019; the s²/2 is the second cumulant of log-sum-exp",
)
