"""Random operators are named where they draw, and only there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitconv.parity.nondeterminism import watching


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Training(nn.Module):
    def __init__(self, train: bool) -> None:
        super().__init__()
        self.train_ = train

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, 0.1, self.train_)[0]


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        pytest.param([Fused()], {}, id="fused attention without dropout"),
        pytest.param([Dropped()], {"0": "bernoulli_"}, id="fused attention with dropout"),
        pytest.param([Fused(), Noisy()], {"1": "randn_like"}, id="noise behind fused attention"),
        pytest.param([Training(False)], {}, id="dropout in eval"),
        pytest.param([Training(True)], {"0": "native_dropout"}, id="dropout in training"),
    ],
)
def test_what_draws_random_numbers_is_named(modules: list[nn.Module], named: dict[str, str]) -> None:
    net: Any = SimpleNamespace(module=nn.Sequential(*modules))
    found: dict[str, str] = {}
    with torch.no_grad(), watching(net, found):
        net.module(torch.randn(2, 4, 8, 8))
    assert found == named
