"""Audit the tensors of a network by role: distributions, the best scheme, trained or not, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitconv.errors import Refused
from vitconv.inits.audit.conform import Conformity
from vitconv.inits.audit.faults import copies, faults
from vitconv.inits.audit.finding import Finding
from vitconv.inits.audit.fit import Fitted, best, rank
from vitconv.inits.audit.measure import Measured, measure
from vitconv.inits.audit.signatures import signatures
from vitconv.inits.audit.trained import Training, training
from vitconv.inits.audit.unlike import unlike
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.deepnet import bound
from vitconv.inits.base.scheme import Scheme
from vitconv.layout.blocks import blocks_of
from vitconv.layout.semantics import Semantics
from vitconv.registry import INITS, load, load_all

# Three blocks and two parts, and one more, are enough for a verdict.
_SPECTRA = ("attn.q", "attn.out")


@dataclass(frozen=True)
class Audited:
    """What an audit found.

    Attributes:
        arch: the network.
        measured: {canonical name: what the tensor holds}.
        fits: the schemes that fit best, equal ones all; the first is what the outcomes are told against.
        ranked: every scheme, the best first.
        training: trained or not, and the tensors that are as an init leaves them.
        findings: what is wrong or worth knowing, the worst first.
        bound: DeepNet's bound, of a post-norm stack.
    """

    arch: Architecture
    measured: Mapping[str, Measured]
    fits: tuple[Fitted, ...]
    ranked: tuple[Fitted, ...]
    training: Training
    findings: tuple[Finding, ...]
    bound: float | None

    @property
    def scheme(self) -> str:
        """Return the names of the best schemes, joined by "or"."""
        return " or ".join(fit.scheme.name for fit in self.fits)

    def outcome(self, name: str) -> Conformity:
        """Return how one tensor fits the first of the best schemes."""
        return self.fits[0].outcomes[name]

    def found(self, name: str) -> Finding | None:
        """Return the finding of this id, or None."""
        return next((f for f in self.findings if f.id == name), None)


def audit_tensors(
    tensors: Mapping[str, Tensor], facts: Semantics | None = None, scheme: Scheme | str | None = None
) -> Audited:
    """Audit canonical tensors.

    Args:
        tensors: {canonical name: tensor, float of any width}; may load lazily, each is read once and copies
            again; one need not hold once the next is asked for.
        facts: what is known beside them; norm placement and alpha decide what is a fault.
        scheme: audit against this scheme only, and report what deviates from it; None compares with all.

    Raises:
        Refused: it has no blocks with queries.
    """
    with _one_thread():
        return _audited(tensors, facts, scheme)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: pieces are small, and on a busy machine threads that wait take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _audited(tensors: Mapping[str, Tensor], facts: Semantics | None, scheme: Scheme | str | None) -> Audited:
    blocks = blocks_of(tensors)
    if not blocks or f"{blocks[0]}.attn.q.weight" not in tensors:
        raise Refused("the audit looks at blocks with queries; this network has none, neither in stages nor without")
    some = {blocks[0], blocks[len(blocks) // 2], blocks[-1]}
    spectra = {f"{block}.{part}.weight" for block in some for part in _SPECTRA}
    # Four times as large as the others, so of one block.
    spectra.add(f"{blocks[len(blocks) // 2]}.mlp.down.weight")
    measured = {name: measure(name, t, spectrum=name in spectra) for name, t in tensors.items()}
    arch = Architecture({name: m.shape for name, m in measured.items()}, facts or Semantics())
    asked = load(INITS, scheme) if isinstance(scheme, str) else scheme
    known = {asked.name: asked} if asked is not None else load_all(INITS)
    ranked = rank(arch, measured, known)
    fits = tuple(best(ranked))
    state = training(fits[0], measured)
    findings = [
        *faults(measured, fits[0].declared),
        *copies(measured, tensors),
        *signatures(arch, measured, untrained=state.state != "trained"),
        *_cold(state),
        *(_deviations(fits[0]) if asked is not None and state.state != "trained" else ()),
        *(unlike(fits[0], measured) if asked is None and state.state in ("never trained", "undecided") else ()),
    ]
    order = {"fail": 0, "warn": 1, "info": 2}
    findings.sort(key=lambda f: order[f.level])
    b = bound(arch, {name: m.std for name, m in measured.items()})
    return Audited(arch, measured, fits, tuple(ranked), state, tuple(findings), b)


def audit_module(model: nn.Module, scheme: Scheme | str | None = None, **known: object) -> Audited:
    """Audit a live network; see `vitconv.inits.apply` for how its tensors are recognised."""
    from vitconv.inits.base.live import recognised

    live = recognised(model, known)
    return audit_tensors({name: live.read(name) for name in live.network.cells}, live.network.facts, scheme)


def _cold(state: Training) -> list[Finding]:
    """Report tensors of a trained network that are as an init leaves them, when they are a part and not a habit."""
    if state.state not in ("trained", "partly trained"):
        return []
    names = [name for name in state.fresh if not name.endswith((".q.bias", ".k.bias", ".v.bias"))]
    if not names:
        return []
    blocks = blocks_of(names)
    where = f" in blocks {', '.join(b.removeprefix('blocks.') for b in blocks)}" if blocks else ""
    return [
        Finding(
            "never-trained", "warn", tuple(names), f"{len(names)} tensors{where} are as an init leaves them",
            "a part that was not loaded, was frozen, or is in no optimiser group",
        )
    ]  # fmt: skip


def _deviations(fit: Fitted) -> list[Finding]:
    return [
        Finding("deviates", "fail", (name,), f"{name}: {outcome.text}", f"{fit.scheme.name} says otherwise")
        for name, outcome in fit.misfits.items()
    ]
