"""Tiny networks trained for a few steps, with the optimizers that trainers make."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conversion_kit import timm_vit
from torch import nn

from vitconv.cli.main import run

FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "grid=4x4", "pooling=token")
SETS = [word for fact in (*FACTS, "mean=0.5", "std=0.5") for word in ("--set", fact)]


def call(*words: object) -> int:
    return run(["convert", *map(str, words)])


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)


def named(module: nn.Module) -> torch.optim.Optimizer:
    """With names, and in an order of its own."""
    return torch.optim.AdamW(list(module.named_parameters())[::-1], lr=1e-2, amsgrad=True)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)


def timm_groups(module: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(module, "adamw", lr=1e-2, weight_decay=0.05)


def timm_layers(module: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(module, "adamw", lr=1e-2, weight_decay=0.05, layer_decay=0.7)


def decay_first(module: nn.Module) -> torch.optim.Optimizer:
    """As transformers' Trainer and DINO sort them: tokens decay, biases and norms come second."""
    ps = list(module.parameters())
    groups = [{"params": [p for p in ps if p.ndim > 1]}, {"params": [p for p in ps if p.ndim <= 1], "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)


def head_only(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.head.parameters(), lr=1e-2)


def without_positions(module: nn.Module) -> torch.optim.Optimizer:
    """As MAE, whose sincos table is no trained parameter."""
    return torch.optim.AdamW([p for n, p in module.named_parameters() if n != "pos_embed"], lr=1e-2)


def data(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    gen = torch.Generator().manual_seed(5)
    return [
        (torch.randn(4, 3, 16, 16, generator=gen, dtype=torch.float64), torch.randint(0, 5, (4,), generator=gen))
        for _ in range(count)
    ]


def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> list[float]:
    module.train()
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        out = module(x)
        loss = nn.functional.cross_entropy(getattr(out, "logits", out), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Run:
    """A tiny network trained for three steps, its checkpoint, and the losses of the next three."""

    def __init__(self, folder: Path, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        self.module = timm_vit().double()
        self.optimizer = make(self.module)
        train(self.module, self.optimizer, data(3))
        self.path = folder / "train.pth"
        contents = {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 1}
        torch.save(contents, self.path)
        module = copy.deepcopy(self.module)
        optimizer = make(module)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        self.losses = train(module, optimizer, data(6)[3:])


def lightning(held: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a training checkpoint as Lightning lays them out."""
    state = {f"model.{k}": v for k, v in held["model"].items()}
    more = {"epoch": 1, "global_step": 3, "pytorch-lightning_version": "2.5", "callbacks": {}, "loops": {}}
    return {**more, "state_dict": state, "optimizer_states": [held["optimizer"]], "lr_schedulers": []}
