"""Every threshold of the verifier, with its reason. Nothing else in the package holds a number that decides.

Figures are of float64 and emulated half precision on a CPU, measured on vit_tiny, vit_small and a small trained
network, over 9 correct implementations and 46 faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Same function? Correct implementations part by at most 2.3e-15 in float64, the smallest fault by 1.2e-6 (another eps
# of the last norm); 1e-10 leaves deep and wide networks four digits of room, and faults four.
SAME_FUNCTION = 1e-10

# A value is measured against its own size, but at least against this part of the largest of its kind. A gradient that
# is zero in exact arithmetic (a key bias: it cancels in the softmax) is noise of 1e-17 to 1e-16 of its neighbours', so
# against 1e-3 of them it is below 1e-12, and a fault in a gradient so small still shows down to 1e-13 of the largest.
SCALE_FLOOR = 1e-3

# Below this part of the largest of its kind a gradient in float64 is zero in exact arithmetic.
NULL = 1e-12

# Two runs of the same network with the same input must agree to the bit; the same pictures in another batch may be
# summed in another order, which in float64 stays below the threshold of the function.
REPEAT = 0.0

# To see whether a side that takes float64 computes in it: by how much of their size images are moved, and how large at
# the most what float32 rounds to is, of the size of a value (2^-24, many times over). Float64 shows less than
# `SAME_FUNCTION`; half precision more, and it is a difference at float32 as well.
NUDGED, ROUNDED = 2.0**-30, 1e-5

# Of a side that does not run in float64 the same is asked in the finest precision that it knows: correct runs part by
# up to 1.4 times a rounding error of some units (1e-6 of float32's 6e-8, 1e-2 of bfloat16's 4e-3).
NEARLY = 32.0

# At a precision: the other side's error against float64 may be k times the baseline's.
# Taps: correct implementations reach 1.34 (ViT) and 1.61 (trained, ten classes); precision faults start at 1.9.
K_TAP = 2.0
# All gradients together: correct ones reach 1.25 and 2.40 on one small batch.
K_GRADIENTS = 3.0
# One parameter, the worst of about 150: correct ones reach 2.69 and 3.40.
K_PARAMETER = 5.0
# Observed spread of the baseline's own variants may widen k, by this margin, for the next variant is a little wider
# than those that were seen.
SPREAD_MARGIN = 1.25
# ... but never past this factor: a baseline that varies more has no floor to judge by.
SPREAD_LIMIT = 3.0
# The baseline's error counts as at least this many unit roundoffs of the value's size: a baseline can be exact by
# accident, and an implementation that rounds once is not at fault.
ROUNDINGS = 1.0

# Teacher-forced blocks: correct code stays within 1.04 (float32) and 1.15 (bfloat16) of the baseline in one block.
K_BLOCK = 1.3
# A fault is local when the worst block stands out from the middle one by this factor.
LOCAL = 20.0

# Loss scales that are tried in half precision, smallest first named by the practice of dynamic scaling.
LOSS_SCALE_MIN = 1024.0
LOSS_SCALE_MAX = 2.0**20
# The largest gradient may fill this part of float16's range, 65504.
HEADROOM = 1 / 16

# A parameter is changed by this factor of its size to see whether the output feels it.
NUDGE = 0.25


@dataclass(frozen=True)
class Profile:
    """Rules to judge by: the threshold of the function, and k for taps, for all gradients, for one parameter."""

    name: str
    title: str
    function: float = SAME_FUNCTION
    tap: float = K_TAP
    gradients: float = K_GRADIENTS
    parameter: float = K_PARAMETER
    calibrated: bool = True


PROFILES: Mapping[str, Profile] = {
    p.name: p
    for p in (
        Profile("default", "k widened by the spread of the baseline's own variants"),
        # Ratios of pooled inputs: correct implementations stay within 1.02 to 1.15 of each other on taps.
        Profile("strict", "k fixed, and half as large", 1e-12, 1.5, 2.0, 4.0, False),
    )
}
