"""The second report's overflow: focused linear attention under emulated autocast, found and named to the operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.checks.base.halves import run_out
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.target import Wanted, context_of
from vitconv.kernels.focused.module import FocusedLinearAttention, Form


class Trunk(nn.Module):
    """One focused linear attention of width 64 in a window of 28x28, as stage 1 of the Swin form has it, and a head."""

    def __init__(self, variant: str, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attn = FocusedLinearAttention(64, 28, 2, form=Form(variant, 3))
        self.head = nn.Linear(64, 10)
        with torch.no_grad():
            self.attn.qkv.weight.mul_(size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attn(tokens).mean(1))


def checked(variant: str, size: float, check: Any) -> Any:
    images = torch.randn(1, 784, 64, generator=torch.Generator().manual_seed(1))
    context = context_of(Trunk(variant, size), Wanted(plan=Plan(batch=1)), images=images)
    return check("fp16-headroom", context), context


def test_the_denominator_of_the_original_is_named(check: Any) -> None:
    found, _ = checked("original", 8.0, check)
    forward = found.findings[0]
    assert forward.level == "error"
    assert forward.figures["module"] == "attn"
    assert "k.sum" in forward.figures["line"], forward.text
    assert "variants.py" in forward.figures["line"]


@pytest.mark.parametrize(("variant", "size"), [("original", 0.5), ("autocast-off", 8.0), ("upstream-fix", 8.0)])
def test_healthy_twins_are_let_through(variant: str, size: float, check: Any) -> None:
    found, _ = checked(variant, size, check)
    assert found.findings[0].level == "ok", found.findings[0].text


def test_an_overflow_in_float32_is_not_blamed_on_half_precision(check: Any, network: Any) -> None:
    context = network()
    with torch.no_grad():
        next(iter(context.network.module.parameters())).fill_(1e38)
    assert "float" in str(run_out(context.halves.forward)) or check("signals", context).level == "error"
    assert check("signals", context).level == "error"
