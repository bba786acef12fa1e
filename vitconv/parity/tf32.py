"""TF32 on a CPU: the operands of products are rounded to 10 bits after the point, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
# The position of the operands: what a product adds, a bias, stays float32.
_OPERANDS: dict[Any, tuple[int, ...]] = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
    _aten.convolution.default: (0, 1),
    _aten.convolution_backward.default: (0, 1, 2),
}


def round_tf32(x: Tensor) -> Tensor:
    """Round to TF32: x: [...], float32; 10 bits after the point, to nearest, ties to even; NaN and Inf stay."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isfinite(x), rounded.view(torch.float32), x)


class RoundOperands(TorchDispatchMode):
    """Round the operands of every float32 product to TF32 while the mode is on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled under this mode; to say so to the compiler takes seconds to import it.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = _OPERANDS.get(func)
        if at is not None:
            args = tuple(
                round_tf32(a) if j in at and isinstance(a, Tensor) and a.dtype == torch.float32 else a
                for j, a in enumerate(args)
            )
        return func(*args, **(kwargs or {}))
