"""Half-precision products on a CPU as tensor cores compute them: in float32, rounded once.

A CPU's own float16 products take ten to a hundred times as long as float32's, and sum as that CPU does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward",
     "_scaled_dot_product_flash_attention_for_cpu",
     "_scaled_dot_product_flash_attention_for_cpu_backward"}
)  # fmt: skip


def run_rounded(func: Any, name: str, low: torch.dtype | None, args: Any, kwargs: Any) -> Any:
    """Run one operator; a product of tensors of dtype `low` in float32, its results rounded to `low`.

    `name`: that of the operator, without its overload.
    """
    if low is None or name not in _PRODUCTS or not any(isinstance(t, Tensor) and t.dtype == low for t in args):
        return func(*args, **kwargs)

    def change(t: Any, of: torch.dtype, to: torch.dtype) -> Any:
        return t.to(to) if isinstance(t, Tensor) and t.dtype == of else t

    # Products take tensors one by one, never in lists.
    wide = [change(t, low, torch.float32) for t in args]
    out = func(*wide, **{k: change(t, low, torch.float32) for k, t in kwargs.items()})
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        # The second result is the log of the sums, which stays in float32.
        return (change(out[0], torch.float32, low), *out[1:])
    if isinstance(out, Tensor):
        return change(out, torch.float32, low)
    return tuple(change(t, torch.float32, low) for t in out)


class RoundedProducts(TorchDispatchMode):
    """Compute products of tensors of one half precision in float32, rounded once, while the mode is on."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low = low

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled under this mode; to say so to the compiler takes seconds to import it.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_rounded(func, func._schema.name.removeprefix("aten::"), self.low, args, kwargs or {})  # noqa: SLF001
