"""The ways in which libraries resize a position table, each by name and equal to its library's own code.

They differ: on random tables, 4x4 to 6x6, by 0.26 to 0.66 of a standard deviation. None is a default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class Rule:
    """How torch.nn.functional.interpolate is called.

    `offset` is added to the target size that gives the scale factor; 0 passes the size.
    """

    mode: str
    title: str
    antialias: bool = False
    align_corners: bool | None = False
    offset: float = 0.0


RULES: Mapping[str, Rule] = {
    "bicubic": Rule("bicubic", "transformers ViT, DeiT, DINOv2, I-JEPA, MAE: interpolate_pos_encoding"),
    "bicubic-antialias": Rule(
        "bicubic", "timm resample_abs_pos_embed; DINOv2 with registers", antialias=True, align_corners=None
    ),
    "bicubic-offset": Rule(
        "bicubic",
        "DINO and DINOv2 without registers: by scale factor (new + 0.1) / old",
        align_corners=None,
        offset=0.1,
    ),
    "bicubic-corners": Rule("bicubic", "torchvision interpolate_embeddings", align_corners=True),
    "bilinear": Rule("bilinear", "torch bilinear, without antialiasing"),
    "bilinear-antialias": Rule("bilinear", "transformers SigLIP 2", antialias=True),
    "bilinear-corners": Rule("bilinear", "big_vision and vit_jax: scipy.ndimage.zoom, order 1", align_corners=True),
    "nearest": Rule("nearest", "torch nearest", align_corners=None),
}


def resize_grid(table: Any, source: tuple[int, int], target: tuple[int, int], rule: str) -> Array:
    """Return a position table resized to another grid: [n d] to [N d], of its own float dtype.

    Args:
        table: rows of the grid, in row-major order: [n d], float32 or float64.
        source: (height, width) of the table in patches.
        target: (height, width) to resize to.
        rule: a name in RULES.

    Raises:
        Refused: torch is not installed, or the rule's scale factor does not give the target size.
    """
    import numpy as np

    torch = _torch()
    out = _resized(torch.from_numpy(np.array(table)), source, target, rule)
    array: Array = out.numpy()
    return array


def pull_back_grid(grad: Any, source: tuple[int, int], target: tuple[int, int], rule: str) -> Array:
    """Return the transpose of `resize_grid` applied to a gradient: [N d] to [n d], float64."""
    import numpy as np

    torch = _torch()
    table = torch.zeros(source[0] * source[1], grad.shape[1], dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        _resized(table, source, target, rule).backward(torch.from_numpy(np.array(grad, np.float64)))
    array: Array = table.grad.numpy()
    return array


def resize_matrix(source: tuple[int, int], target: tuple[int, int], rule: str) -> Array:
    """Return the matrix B of the resizing, B @ table = resized table: [N n], float64."""
    import numpy as np

    return resize_grid(np.eye(source[0] * source[1]), source, target, rule)


def _resized(table: Any, source: tuple[int, int], target: tuple[int, int], rule: str) -> Any:
    from torch.nn.functional import interpolate

    r = RULES[rule]
    # Channels last, as the libraries have it: torch has a kernel of its own for this layout, with other rounding.
    grid = table.reshape(1, *source, -1).permute(0, 3, 1, 2)
    if r.offset:
        scale = [(t + r.offset) / s for t, s in zip(target, source, strict=True)]
        out = interpolate(grid, scale_factor=scale, mode=r.mode, align_corners=r.align_corners)
    else:
        out = interpolate(grid, size=target, mode=r.mode, align_corners=r.align_corners, antialias=r.antialias)
    if tuple(out.shape[2:]) != target:
        raise Refused(f"{rule} gives {out.shape[2]}x{out.shape[3]}, not {target[0]}x{target[1]}; choose another rule")
    return out.permute(0, 2, 3, 1).reshape(target[0] * target[1], -1)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise Refused("resizing needs torch, whose interpolation the libraries use; install vitconv[torch]") from None
    return torch
