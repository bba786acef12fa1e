"""Draw the tensors of a network: one seed per tensor name, so that no tensor shifts the draws of another."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor

from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.distribution import Distribution
from vitconv.inits.base.scheme import Scheme


def draw(arch: Architecture, scheme: Scheme, seed: int = 0) -> dict[str, Tensor]:
    """Return {canonical name: tensor}, float32, of every tensor of the network.

    The draws depend on the seed, the canonical names, the shapes and the scheme, and on nothing else: not on the
    layout the tensors go to, nor on torch's global generator.

    Raises:
        Refused: the scheme does not go with the network; see `Scheme.check`.
    """
    scheme.check(arch)
    return drawn(scheme.declared(arch), arch.shapes, seed)


def drawn(declared: Mapping[str, Distribution], shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Return {canonical name: tensor}, float32, of these distributions."""
    return {name: sample(declared[name], tuple(shape), seed_of(seed, name)) for name, shape in shapes.items()}


def seed_of(seed: int, name: str) -> int:
    """Return the seed of one tensor, from that of the network and the canonical name."""
    return int.from_bytes(blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little") >> 1


def sample(distribution: Distribution, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return one draw of this shape, float32.

    A cut normal is drawn again where it falls outside. The usual way, erfinv of a uniform, gives exact end points in
    half precision, and with the end points rounded also in single: timm's -2.0 at std .02.
    """
    generator = torch.Generator().manual_seed(seed)
    d = distribution
    if d.family == "constant":
        return torch.full(shape, d.centre)
    if d.table is not None:
        return d.table.values().reshape(shape)
    out = torch.empty(shape)
    if d.family == "uniform":
        return out.uniform_(d.low, d.high, generator=generator)
    out.normal_(d.centre, d.sigma, generator=generator)
    if d.family == "truncated":
        _redraw(out, d, generator)
    return out


def _redraw(out: Tensor, d: Distribution, generator: torch.Generator) -> None:
    flat = out.view(-1)
    outside = ((flat < d.low) | (flat > d.high)).nonzero().view(-1)
    while outside.numel():
        again = torch.empty(outside.numel()).normal_(d.centre, d.sigma, generator=generator)
        flat[outside] = again
        outside = outside[(again < d.low) | (again > d.high)]
