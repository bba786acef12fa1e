"""Faults of focused linear attention beside its power and eps: what its norms run over, and its scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.kernels.focused.module import Form
    from vitconv.parity.faults.fault import OnModel
    from vitconv.parity.faults.flat import FlatConfig


@dataclass(frozen=True)
class _WrongForm:
    """Stands where a form of focused attention does, and attends in plain PyTorch with other features.

    Attributes:
        form: the right one: its power and eps are kept.
        over: the axes of [b t h e] that the norms run over.
        lengths: whether queries, and keys, get their length back behind the power.
        softplus: whether the scale goes through softplus.
    """

    form: Form
    over: tuple[int, ...] = (-2, -1)
    lengths: tuple[bool, bool] = (True, True)
    softplus: bool = True

    def features(self, x: Tensor, scale: Tensor, heads: int, *, length: bool) -> Tensor:
        """Map x: [b t d] to [b h t e]."""
        import torch.nn.functional as F

        from vitconv.kernels.focused.variants import FLOOR

        # A scale that starts at zero would divide by that.
        divisor = F.softplus(scale) if self.softplus else scale.exp()
        y = ((x.relu() + FLOOR) / divisor).unflatten(-1, (heads, -1))
        size = y.square().sum(self.over, keepdim=True).sqrt()
        w = (y / y.amax(self.over, keepdim=True)) ** self.form.power
        w = w / w.square().sum(self.over, keepdim=True).sqrt()
        return (w * size if length else w).transpose(1, 2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor | None, heads: int, add: Tensor
    ) -> Tensor:
        """Do what `Form.attend` does."""
        from vitconv.kernels.focused.variants import variant

        chosen = variant(self.form.variant)
        eps = chosen.eps if self.form.eps is None else self.form.eps
        if (self.form.eps_mode or chosen.eps_mode) == "sum":
            eps = eps / k.shape[1]
        k = k if position is None else k + position
        fq = self.features(q, scale, heads, length=self.lengths[0])
        fk = self.features(k, scale, heads, length=self.lengths[1])
        state = fk.transpose(-2, -1) @ v.unflatten(-1, (heads, -1)).transpose(1, 2) / k.shape[1]
        y = fq @ state / (fq @ fk.mean(-2, keepdim=True).transpose(-2, -1) + eps)
        return y.transpose(1, 2).flatten(2) + add


def _form(**new: Any) -> OnModel:
    def change(model: Any, layers: Iterable[int]) -> None:
        for i in layers:
            attn = model.blocks[i].attn
            if getattr(attn, "form", None) is not None:
                attn.form = _WrongForm(attn.form, **new)

    return change


def _entries() -> Iterator[Fault]:
    def entry(name: str, words: str, when: Callable[[FlatConfig], bool] = lambda c: True, **new: Any) -> Fault:
        def can(c: Any) -> bool:
            return c.facts.focusing_factor is not None and c.facts.attention != "focused-simplified" and when(c)

        return Fault(
            f"focused-{name}", f"focused attention: {words}", "attention", model=_form(**new), per_block=True,
            families=("stages",), when=can,
        )  # fmt: skip

    yield entry("norms-per-head", "norms are taken over the channels of a head, not over all of a token", over=(-1,))
    yield entry("norms-over-tokens", "norms are taken over the tokens, not over the channels of a token", over=(-3,))
    yield entry("k-norm-missing", "the keys do not get their length back behind the power", lengths=(True, False))
    yield entry("scale-exponential", "the scale is e to the power of it, not softplus", softplus=False)


FAULTS = tuple(_entries())
