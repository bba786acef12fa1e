"""What all checks of one network look at, each part worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from vitconv.checks.base.check import NotApplicable, Undecided
from vitconv.checks.base.data import Data
from vitconv.checks.base.halves import Halves, half_pass
from vitconv.checks.base.passes import Pass, one_pass
from vitconv.checks.base.plan import Plan
from vitconv.hosts.base.copied import copied
from vitconv.hosts.base.host import Built, Spec
from vitconv.inits.audit.audit import Audited, audit_tensors
from vitconv.inits.base.architecture import Architecture
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import Bridge
from vitconv.registry import HOSTS, load


@dataclass(frozen=True, eq=False)
class Context:
    """One network to check.

    Attributes:
        name: what was asked for.
        built: the network, in float32 and eval mode; None when it cannot be built, see `lacking`.
        weights: its canonical weights as they are stored; None when no dialect explains its tensors.
        facts: what is known about its function.
        data: images and labels; batches are taken from the start.
        bridge: its tensors as canonical ones, or None.
        scheme: the init scheme its weights were drawn by here, or "".
        spec: how it was asked for, to describe copies of it.
        plan: the training that is planned.
        other: the network to train beside it, for step parity.
        vary: the variants to train, {axis: value} each; see `vitconv.checks.base.variants`.
        lacking: why there is no network, or no canonical view.
        notes: what the user should know.
        stored: {its own name: dtype} of the parameters as they were kept, where that is known.
    """

    name: str
    built: Built | None
    weights: Mapping[str, Tensor] | None
    facts: Semantics
    data: Data
    bridge: Bridge | None = None
    scheme: str = ""
    spec: Spec = field(default_factory=Spec)
    plan: Plan = field(default_factory=Plan)
    other: Context | None = None
    vary: tuple[Mapping[str, str], ...] = ()
    lacking: str = ""
    notes: tuple[str, ...] = ()
    stored: Mapping[str, torch.dtype] = field(default_factory=dict)

    @property
    def network(self) -> Built:
        """Return the network.

        Raises:
            Undecided: it cannot be built.
        """
        if self.built is None:
            raise Undecided(self.lacking)
        return self.built

    @property
    def canonical(self) -> Mapping[str, Tensor]:
        """Return the canonical weights.

        Raises:
            NotApplicable: no dialect explains the tensors.
        """
        if self.weights is None:
            raise NotApplicable(self.lacking or "no dialect explains its tensors")
        return self.weights

    @cached_property
    def arch(self) -> Architecture:
        """Return shapes and facts of the canonical network.

        Raises:
            NotApplicable: it has no blocks with queries.
        """
        arch = Architecture({n: tuple(t.shape) for n, t in self.canonical.items()}, self.facts)
        if not arch.blocks or not arch.has(f"{arch.blocks[0]}.attn.q.weight"):
            raise NotApplicable("roles and init schemes are known of blocks with queries, and it has none")
        return arch

    @property
    def placement(self) -> str | None:
        """Return where the norms of a block stand, or None when that is not known."""
        return self.arch.placement if self.plain else self.facts.norm_placement

    @property
    def plain(self) -> bool:
        """Return whether its weights are known by role, as those of a plain ViT or of one in stages."""
        firsts = ("blocks.0.attn.q.weight", "stages.0.blocks.0.attn.q.weight")
        return self.weights is not None and any(name in self.weights for name in firsts)

    @cached_property
    def audit(self) -> Audited:
        """Return the audit of the weights, against all schemes.

        Raises:
            NotApplicable: it has no blocks with queries.
        """
        assert self.arch.depth
        return audit_tensors(self.canonical, self.facts)

    @cached_property
    def signals(self) -> Pass:
        """Return one forward and backward pass in float32."""
        return one_pass(self.network, self.bridge, self.data.batch(self.plan.batch), self.facts)

    @cached_property
    def beside_nothing(self) -> Tensor | None:
        """Return the output of the first example once more, in evaluation, beside one of NaN; None for whole numbers.

        Whatever comes from the other example is NaN, however small its share.
        """
        built, images = self.network, self.data.batch(2)[0]
        if len(images) < 2 or not images.is_floating_point():
            return None
        pair = images.clone()
        pair[1] = float("nan")
        with torch.no_grad():
            return built.run(built.module, pair)

    @cached_property
    def halves(self) -> Halves:
        """Return a forward pass and backward passes in emulated half precision."""
        return half_pass(self.network, self.data.batch(1), self.plan.precision)

    @property
    def trained(self) -> bool:
        """Return whether the weights look trained."""
        return self.plain and self.audit.training.state in ("trained", "partly trained")

    def fresh(self) -> Built:
        """Return a copy of the network that may be changed, in train mode."""
        module = copied(self.network.module).train()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
            parameter.grad = None
        return load(HOSTS, self.network.host).describe(module, self.spec)
