"""Small networks to initialise, and the tensors of live ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.initialise.network import Job, architecture
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.change import changed
from vitconv.inits.base.live import recognised


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def network(
    name: str = "vit_tiny", norm: str | None = None, facts: dict[str, Any] | None = None, **size: str
) -> Architecture:
    """Return an architecture by name: real widths, few blocks."""
    changes = {k: size.pop(k) for k in ("layer_scale", "sub_norm") if k in size}
    arch, _ = architecture(name, Job("timm", size={"depth": "3", **size}, facts=facts or {}))
    return changed(arch, {**({"norm": norm} if norm else {}), **changes})[0]


def live_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return {canonical name: tensor} of a live network."""
    live = recognised(module)
    return {name: live.read(name) for name in live.network.cells}


@pytest.fixture
def make() -> Callable[..., Architecture]:
    return network


@pytest.fixture
def tensors_of() -> Callable[[nn.Module], dict[str, Tensor]]:
    return live_tensors
