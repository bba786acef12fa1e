"""The images that a network of the user's own takes."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from torch import nn

from vitconv.hosts.base.host import Spec

USUAL = (224, 224)


def image_shape(module: nn.Module, spec: Spec) -> tuple[int, int, int]:
    """Return (channels, height, width) of images to run, sizes in pixels.

    The channels are those of the first convolution. The size is that of the facts, else what a module of the network
    says of itself (`img_size` or `image_size`), else what the position table has rows for, else 224.
    """
    conv = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    height, width = spec.facts.image_size or next(_stated(module), None) or _by_positions(module, conv) or USUAL
    return (3 if conv is None else conv.in_channels, height, width)


def _stated(module: nn.Module) -> Iterator[tuple[int, int]]:
    for m in module.modules():
        for name in ("img_size", "image_size"):
            size = getattr(m, name, None)
            pair = (size, size) if isinstance(size, int) else size
            if isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(s) is int and s > 0 for s in pair):
                yield (pair[0], pair[1])


def _by_positions(module: nn.Module, conv: nn.Conv2d | None) -> tuple[int, int] | None:
    """Return the square image whose patches, with a class token or without, a table [1 t d] has the rows for."""
    if conv is None or conv.kernel_size != conv.stride or isinstance(conv.padding, str) or any(conv.padding):
        return None
    for name, x in module.named_parameters():
        if "pos" in name and x.ndim == 3 and x.shape[0] == 1 and x.shape[2] == conv.out_channels:
            side = next((s for t in (x.shape[1], x.shape[1] - 1) if (s := isqrt(t)) > 0 and s * s == t), None)
            if side is not None:
                return (side * conv.stride[0], side * conv.stride[1])
    return None
