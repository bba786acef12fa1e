"""A side of the comparison: a network, the canonical weights it is to have, and what it will really compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitconv.hosts.base.copied import copied
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import Bridge, state_of
from vitconv.parity.edits import Edited
from vitconv.parity.weights import Weights


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        label: "A" or "B".
        spec: what was asked for, such as `timm:vit_small_patch16_224` or a path.
        built: the network as its host made it, in eval mode. Its own weights are of no account; see `weights`.
        host, ask: who made it, and out of what, so that it can be made and described again.
        bridge: its tensors as canonical ones.
        weights: the canonical weights it is to have, as stored, or None when neither side has any.
        origin: where these come from, in words; "" without weights.
        own: whether they are this side's own, not carried over from the other.
        facts: what it will compute, read off the live network; where that is silent, what its file says.
        edits: edits between the other side's canonical tensors and this side's, or None.
        notes: what the user should know.
    """

    label: str
    spec: str
    built: Built
    host: Host
    ask: Spec
    bridge: Bridge
    weights: Mapping[str, Tensor] | None
    origin: str
    own: bool
    facts: Semantics
    edits: Edited | None = None
    remade: bool = True
    notes: tuple[str, ...] = ()
    source: Weights | None = field(default=None, repr=False)

    @property
    def dialect(self) -> str:
        """The dialect of the network's state dict."""
        return self.bridge.match.dialect.name

    @property
    def dialect_family(self) -> str:
        """The family of that dialect."""
        return self.bridge.match.dialect.family

    @property
    def choices(self) -> Mapping[str, str]:
        """The options of the dialect that the state dict takes."""
        return self.bridge.match.variant.names

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{canonical name: shape} of every tensor of the network."""
        return self.bridge.shapes


def module_of(
    side: Side,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    weights: Mapping[str, Tensor] | None = None,
    remake: bool = False,
) -> Built:
    """Return a fresh network of this side with canonical weights loaded strictly, in eval mode.

    Args:
        side: the side.
        dtype: of all floating-point parameters and buffers.
        device: where it is to be.
        weights: canonical weights of this side; its own unless given.
        remake: have the host make it anew, in place of copying the one there is; not possible for a live network
            that was handed over.

    Raises:
        Refused: the weights do not fit.
    """
    chosen = side.weights if weights is None else weights
    module = side.host.make(side.ask) if remake and side.remade else copied(side.built.module)
    module = module.to(device=device, dtype=dtype).eval()
    if chosen is not None:
        side.bridge.write(chosen, state_of(module))
    for parameter in module.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    return side.host.describe(module, side.ask)


def canonical_grads(side: Side, named: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return gradients by canonical name in the terms both sides share, from {key: parameter with its gradient}.

    Gradients travel by the rule of the weights, which is a permutation. Where an edit lies between the sides they are
    pulled back through it at the `weights` before the edit (vector-Jacobian product); without an edit these are not
    used.
    """
    grads = side.bridge.gradients(named)
    return grads if side.edits is None else side.edits.gradients(weights, grads)


def with_weights(side: Side, source: Weights, tensors: Mapping[str, Tensor], *, own: bool) -> Side:
    """Return a copy of the side that has these canonical weights."""
    side.bridge.check(tensors)
    facts = side.built.facts.filled(source.facts) if own else side.facts
    return dataclasses.replace(side, weights=tensors, origin=source.origin, own=own, facts=facts, source=source)
