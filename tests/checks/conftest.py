"""Small networks to check: healthy ones, and twins with one planted fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vitconv.checks.base.check import Check, Finding
from vitconv.checks.base.context import Context
from vitconv.checks.base.run import Outcome, run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.registry import CHECKS, load


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(*sets: str, **wanted: Any) -> Context:
    """Return a network of 4 blocks, width 48, 4x4 patches of a 16x16 image, 10 classes; `sets` win."""
    base = {"depth": "4", "dim": "48", "heads": "3", "patch": "4", "image": "16", "classes": "10", "channels": "1"}
    given = dict(text.split("=", 1) for text in sets)
    return context_of("vit_tiny", Wanted(sets=tuple(f"{k}={v}" for k, v in {**base, **given}.items()), **wanted))


def outcome(name: str, context: Context, **limits: float) -> Outcome:
    """Run one check by name."""
    check: Check = load(CHECKS, name)
    return run_one(context, check, limits)


def bad(found: Outcome) -> list[Finding]:
    """Return the findings of level warn and error."""
    return [f for f in found.findings if f.level in ("warn", "error")]


@pytest.fixture
def network() -> Callable[..., Context]:
    return small


@pytest.fixture
def check() -> Callable[..., Outcome]:
    return outcome


@pytest.fixture
def faults() -> Callable[[Outcome], list[Finding]]:
    return bad
