"""Weights and images that leave nothing hidden.

At default initialisation biases are zero, attention is nearly uniform and gains are one, so that a dropped bias,
swapped queries and keys or a missing gain change nothing or little; on grey images swapped colours change nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitconv.hosts.base.host import Inputs
from vitconv.layout.canonical import role_of

# Attention logits have a standard deviation of this: queries and keys each have its square root.
LOGITS = 2.0
LOW_VARIANCE, LARGE = 0.01, 20.0
# Trained ViTs have a few channels whose activations are many times those of the others (Sun et al., Massive
# activations in large language models, 2024, section 5). Here the first block's MLP puts them into the stream, as large
# as leaves it, spread over the width, a variance of `MASSIVE` more: two channels of +-17 at a width of 384.
MASSIVE = 1.5
_MASSIVE_FROM = "blocks.0.mlp.down.bias"


def probe_weights(
    shapes: Mapping[str, tuple[int, ...]], seed: int, ties: Iterable[tuple[str, ...]] = ()
) -> dict[str, Tensor]:
    """Return canonical weights with the statistics of trained ones, every tensor random and of the order of one.

    Args:
        shapes: {canonical name: shape}.
        seed: each tensor depends on the seed and its own name only.
        ties: groups of names that must be equal.

    Returns:
        {canonical name: [shape], float64}, exact in float32.
    """
    out = {name: _draw(name, shape, seed).float().double() for name, shape in shapes.items()}
    for first, *rest in ties:
        out |= {name: out[first].clone() for name in rest if name in out and first in out}
    return out


def _draw(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF))
    x = torch.randn(shape, generator=generator, dtype=torch.float32).double()
    role = role_of(name)
    if role == "norm.weight":
        # The gain of a query or key norm is the deviation of the queries or keys.
        return (math.sqrt(LOGITS) if "_norm" in name and ".attn." in name else 1.0) * (1 + 0.3 * x)
    if role in ("norm.bias", "layer_scale") or role.endswith(".bias"):
        if role == "layer_scale":
            return 0.6 + 0.3 * x
        return _massive(0.3 * x) if name == _MASSIVE_FROM else 0.3 * x
    if role in ("token", "position"):
        return 0.7 * x
    gain = {"attn.q.weight": math.sqrt(LOGITS), "attn.k.weight": math.sqrt(LOGITS), "mlp.up.weight": 1.2}.get(role, 1.0)
    return gain * x / math.sqrt(math.prod(shape[1:]))


def _massive(bias: Tensor) -> Tensor:
    width = len(bias)
    size = math.sqrt(MASSIVE * width / 2)
    bias[width // 5] += size
    bias[width // 2] -= size
    return bias


# Images of another size than the networks were made for; there are none where a network takes only its own.
RESIZED = "resized"
IMAGES = ("coloured", "single", "low-variance", "large", RESIZED)


def probe_images(inputs: Inputs, seed: int) -> dict[str, Tensor]:
    """Return {name: images}: coloured and unlike their mirror image, one alone, of low variance, and large.

    Values are exact in bfloat16 and float16, so every precision sees the same input: [b c height width] or [b t d],
    float64.
    """
    base = _pictures(inputs, 4, seed)
    return {
        "coloured": _exact(base[:2]),
        "single": _exact(base[:1]),
        "low-variance": _exact(0.5 + LOW_VARIANCE * base[2:3]),
        "large": _exact(LARGE * base[3:4]),
    }


def resized_image(inputs: Inputs, patch: tuple[int, int], seed: int) -> Tensor:
    """Return one image two patches higher and one wider than the networks' own: [1 c height width], float64."""
    channels, height, width = inputs.shape
    larger = Inputs(inputs.kind, (channels, height + 2 * patch[0], width + patch[1]))
    return _exact(_pictures(larger, 1, seed))


def _pictures(inputs: Inputs, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 104729)
    shape = (count, *inputs.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if inputs.kind != "images":
        return noise
    _, _, height, width = shape
    y = torch.linspace(0, 1, height, dtype=torch.float64)[:, None]
    x = torch.linspace(0, 1, width, dtype=torch.float64)[None, :]
    waves = torch.rand((count, inputs.shape[0], 4, 1, 1), generator=generator, dtype=torch.float64)
    # A plane wave of its own direction, length and phase in every channel of every picture.
    fx, fy, phase, level = waves.unbind(2)
    picture = torch.sin(2 * math.pi * ((0.5 + 2 * fx) * x + (0.5 + 3 * fy) * y + phase)) + 2 * level - 1
    return picture + 0.3 * noise


def _exact(x: Tensor) -> Tensor:
    # Both 8 and 11 bits of mantissa hold it, and it is far from float16's smallest numbers.
    return x.bfloat16().double()
