"""Clean networks of libraries to spoil, made once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vitconv.bench import detection
from vitconv.bench.detection import Bench, mutations
from vitconv.bench.mutate import Mutation


@pytest.fixture(scope="session")
def bench_of() -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in made:
            pytest.importorskip("timm")
            made[name] = detection.bench_of(name, "like")
        return made[name]

    return get


@pytest.fixture(scope="session")
def mutation() -> Callable[[str], Mutation]:
    # Of one name, the one for timm's plain ViT.
    table = {m.name: m for m in reversed(mutations())}
    return lambda name: table[name]
