"""Leave tensors out, and consent to the loss."""

from __future__ import annotations

import fnmatch

from vitconv.errors import UsageError
from vitconv.layout.canonical import template_of
from vitconv.layout.edits.edit import Edit, Param, Values, spelled, without
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Network
from vitconv.layout.semantics import Semantics


def _apply(network: Network, values: Values) -> Network:
    pattern: str = values["pattern"]
    gone = [n for n in network.cells if matches(pattern, n)]
    if not gone:
        have = ", ".join(collapse(network.cells))
        raise UsageError(f"--edit drop:{pattern} matches no tensor of this network; it has: {have}")
    numel = sum(network.cells[n].numel for n in gone)
    why = _unfelt(network, gone)
    what = f"{len(gone)} tensors with {numel} elements are left out: {', '.join(collapse(gone))}"
    if why:
        what += f"; outputs unchanged: {why}"
    adjoint = "what is left out has gradient zero" if why else "none: what is left out gets no gradient"
    applied = Applied("drop", what, bool(why), tuple(gone), (), adjoint)
    return without(network, gone).noted(applied)


def matches(pattern: str, name: str) -> bool:
    """Say whether a canonical name fits a pattern: `*` and `?` as in file names, `{i}` any layer, `{q,k}`, `{0..3}`."""
    return any(fnmatch.fnmatchcase(name, p.replace("{i}", "*")) for p in spelled(pattern))


def _unfelt(network: Network, gone: list[str]) -> str:
    """Return why the function does not depend on any of the tensors, or ""."""
    reasons = dict.fromkeys(_reason(network.facts, n, set(network.cells)) for n in gone)
    return "; ".join(reasons) if all(reasons) else ""


def _reason(facts: Semantics, name: str, have: set[str]) -> str:
    template = template_of(name)
    if template == "embed.mask":
        return "only masked training uses a mask token"
    if template == "blocks.{i}.attn.k.bias":
        normed = name.replace("k.bias", "k_norm.weight") in have
        linear = facts.attention not in (None, "softmax", "causal")
        if not (normed or linear or facts.position == "rope"):
            return "a key bias adds the same number to all scores of a query, which softmax takes away"
    return ""


DROP = Edit(
    name="drop",
    title="leave canonical tensors out, and consent to the loss",
    exact="no; yes for a mask token, and for key biases under softmax attention without key norm or rotary positions",
    adjoint="none; zero where the function does not depend on the tensor",
    params=(
        Param(
            "pattern",
            "canonical names: * and ? as in file names, {i} any layer, {q,k}, {0..3}",
            str.strip,
            required=True,
        ),
    ),
    apply=_apply,
    bare="pattern",
    example="drop:head*",
)
