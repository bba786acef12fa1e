"""Manifests as networks: what detection and writing tests start from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vitconv.layout.detect import detect
from vitconv.layout.match import Match
from vitconv.layout.network import Network, decode
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all

FOLDER = Path(__file__).parents[2] / "fixtures" / "manifests"


@pytest.fixture(scope="session")
def manifest() -> Callable[[str], dict[str, tuple[int, ...]]]:
    """Return a reader of {key: shape} by manifest name."""

    def read(name: str) -> dict[str, tuple[int, ...]]:
        raw = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        return {k: tuple(shape) for k, (_, shape) in raw["tensors"].items()}

    return read


@pytest.fixture(scope="session")
def network(manifest: Callable[[str], dict[str, tuple[int, ...]]]) -> Callable[[str], tuple[Match, Network]]:
    """Return a reader of (match, network) by manifest name."""

    def read(name: str) -> tuple[Match, Network]:
        shapes = manifest(name)
        told = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")).get("axes")
        match = detect(shapes, load_all(DIALECTS, plugins=False).values(), given=told)
        return match, decode(match, dict.fromkeys(shapes, "F32"), Semantics())

    return read
