"""A copy of a network runs itself, also where a forward or a hook was put on the instance and holds it."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.hosts.base.copied import copied, ran_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def closed(net: Net) -> None:
    net.forward = lambda x: net.last(net.first(x))  # type: ignore[method-assign]


def wrapped(net: Net) -> None:
    inner = net.forward
    net.forward = lambda x: 2 * inner(x)  # type: ignore[method-assign]


def by_default(net: Net) -> None:
    def forward(x: Tensor, part: nn.Module = net.first, *, other: nn.Module = net.last) -> Tensor:
        return other(part(x))

    net.forward = forward  # type: ignore[method-assign]


def through_another(net: Net) -> None:
    parts = [net.first, net.last]

    def run(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    net.forward = lambda x: run(x)  # type: ignore[method-assign]


def of_itself(net: Net) -> None:
    def forward(x: Tensor, deep: int = 0) -> Tensor:
        return net.last(net.first(x)) if deep else forward(x, 1)

    net.forward = forward  # type: ignore[method-assign]


def of_weights(net: Net) -> None:
    weight = net.first.weight
    net.first.forward = lambda x: x @ weight.T  # type: ignore[method-assign]


def hooked(net: Net) -> None:
    net.last.register_forward_hook(lambda _m, _x, y: y + net.first.bias.sum())


def bound(net: Net) -> None:
    net.forward = types.MethodType(Net.forward, net)  # type: ignore[method-assign]


def partly(net: Net) -> None:
    net.forward = partial(Net.forward, net)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change", [closed, wrapped, by_default, through_another, of_itself, of_weights, hooked, bound, partly]
)
def test_a_copy_runs_its_own_parts(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    net = Net()
    change(net)
    x = torch.randn(3, 4)
    before = net(x)
    copy = copied(net).double()
    ran: list[str] = []
    with ran_of(net, ran):
        copy(x.double()).sum().backward()
    assert ran == []
    assert copy.first.weight.grad is not None and net.first.weight.grad is None
    with torch.no_grad():
        for p in copy.parameters():
            p.zero_()
    assert not copy(x.double()).any()
    assert torch.equal(net(x), before), "what was copied stays as it was"


def test_functions_that_hold_nothing_of_the_network_stay() -> None:
    net, factor = Net(), [2.0]
    net.first.forward = lambda x: factor[0] * x  # type: ignore[method-assign]
    assert copied(net).first.forward is net.first.forward


def test_parts_of_the_first_that_run_are_named() -> None:
    net = Net()
    inner = net.forward
    net.__class__ = type("Net", (Net,), {"forward": lambda self, x: inner(x)})
    copy, ran = copied(net), list[str]()
    with ran_of(net, ran):
        copy(torch.randn(3, 4))
    assert ran == ["first", "last"]
