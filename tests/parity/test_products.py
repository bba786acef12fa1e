"""Float16's products on a CPU are summed in float32 and rounded once, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vitconv.parity.precision import running
from vitconv.parity.products import RoundedProducts


class Seen(TorchDispatchMode):
    """Keep the dtypes of what products are given."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm", "addmm", "convolution") or "attention" in name:
            kinds = {t.dtype for t in args if isinstance(t, Tensor) and t.is_floating_point()}
            self.dtypes.setdefault(name, set()).update(kinds)
        return func(*args, **(kwargs or {}))


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("precision", "wide"), [("amp-fp16", True), ("fp16", True), ("amp-bf16", False)])
def test_products_are_computed_in_float32_for_float16_alone(precision: str, wide: bool) -> None:
    x, w, b = tensors((3, 64), (8, 64), (8,))
    if precision == "fp16":
        x, w, b = (t.detach().half().requires_grad_() for t in (x, w, b))
    seen = Seen()
    with seen, running(precision, "cpu") as mode:
        with mode.forward():
            y = F.linear(x, w, b)
        y.sum().backward()
    low = torch.bfloat16 if precision == "amp-bf16" else torch.float16
    assert y.dtype == low
    assert seen.dtypes["addmm"] == ({torch.float32} if wide else {low})
    assert seen.dtypes["mm"] == ({torch.float32} if wide else {low})


def test_a_result_is_the_float32_product_rounded_once() -> None:
    x, w = (t.detach().half() for t in tensors((5, 4096), (7, 4096)))
    with RoundedProducts(torch.float16):
        got = x @ w.T
    assert torch.equal(got, (x.float() @ w.float().T).half())


def test_attention_and_convolution_are_products_too() -> None:
    q, image, kernel = (t.detach().half().requires_grad_() for t in tensors((1, 2, 5, 8), (1, 3, 8, 8), (4, 3, 4, 4)))
    seen = Seen()
    with seen, RoundedProducts(torch.float16):
        y, z = F.scaled_dot_product_attention(q, q, q), F.conv2d(image, kernel, stride=4)
        (y.sum() + z.sum()).backward()
    assert {y.dtype, z.dtype, q.grad.dtype, kernel.grad.dtype} == {torch.float16}
    assert seen.dtypes and all(kinds == {torch.float32} for kinds in seen.dtypes.values()), seen.dtypes


def test_what_overflows_when_it_is_rounded_is_infinite() -> None:
    x = torch.full((1, 4), 200.0, dtype=torch.float16)
    with RoundedProducts(torch.float16):
        assert torch.isinf(x @ x.T).all()
