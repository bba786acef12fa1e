"""Networks with random weights, held in memory, and their values after edits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.layout.arith import from_float
from vitconv.layout.canonical import slot, template_of
from vitconv.layout.edits import apply_all
from vitconv.layout.edits.compute import pull_back, value
from vitconv.layout.network import Cell, Network
from vitconv.layout.recipe import dense_view
from vitconv.layout.semantics import Semantics
from vitconv.vit.config import ViTConfig
from vitconv.vit.model import ViT

SIZES = {"d": 6, "a": 6, "m": 10, "c": 3, "p": 4, "q": 4, "n": 16, "r": 4, "o": 5, "e": 3, "d2": 6}

PLAIN = ("embed.cls", "embed.pos_cls", "embed.pos", "embed.patch", "norm", "head")
BLOCK = ("norm1", "attn.q", "attn.k", "attn.v", "attn.out", "norm2", "mlp.up", "mlp.down")


@dataclass(frozen=True)
class Held:
    """A network and the bytes of its stored tensors."""

    network: Network
    data: Mapping[str, bytes]

    def read(self, cell: Cell) -> bytes:
        return self.data[cell.view.tensor]

    def edited(self, *asked: str) -> Held:
        return Held(apply_all(self.network, asked), self.data)

    def told(self, **facts: Any) -> Held:
        return Held(dataclasses.replace(self.network, facts=self.network.facts.replaced(facts)), self.data)

    def __getitem__(self, name: str) -> np.ndarray:
        return value(self.network, self.network.cells[name], self.read)

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {n: self[n] for n in self.network.cells}

    @property
    def last(self) -> str:
        return self.network.log[-1].what

    def pull_back(self, grads: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return pull_back(self.network, grads, self.read)


def _held(
    arrays: Mapping[str, Any],
    dtype: str = "F32",
    facts: Semantics | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Held:
    cells, data, sizes = {}, {}, {}
    for name, array in arrays.items():
        array = np.asarray(array)
        kind = (dtypes or {}).get(name, dtype)
        data[f"file.{name}"] = bytes(from_float(array, kind))
        cells[name] = Cell(name, array.shape, kind, dense_view(f"file.{name}", array.shape))
        sizes |= dict(zip(slot(template_of(name)).axes, array.shape, strict=True))
    depth = 1 + max((int(n.split(".")[1]) for n in arrays if n.startswith("blocks.")), default=-1)
    return Held(Network(cells, {}, sizes, depth, facts or Semantics()), data)


@pytest.fixture
def held() -> Callable[..., Held]:
    """Build a network from {canonical name: array}."""
    return _held


def _random(
    parts: Sequence[str] = PLAIN,
    block: Sequence[str] = BLOCK,
    depth: int = 2,
    dtype: str = "F32",
    facts: Semantics | None = None,
    seed: int = 0,
    **sizes: int,
) -> Held:
    from vitconv.layout.canonical import SCHEMA

    rng = np.random.default_rng(seed)
    known = {**SIZES, **sizes}
    arrays = {}
    for part in (*parts, *(f"blocks.{i}.{b}" for i in range(depth) for b in block)):
        template = template_of(part)
        for name in (template, f"{template}.weight", f"{template}.bias"):
            if name in SCHEMA:
                shape = tuple(known[x] for x in SCHEMA[name].axes)
                arrays[part + name.removeprefix(template)] = rng.normal(0, 1, shape)
    return _held(arrays, dtype, facts)


@pytest.fixture
def random_network() -> Callable[..., Held]:
    """Build a network of named parts (weight and bias where both exist) with N(0, 1) values."""
    return _random


FACTS = Semantics(
    heads=2,
    norm_placement="pre",
    norm_kind="layernorm",
    norm_eps=1e-2,
    final_norm_eps=1e-3,
    activation="gelu",
    attention="softmax",
    kv_normalised=True,
    pooling="token",
    grid=(2, 3),
)


@dataclass(frozen=True)
class Model:
    """The reference ViT in float64, and the same weights as a network of F64 cells."""

    config: ViTConfig
    vit: ViT
    held: Held

    def function(self, held: Held, **changes: Any) -> ViT:
        """Return the reference ViT with the edited weights and facts."""
        vit = ViT(dataclasses.replace(self.config, facts=held.network.facts, **changes)).double()
        state = {n: torch.from_numpy(np.array(v)) for n, v in held.values.items()}
        vit.load_state_dict(state, strict=True)
        return vit


@pytest.fixture
def model() -> Callable[..., Model]:
    """Build a reference ViT with random O(1) weights in float64."""

    def build(facts: Mapping[str, Any] | None = None, **config: Any) -> Model:
        made = ViTConfig(
            width=8,
            depth=2,
            attention_width=8,
            mlp_width=12,
            patch=(4, 4),
            channels=3,
            positions=6,
            facts=FACTS.replaced(facts or {}),
            classes=5,
            **config,
        )
        vit = ViT(made).double()
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in vit.parameters():
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
        arrays = {n: p.detach().numpy() for n, p in vit.named_parameters()}
        return Model(made, vit, _held(arrays, "F64", made.facts))

    return build


def _dot(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    return sum(float(np.sum(a[n].astype(np.float64) * b[n])) for n in b)


@pytest.fixture
def dot() -> Callable[..., float]:
    """Return the inner product over the names of the second."""
    return _dot
