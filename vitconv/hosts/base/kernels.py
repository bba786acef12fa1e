"""What computes the kernels of a live network: `kernels=triton|torch|compile`, the same for every host.

torch:    plain PyTorch, also for focused linear attention.
triton:   our Triton LayerNorm in place of every LayerNorm, and our Triton focused linear attention, wherever a call
          supports them; where a call does not (float64, say) the plain reference gives the same numbers.
compile:  every block compiled by torch.compile.

The network's parameters stay its own. What was chosen, and why, stands in the notes of what is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.kernels.dispatch import Request, choose

KERNELS = ("auto", "torch", "triton", "compile")


def check_kernels(options: Mapping[str, Any]) -> str:
    """Return what was asked for, "auto" when nothing was.

    Raises:
        UsageError: it is none of the known.
        Refused: Triton was asked for and cannot run here; every obstacle is told.
    """
    asked = str(options.get("kernels", "auto"))
    if asked not in KERNELS:
        raise UsageError(f"kernels={asked}: expected one of {', '.join(KERNELS)}")
    if asked == "triton":
        choose(Request("layer norm and of focused attention", _device(), (torch.float32,)), "triton")
    return asked


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def put_kernels(module: nn.Module, places: Mapping[str, nn.Module], asked: str) -> tuple[str, ...]:
    """Make a live network compute by what was asked for, and return what was done, in words.

    Done again on a copy of the network it acts on the copy: nothing of the first one is held.
    """
    if asked == "auto":
        return ()
    forms = [m for m in module.modules() if dataclasses.is_dataclass(getattr(m, "form", None))]
    for m in forms:
        m.form = dataclasses.replace(m.form, backend="prefer" if asked == "triton" else "torch")  # type: ignore[type-var]
    if asked == "torch":
        return (f"kernels: plain PyTorch; {len(forms)} focused attentions by their reference",)
    if asked == "compile":
        blocks = list(places.values())
        for block in blocks:
            block.compile(dynamic=False)
        return (f"kernels: {len(blocks)} blocks compiled by torch.compile; focused attention by its reference",)
    norms = [m for m in module.modules() if _is_layer_norm(m)]
    for m in norms:
        _take_over(m)
    why = choose(Request("layer norm", _device(), (torch.float32,)), "prefer")
    return (f"kernels: {len(norms)} LayerNorms and {len(forms)} focused attentions; {why}",)


def _is_layer_norm(m: nn.Module) -> bool:
    if isinstance(m, nn.LayerNorm):
        return len(m.normalized_shape) == 1
    return type(m).__name__ == "FusedLayerNorm" or (
        type(m).__name__ == "Norm" and getattr(m, "kind", "") == "layernorm"
    )


def _take_over(m: Any) -> None:
    from vitconv.kernels.layer_norm.module import layer_norm

    fused = type(m).__name__ == "FusedLayerNorm"

    def forward(x: Tensor) -> Tensor:
        eps = m.epsilon if fused else m.eps
        if fused and x.dtype == torch.float16:
            eps = max(eps, m.half_floor)
        # torch's LayerNorm gives float32 under autocast, xformers' the dtype of its input.
        wide = not fused and torch.is_autocast_enabled(x.device.type)
        out = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype
        return layer_norm(x, m.weight, m.bias, eps, out_dtype=out, backend="prefer")

    m.forward = forward
