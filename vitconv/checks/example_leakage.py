"""Does an example depend on the others in its batch"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Take the gradient of one example's output with respect to the images of the others."""
    built = context.network
    images = context.data.batch(3)[0]
    if len(images) < 2 or not images.is_floating_point():
        raise NotApplicable("there is one example only")
    x = images.detach().clone().requires_grad_(True)
    output = built.run(built.module, x)
    if output.shape[0] != len(x):
        yield Finding("error", f"{len(x)} images give {output.shape[0]} outputs")
        return
    (grad,) = torch.autograd.grad(output[0].float().square().sum(), x)
    built.module.zero_grad(set_to_none=True)
    own, others = float(grad[0].abs().max()), float(grad[1:].abs().max())
    leak = others > limits["share"] * own
    yield Finding(
        "error" if leak else "ok",
        f"the output of one image has gradient {others:.3g} in the others, {own:.3g} in itself (limit "
        f"{limits['share']:g})",
        {"own": own, "others": others},
    )


CHECK = Check(
    id="example-leakage",
    title="Does an example depend on the others in its batch?",
    measures="largest gradient of one example's output in the other images, over that in its own",
    threshold="error above 1e-6 of its own: exactly zero is right",
    advice="look for a reshape that mixes batch and tokens, attention over the wrong axis, or a batch norm in train "
    "mode",
    cost="pass",
    run=run,
    limits={"share": 1e-6},
    source="Karpathy, A recipe for training neural networks, 2019",
)
