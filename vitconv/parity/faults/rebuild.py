"""Build the reference ViT with faults, in float64, and run all of it or the stretch between two taps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.hosts.base.tap import Tap, recording
from vitconv.parity.faults.fault import AnyConfig, Knobs
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.faults.flat_network import FlatStages
from vitconv.vit.model import ViT


@dataclass(frozen=True)
class Seen:
    """What one run left: as `vitconv.parity.trace.Trace`, of which this is the part that a search compares."""

    taps: Mapping[str, Tensor]
    output: Tensor
    tap_grads: Mapping[str, Tensor] = field(default_factory=dict)
    grads: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Rebuilt:
    """The reference ViT with the changes of `knobs`.

    Attributes:
        knobs: what is changed.
        weights: canonical weights, float64.
        stored: gradients are taken at the weights after the changes, as a network has them whose file was changed; or
            at those before, as a network has them whose code is wrong.
        backward: keep what gradients need.
        dtype: what is computed in.
        blocks: the only blocks that will run, or None for all; others are not made.
        templates: networks of configurations met before, which are copied: making one anew costs more than running it.
    """

    knobs: Knobs
    weights: Mapping[str, Tensor]
    stored: bool = False
    backward: bool = True
    templates: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given = dict(self.weights)
        if self.backward or self.dtype != torch.float64:
            given = {n: w.detach().to(self.dtype).requires_grad_(self.backward) for n, w in given.items()}
        used = given
        with torch.set_grad_enabled(self.backward and not self.stored):
            for change in self.knobs.weights:
                used = change(used)
        if self.stored:
            used = {n: w.detach().requires_grad_(self.backward) for n, w in used.items()}
        self.leaves = used if self.stored else given
        config = self.knobs.config
        known = repr(config)
        if known not in self.templates:
            with torch.device("meta"):
                self.templates[known] = _network(config).eval()
        # Only tensors are put in: a change may take a parameter's place by any expression of the given weights.
        self.model = _filled(self.templates[known], used, "", self.blocks)
        for alter in self.knobs.model:
            alter(self.model)
        self.taps = _taps(self.model)

    def run(self, images: Tensor, cotangent: Tensor | None = None) -> Seen:
        """Run on images; with a cotangent (of the output, any float) backward too."""
        backward = cotangent is not None and self.backward
        x = images.detach().to(self.dtype, copy=True).requires_grad_(backward)
        with torch.set_grad_enabled(backward), recording(self.taps, gradients=backward) as seen:
            y = x
            for change in self.knobs.images:
                y = change(y)
            output = self.model(y)
        grads: dict[str, Tensor] = {}
        # An output of another shape is another function, whatever its gradients.
        if backward and cotangent is not None and cotangent.shape == output.shape:
            for leaf in self.leaves.values():
                leaf.grad = None
            # What changed the weights is part of the graph, and is gone through once for every input.
            output.backward(cotangent.to(output), retain_graph=True)
            grads = {n: torch.zeros_like(w) if w.grad is None else w.grad for n, w in self.leaves.items()}
            grads["input"] = torch.zeros_like(x) if x.grad is None else x.grad
        values = {n: v.detach() for n, v in seen.values().items()}
        return Seen(values, output.detach(), {n: g.detach() for n, g in seen.gradients().items()}, grads)

    def stretch(
        self, start: str | None, value: Tensor, stop: str, grad: Tensor | None = None, images: Tensor | None = None
    ) -> Seen:
        """Run from the tap `start`, whose value is given, to the tap `stop` (None: from the images).

        `start` is embed or a block, `stop` any tap behind it. With `grad`, the gradient at `stop`, which must then be
        one through which all passes, backward too: gradients are those of the weights on the way, and of `start`.
        `images`, unless they are the value, tell blocks with rotary or relative positions the size of the grid.
        """
        backward = grad is not None and self.backward
        x = given = value.detach().to(self.dtype).requires_grad_(backward)
        with torch.set_grad_enabled(backward), recording(self.taps, gradients=False) as seen:
            if start is None:
                for change in self.knobs.images:
                    x = change(x)
                x = self.model.embed(x)
            first = 0 if start in (None, "embed") else int(str(start).split(".")[1]) + 1
            end = stop.split(".")
            last = -1 if stop == "embed" else int(end[1]) if end[0] == "blocks" else self.knobs.config.depth - 1
            like = value if images is None else images
            step = _stepping(self.model, like, x)
            for i in range(first, last + 1):
                x = step(self.model.blocks[i], x)
            if stop in ("norm", "pool", "head"):
                x = self.model.normed(x)
                if stop != "norm":
                    x = self.model.pool(x)
                if stop == "head" and self.model.head is not None:
                    x = self.model.head(x)
        grads: dict[str, Tensor] = {}
        if backward and x.requires_grad and grad is not None and grad.shape == x.shape:
            for leaf in self.leaves.values():
                leaf.grad = None
            x.backward(grad.to(x), retain_graph=True)
            grads = {n: w.grad for n, w in self.leaves.items() if w.grad is not None}
            grads["start"] = torch.zeros_like(given) if given.grad is None else given.grad
        values = {n: v.detach() for n, v in seen.values().items()}
        return Seen({**values, stop: values.get(stop, x.detach())}, x.detach(), {}, grads)


def _stepping(model: Any, images: Tensor, x: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return what maps a block and the stream before it to the stream behind it; blocks may get positions too."""
    if not isinstance(model, ViT) or model.config.facts.position not in ("rope", "relative"):
        return lambda block, stream: block(stream)  # type: ignore[no-any-return]
    high, wide = model.config.patch
    grid = images.shape[2] // high, images.shape[3] // wide
    turn = None if model.rope is None else model.rope(grid, x)
    return lambda block, stream: model.step(block, stream, grid, turn)


def _network(config: AnyConfig) -> nn.Module:
    return FlatStages(config) if isinstance(config, FlatConfig) else ViT(config)


def _taps(model: Any) -> dict[str, Tap]:
    """Return the canonical taps of those parts that are there, in running order."""
    found: dict[str, nn.Module | None] = {"embed": model.embed}
    for i, block in enumerate(model.blocks):
        if block is not None:
            found |= {f"blocks.{i}.attn": block.attn, f"blocks.{i}.mlp": block.mlp, f"blocks.{i}": block}
    found |= {"norm": model.norm, "pool": model.pool, "head": model.head}
    return {name: Tap(module, "output") for name, module in found.items() if module is not None}


def _filled(module: Any, weights: Mapping[str, Tensor], prefix: str, blocks: tuple[int, ...] | None) -> Any:
    """Copy a tree of modules, with tensors for its parameters and no hooks; what else they hold is shared."""
    old = module.__dict__
    new = object.__new__(type(module))
    fresh = {k: v.copy() for k, v in old.items() if k.startswith(("_forward", "_buffers"))}
    lacking = {k: None for k, v in old["_parameters"].items() if v is None}
    given = {k: weights[prefix + k] for k, v in old["_parameters"].items() if v is not None}
    left_out = prefix == "blocks." and blocks is not None
    children = {
        k: None
        if m is None or (left_out and int(k) not in (blocks or ()))
        else _filled(m, weights, f"{prefix}{k}.", blocks)
        for k, m in old["_modules"].items()
    }
    new.__dict__ = {**old, **fresh, "_parameters": lacking, "_modules": children, **given}
    return new
