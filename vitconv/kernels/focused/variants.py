"""Compute focused linear attention as it was published: one plain function per formulation, one signature.

    y      = (relu(x) + 1e-6) / softplus(scale)          x = q, or k + position
    phi(x) = |y| y^p / |y^p|                  both norms over all heads' channels, before the head split
    out    = phi(q) (sum_j phi(k)_j^T v_j) / (phi(q) sum_j phi(k)_j + eps)      per head

Every function takes q: [b t d], k and v: [b s d], scale: [1 1 d] (before softplus), position: [1 s d] or
None, any float dtype, and returns [b t d] without the depthwise branch. They use the operations of their
sources, so that autocast casts them in the same places; they are plain autograd code, made to be compared and
not to be trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.errors import UsageError
from vitconv.kernels.focused.attention import focused_attention
from vitconv.kernels.focused.autocast import uncast
from vitconv.kernels.focused.heads import join_heads, split_heads

EpsMode = Literal["sum", "mean"]
FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Variant:
    """Describe one formulation: how eps enters, which eps its source uses, where it comes from."""

    name: str
    run: Callable[..., Tensor]
    eps: float
    eps_mode: EpsMode
    source: str
    same_function: bool = True


def features(x: Tensor, position: Tensor | None, scale: Tensor, power: float, *, guard: bool) -> Tensor:
    """Map x to phi(x) as published, norms over all channels.

    x: [b t d], float; position: [1 t d] or None; scale: [1 1 d]. `guard` divides by the row maximum before a
    power above 6, as flatten_swin did before commit e205a01; the other files never did.
    """
    if position is not None:
        x = x + position
    y = (F.relu(x) + FLOOR) / F.softplus(scale)
    length = y.norm(dim=-1, keepdim=True)
    base = y / y.amax(dim=-1, keepdim=True) if guard and power > 6 else y
    w = base**power
    return w / w.norm(dim=-1, keepdim=True) * length


def _aggregate(q: Tensor, k: Tensor, v: Tensor, eps: float, *, shrink: float = 1.0) -> Tensor:
    """Sum over tokens in the cheaper of the two orders; v is divided and 1 / den multiplied by `shrink`."""
    t, s, e = q.shape[-2], k.shape[-2], q.shape[-1]
    den = torch.einsum("bhte,bhe->bht", q, k.sum(dim=-2)) + eps
    z = shrink / den
    v = v / shrink if shrink != 1.0 else v
    if t * s * 2 * e > e * e * (t + s):
        kv = torch.einsum("bhsc,bhsd->bhcd", k, v)
        return torch.einsum("bhtc,bhcd->bhtd", q, kv) * z.unsqueeze(-1).to(kv.dtype)
    qk = torch.einsum("bhtc,bhsc->bhts", q, k)
    return torch.einsum("bhts,bhsd->bhtd", qk, v) * z.unsqueeze(-1).to(qk.dtype)


def original(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float = 1e-6,
    guard: bool = True,
) -> Tensor:
    """Run the formulation before the fp16 fix: sums over tokens, z = 1 / (q . sum k + eps).

    Shapes and dtypes as in the module text. Source: LeapLabTHU/FLatten-Transformer models/flatten_swin.py
    (guard) and flatten_pvt.py (no guard) at 20298dd. The three-operand product with z is done in the dtype of
    kv, as einsum does.
    """
    q, k = (features(x, pe, scale, power, guard=guard) for x, pe in ((q, None), (k, position)))
    return join_heads(_aggregate(split_heads(q, heads), split_heads(k, heads), split_heads(v, heads), eps))


def autocast_off(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float = 1e-6,
    guard: bool = True,
) -> Tensor:
    """Run the workaround of issue 15: as `original`, but in float32 and uncast after the head split.

    Shapes and dtypes as in the module text. Source: the maintainer's first answer in FLatten-Transformer
    issue 15.
    """
    q, k = (features(x, pe, scale, power, guard=guard) for x, pe in ((q, None), (k, position)))
    with uncast(q.device.type):
        q, k, v = (split_heads(x if x.dtype == torch.float64 else x.float(), heads) for x in (q, k, v))
        return join_heads(_aggregate(q, k, v, eps))


def divided(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float = 1e-3,
    guard: bool = True,
) -> Tensor:
    """Run the thread's trick on the original: v / 64 before the sum, 64 z after it, eps 1e-3.

    Shapes and dtypes as in the module text. The division is exact; the eps of 1e-3 is what changes the
    function. Source: the reporter's second message in FLatten-Transformer issue 15.
    """
    q, k = (features(x, pe, scale, power, guard=guard) for x, pe in ((q, None), (k, position)))
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    return join_heads(_aggregate(q, k, v, eps, shrink=64.0))


def simplified(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,  # noqa: ARG001
    position: Tensor | None,  # noqa: ARG001
    *,
    heads: int,
    power: float = 2,
    eps: float = 1e-3,
) -> Tensor:
    """Run the reporter's own module: unit-norm powers of relu, v rectified, v / 64 and 64 z, no scale.

    Shapes and dtypes as in the module text; scale and position are accepted and not used, and the source has
    power 2 only. The source adds v itself where FLatten adds the depthwise branch; as everywhere here the
    branch is left out. Source: SimplifiedFocusedLinearAttention in FLatten-Transformer issue 15.
    """
    q, k = (F.relu(x) ** power for x in (q, k))
    # F.normalize, spelled out so that an emulation of autocast sees its parts.
    q, k = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (q, k))
    q, k, v = (split_heads(x, heads) for x in (q, k, F.relu(v)))
    return join_heads(_aggregate(q, k, v, eps, shrink=64.0))


def upstream_fix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float = 1e-6,
) -> Tensor:
    """Run the formulation after the fp16 fix: means over the s keys, s^-1/2 given to each of k and v.

    Shapes and dtypes as in the module text. eps now stands beside a mean: s times its weight in `original`.
    Source: FLatten-Transformer e205a01, with a7f0a4b (s counts the keys where sr_ratio > 1).
    """
    q, k = (features(x, pe, scale, power, guard=False) for x, pe in ((q, None), (k, position)))
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    root = k.shape[-2] ** -0.5
    z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + eps)
    return join_heads(q @ ((k.transpose(-2, -1) * root) @ (v * root)) * z)


def unguarded(*args: Any, **settings: Any) -> Tensor:
    """Run `original` without the row-maximum guard, as flatten_pvt, flatten_pvt_v2 and flatten_cswin were."""
    return original(*args, guard=False, **settings)


_REPO = "LeapLabTHU/FLatten-Transformer"
VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        v.name: v
        for v in (
            Variant("original", original, 1e-6, "sum", f"{_REPO} flatten_swin.py before e205a01"),
            Variant("original-unguarded", unguarded, 1e-6, "sum", f"{_REPO} flatten_pvt.py before e205a01"),
            Variant("autocast-off", autocast_off, 1e-6, "sum", f"{_REPO} issue 15, first answer"),
            Variant("divided", divided, 1e-3, "sum", f"{_REPO} issue 15, v / 64"),
            Variant(
                "simplified",
                simplified,
                1e-3,
                "sum",
                f"{_REPO} issue 15, SimplifiedFocusedLinearAttention",
                False,
            ),
            Variant("upstream-fix", upstream_fix, 1e-6, "mean", f"{_REPO} e205a01 and a7f0a4b"),
            Variant("stable", focused_attention, 1e-6, "mean", "docs/focused-linear-attention.md"),
        )
    }
)


def variant(name: str) -> Variant:
    """Look a variant up by name; an unknown name raises UsageError with the known ones."""
    if name not in VARIANTS:
        raise UsageError(f"focused linear attention has no variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]
