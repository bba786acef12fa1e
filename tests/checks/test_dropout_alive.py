"""dropout-alive: rates that are too high, and what acts although chance, a head of 0 or a gate of 0 hides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.checks.base.recipe import read_recipe
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.registry import CHECKS, load

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class DropPath(nn.Module):
    """Stochastic depth by example; `dead` lets everything through, `always` acts in evaluation too."""

    def __init__(self, rate: float, dead: bool = False, always: bool = False) -> None:
        super().__init__()
        self.drop_prob, self.dead, self.always = rate, dead, always

    def forward(self, x: Tensor) -> Tensor:
        if self.dead or not (self.training or self.always):
            return x
        keep = 1.0 - self.drop_prob
        mask = torch.rand(len(x), *[1] * (x.dim() - 1)) < keep
        return x * mask / keep if keep else x * 0.0


class Branches(nn.Module):
    """Two branches, each behind a drop-path, times a gate; then a dropout and a head."""

    def __init__(self, path: float, element: float = 0.0, gate: float = 1.0, head: float = 1.0, **more: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.paths = nn.ModuleList(DropPath(path, **more) for _ in range(2))
        self.drop, self.head, self.gate, self.scale = nn.Dropout(element), nn.Linear(8, 10), gate, head
        for p in self.parameters():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(p.numel()))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).mean(-1)
        for layer, path in zip(self.layers, self.paths, strict=True):
            x = x + path(layer(x) * self.gate)
        return self.head(self.drop(x)) * self.scale


@pytest.mark.parametrize(
    ("rates", "levels"),
    [
        ({"path": 0.6}, ["ok"]),
        ({"path": 0.61}, ["warn", "ok"]),
        ({"path": 0.9}, ["warn", "ok"]),
        ({"path": 1.0}, ["error", "ok"]),
        ({"path": 0.1, "element": 0.5}, ["ok"]),
        ({"path": 0.1, "element": 0.8}, ["warn", "ok"]),
        ({"path": 0.9, "element": 0.8}, ["warn", "warn", "ok"]),
    ],
    ids=lambda x: " ".join(f"{k}-{v}" for k, v in x.items()) if isinstance(x, dict) else "",
)
def test_rates_that_are_too_high(rates: dict[str, float], levels: list[str], check: Any) -> None:
    found = check("dropout-alive", context_of(Branches(**rates), images=IMAGES))
    assert [f.level for f in found.findings] == levels
    if levels[0] != "ok":
        assert found.findings[0].figures["rate"] == max(rates.values() if "element" in rates else [rates["path"]])


@pytest.mark.parametrize(
    ("network", "level"),
    [
        # Two passes of one image are the same 96 times in 100, by chance.
        ({"path": 0.005}, "ok"),
        ({"path": 0.005, "dead": True}, "error"),
        ({"path": 0.3, "head": 0.0}, "ok"),
        ({"path": 0.3, "head": 0.0, "dead": True}, "error"),
        ({"path": 0.3, "gate": 0.0}, "info"),
        ({"path": 0.3, "always": True}, "error"),
    ],
    ids=["rare", "rare dead", "head of 0", "head of 0 dead", "gate of 0", "in evaluation"],
)
def test_what_acts_is_told_from_what_does_not(network: dict[str, Any], level: str, check: Any) -> None:
    context = context_of(Branches(**network), images=IMAGES)
    found = check("dropout-alive", context)
    assert found.level == level, found.findings
    module: Any = context.network.module
    assert [p.drop_prob for p in module.paths] == [network["path"]] * 2
    assert not module.training


@pytest.mark.parametrize(
    ("rate", "limit", "level"), [(0.9, None, "warn"), (0.2, None, "ok"), (0.9, 0.95, "ok"), (0.2, 0.1, "warn")]
)
def test_a_recipe_says_the_rate_and_the_limit(tmp_path: Path, rate: float, limit: float | None, level: str) -> None:
    path = tmp_path / "recipe.yaml"
    text = f"timm: {{model_name: vit_tiny_patch16_224, depth: 2, img_size: 32, drop_path_rate: {rate}}}\n"
    path.write_text(text + ("" if limit is None else f"thresholds: {{dropout-alive: {{path: {limit}}}}}\n"))
    recipe = read_recipe(path, Wanted())
    found = run_one(recipe.context(), load(CHECKS, "dropout-alive"), recipe.thresholds.get("dropout-alive"))
    assert found.level == level
