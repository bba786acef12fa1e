"""Say how far a kernel may be from float64, and why.

The rule is relative to the plain reference at the same dtypes: error(kernel) <= 2 error(reference) + floor,
both relative L2 against float64 on the same rounded inputs. The reference differs only in the order of
sums, so twice its error is what another order may cost; the floor is the rounding that the kernel adds on
purpose. Any non-finite value where float64 is finite fails whatever the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

FACTOR = 2.0

# One rounding of normal data to the storage dtype, relative L2, as measured; float32 with a row sum beside it.
ROUNDING: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float32: 3e-7, torch.float16: 2.1e-4, torch.bfloat16: 1.7e-3}
)
# Triton's interpreter truncates where it stores bfloat16: twice the error of rounding to nearest.
INTERPRETED_BFLOAT16 = 2.0
# Focused attention narrows the operands of its products, twice in a row forward, three times in a row backward.
FOCUSED_FORWARD, FOCUSED_BACKWARD = 1.5, 4.0
# float32 sums over thousands of rows, taken in another order.
FLOAT32_SUM = 2e-6


def floor(dtype: torch.dtype, *, interpreted: bool = False, focused: str = "") -> float:
    """Return the floor for a result of `dtype`; `focused` is "", "forward" or "backward".

    A float32 result that was computed from narrowed operands (a scale's gradient in focused attention) is
    asked for with the dtype of the operands.
    """
    base = ROUNDING[dtype]
    if dtype == torch.bfloat16 and interpreted:
        base *= INTERPRETED_BFLOAT16
    base *= {"": 1.0, "forward": FOCUSED_FORWARD, "backward": FOCUSED_BACKWARD}[focused]
    return max(base, FLOAT32_SUM) if focused == "backward" or dtype == torch.float32 else base


def once_rounded(exact: Tensor, dtype: torch.dtype) -> float:
    """Return the largest error of a result that is computed in float32 and rounded once: that rounding, and 3e-7."""
    return 1.01 * error(exact.to(dtype), exact) + ROUNDING[torch.float32]


def error(got: Tensor, exact: Tensor) -> float:
    """Return the relative L2 error against a float64 tensor; infinite where got is not finite and exact is."""
    if not bool(torch.isfinite(got[torch.isfinite(exact)]).all()):
        return float("inf")
    return float((got.double() - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float64).tiny))


def allowed(reference_error: float, floor_value: float) -> float:
    """Return the largest error a kernel may have."""
    return FACTOR * reference_error + floor_value
