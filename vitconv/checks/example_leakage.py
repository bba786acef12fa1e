"""Does an example depend on the others in its batch"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context


def run(context: Context, _limits: Limits) -> Iterator[Finding]:
    """Put an example of NaN beside another, and see whether that one's output stays a number."""
    output = context.beside_nothing
    if output is None:
        raise NotApplicable("there is one example only, or it is whole numbers")
    if output.shape[0] != 2:
        yield Finding("error", f"2 images give {output.shape[0]} outputs")
        return
    lost = float((~output[0].isfinite()).float().mean())
    if lost and not bool(context.signals.output[0].isfinite().all()):
        raise NotApplicable("its output is not finite beside images that are, so NaN tells nothing")
    if not bool(output[1].isnan().any()):
        yield Finding(
            "error", "an image of NaN gives numbers: the images do not reach the output", {"lost": lost},
            advice="look for the module that does not read its input, or replaces NaN",
        )  # fmt: skip
    yield Finding(
        "error" if lost else "ok",
        f"beside an image of NaN, {lost:.0%} of the output of another is NaN; 0 % is right",
        {"lost": lost},
    )


CHECK = Check(
    id="example-leakage",
    title="Does an example depend on the others in its batch?",
    measures="the output of one image, in evaluation, beside one whose every pixel is NaN",
    threshold="error when any of it is NaN: whatever comes from another example would be, however small its share",
    advice="look for a reshape that mixes batch and tokens, attention over the wrong axis, or a batch norm in train "
    "mode",
    cost="pass",
    run=run,
    source="Karpathy, A recipe for training neural networks, 2019, asks for the gradient; NaN needs no backward pass",
)
