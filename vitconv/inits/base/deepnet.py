"""DeepNet's constants, and the bound that tells whether alpha and the weights belong together.

Wang et al., DeepNet: Scaling Transformers to 1,000 Layers, 2022, figure 2 and section 4.3, encoder only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from vitconv.inits.base.architecture import Architecture

# B is 1 for a matching pair.
LOW, HIGH = 0.5, 2.0


def alpha(depth: int) -> float:
    """Return (2N)^(1/4), the factor of the residual stream, for N blocks."""
    return (2 * depth) ** 0.25


def beta(depth: int) -> float:
    """Return (8N)^(-1/4), the gain of value, output and MLP weights, for N blocks."""
    return (8 * depth) ** -0.25


def bound(arch: Architecture, stds: Mapping[str, float]) -> float | None:
    """Return B = sum over blocks of [(v² + w²) of attention + (v² + w²) of the MLP] / alpha².

    v and w are Xavier gains: the std of value and output, of up and down, over sqrt(2/(fan_in+fan_out)). A pair of
    DeepNet's alpha and beta gives exactly 1; Xavier without either gives 4N.

    Args:
        arch: the network.
        stds: {canonical name: std}, declared or measured.

    Returns:
        None where no norm stands after the sum: the bound speaks of post-norm stacks.
    """
    if arch.placement not in ("post", "deepnorm"):
        return None
    total = 0.0
    for i in range(arch.depth):
        for part in ("attn.v", "attn.out", "mlp.up", "mlp.down"):
            name = f"blocks.{i}.{part}.weight"
            rows, columns = arch.shapes[name]
            total += (stds[name] / math.sqrt(2.0 / (rows + columns))) ** 2
    return total / arch.alpha**2
