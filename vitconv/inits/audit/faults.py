"""Faults of single tensors and of pairs, found without knowing the scheme."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping

import torch
from torch import Tensor

from vitconv.inits.audit.finding import Finding
from vitconv.inits.audit.measure import Measured, measure
from vitconv.inits.base.distribution import Distribution
from vitconv.layout.blocks import block_of
from vitconv.layout.canonical import role_of

_HUGE = 1e3
FEW_STRAY = 1e-5
_F16_TINY = 2.0**-14
# Zero in some codebases, drawn in others.
TOKENS = frozenset({"embed.cls", "embed.dist", "embed.mask", "embed.reg"})
_DIGITS = re.compile(r"\d+")


def nameless(tensors: Mapping[str, Tensor]) -> tuple[Finding, ...]:
    """Return what is wrong with the parameters of a network whose roles are not known: {its own name: tensor}.

    What an init scheme would draw cannot be told of them. Layers are told by names that differ in numbers only.
    """
    measured = {name: measure(name, t) for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    found = [f for one in (_not_finite, _uninitialised, _stray) for f in one(measured)]
    found += _constant(measured, {})
    found += copies(measured, tensors, lambda name: None if bare(name) == name else bare(name))
    return tuple(found)


def bare(name: str) -> str:
    """Return a name without its numbers: that of the same tensor in every layer."""
    return _DIGITS.sub("#", name)


def faults(measured: Mapping[str, Measured], expected: Mapping[str, Distribution]) -> Iterator[Finding]:
    """Yield the faults; what the best scheme expects to be constant is not reported as constant."""
    for one in (_not_finite, _uninitialised, _subnormal, _stray):
        yield from one(measured)
    yield from _dead(measured, expected)
    yield from _mixed_up(measured)
    yield from _rounded(measured)


def _not_finite(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    bad = [m for m in measured.values() if m.bad]
    if bad:
        counts = ", ".join(f"{m.bad} of {m.n} in {m.name}, first at {m.first_bad}" for m in bad[:4])
        yield Finding(
            "not-finite", "fail", _names(bad), f"NaN or infinite: {counts}", "take an earlier checkpoint, or init again"
        )


def _uninitialised(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    bad = [
        m
        for m in measured.values()
        if max(abs(m.low), abs(m.high)) > _HUGE or (m.stored == "float32" and m.subnormal > 1e-3)
    ]
    if bad:
        text = ", ".join(f"{m.name} {m.low:.2g} to {m.high:.2g}" for m in bad[:4])
        yield Finding(
            "uninitialised", "fail", _names(bad), f"looks like memory nobody wrote: {text}",
            "timm's weight_init='skip' leaves tokens and positions so; run an init function over them",
        )  # fmt: skip


def _subnormal(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    for m in measured.values():
        if m.stored == "float16" and m.std > 0 and m.subnormal:
            # What a normal of this std gives in half precision by itself.
            usual = math.erf(_F16_TINY / (m.std * math.sqrt(2.0)))
            if m.subnormal > 2.0 * usual + 1e-3:
                yield Finding(
                    "subnormal", "warn", (m.name,),
                    f"{m.subnormal:.2%} of {m.name} are subnormal in float16, {usual:.2%} would be usual",
                    "keep it in float32 or bfloat16",
                )  # fmt: skip


def _stray(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    bad = [m for m in measured.values() if m.stray and m.std < 0.5 and m.stray < 0.05 * m.n]
    if bad:
        total, n = sum(m.stray for m in bad), sum(m.n for m in bad)
        # One in 2^24 of float32 is harmless, one in 500 of bfloat16 makes the std four times as large.
        yield Finding(
            "stray-minus-two", "fail" if total > FEW_STRAY * n else "info", _names(bad),
            f"{total} of {n} elements are exactly -2.0: trunc_normal_ took erfinv of the end point and cut it there"
            + ("" if total > FEW_STRAY * n else "; timm in float32 draws one in 20 million so"),
            "draw in float32 with torch 2.12 or later, never in half precision with timm's own copy",
        )  # fmt: skip


def _dead(measured: Mapping[str, Measured], expected: Mapping[str, Distribution]) -> Iterator[Finding]:
    zero = [m for m in measured.values() if m.constant and m.low == 0.0 and m.n > 1 and not _may_be_zero(m, expected)]
    if zero:
        yield Finding(
            "all-zero", "warn", _names(zero), f"{len(zero)} tensors are all zero where an init or a training is not",
            "check that they were loaded, and that an optimiser has them; what was on the meta device holds zeros or "
            "anything else until its own init function has run after to_empty",
        )  # fmt: skip
    yield from _constant(measured, expected)


def _constant(measured: Mapping[str, Measured], expected: Mapping[str, Distribution]) -> Iterator[Finding]:
    # A temperature per head, [h 1 1], is no matrix.
    matrices = [m for m in measured.values() if sum(size > 1 for size in m.shape) > 1]
    weights = [m for m in matrices if m.constant and m.low != 0.0]
    same = [m for m in weights if not (m.name in expected and expected[m.name].family == "constant")]
    if same:
        yield Finding(
            "constant", "fail", _names(same), f"{len(same)} weights hold one value only",
            "all units of such a layer compute the same and get the same gradient; init it again",
        )  # fmt: skip


def _may_be_zero(m: Measured, expected: Mapping[str, Distribution]) -> bool:
    known = expected.get(m.name)
    if known is not None and known.family == "constant" and known.centre == 0.0:
        return True
    return m.name.endswith(".bias") or m.name in TOKENS


def _mixed_up(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    for name, bias in measured.items():
        if role_of(name) != "norm.bias":
            continue
        weight = measured.get(name.removesuffix("bias") + "weight")
        if weight is None or bias.bad or weight.bad:
            continue
        looks_like_gain = bias.low > 0.0 and bias.mean > 3.0 * max(bias.std, 0.0)
        if looks_like_gain and abs(weight.mean) < 0.3 * bias.mean and bias.mean > 0.3:
            yield Finding(
                "gain-bias-mixed-up", "fail", (weight.name, name),
                f"{name} is around {bias.mean:.3g} and {weight.name} around {weight.mean:.3g}: they are swapped",
                "swap them; old TensorFlow names are gamma (weight) and beta (bias)",
            )  # fmt: skip


def _rounded(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    drawn = [m for m in measured.values() if m.n >= 4096 and not m.constant]
    for narrow in ("bfloat16", "float16"):
        some = [m for m in drawn if m.precision == narrow]
        if some:
            yield Finding(
                "rounded", "info", _names(some), f"{len(some)} float32 tensors hold values of {narrow} only",
                "they went through that precision; nothing brings the lost bits back",
            )  # fmt: skip


def copies(
    measured: Mapping[str, Measured],
    tensors: Mapping[str, Tensor],
    kind: Callable[[str], Hashable] = lambda name: block_of(name) is not None or None,
) -> Iterator[Finding]:
    """Yield layers that hold the same weights, also when one is a multiple of the other.

    Correlation does not see scale, so copies divided by sqrt(2 l) are found. Independent tensors of n elements
    correlate with a spread of 1/sqrt n.

    Args:
        measured: what the tensors hold.
        tensors: the tensors.
        kind: by the name of a tensor, those it is compared with; None leaves it out.
    """
    groups: dict[tuple[tuple[int, ...], int, Hashable], list[Measured]] = {}
    for m in measured.values():
        if m.std > 0 and not m.bad and m.n >= 32 and kind(m.name) is not None:
            groups.setdefault((m.shape, m.trace.numel(), kind(m.name)), []).append(m)
    same: list[str] = []
    alike: list[tuple[str, str, float]] = []
    for (_, size, _), group in groups.items():
        if len(group) < 2:
            continue
        rows = torch.stack([m.trace - m.trace.mean() for m in group])
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
        r = rows @ rows.T
        limit = max(0.05, 6.0 / math.sqrt(size))
        # Norms and biases of a trained network may well be alike; only equal bits count there.
        limit = limit if len(group[0].shape) > 1 else 0.999
        for a, b in r.abs().triu(1).ge(limit).nonzero().tolist():
            value = float(r[a, b])
            # The first may lie where the second is read to.
            if value > 0.999 and torch.equal(tensors[group[a].name].clone(), tensors[group[b].name]):
                same.append(f"{group[b].name} = {group[a].name}")
            elif len(group[0].shape) > 1:
                alike.append((group[a].name, group[b].name, value))
    if same:
        # Biases that were copied, beside matrices drawn anew, break no symmetry.
        alone = all(len(measured[name].shape) < 2 for name in _both(same))
        yield Finding(
            "copied", "warn" if alone else "fail", _both(same), f"the same bits twice: {'; '.join(same[:4])}",
            "layers that start equal stay close; draw each by itself (nn.TransformerEncoder deep-copies one layer)",
        )  # fmt: skip
    if alike:
        text = "; ".join(f"{a} and {b} (r = {value:.2f})" for a, b, value in alike[:4])
        strong = any(abs(value) > 0.5 for _, _, value in alike)
        yield Finding(
            "correlated", "fail" if strong else "warn", tuple(dict.fromkeys(n for a, b, _ in alike for n in (a, b))),
            f"{len(alike)} pairs of layers are correlated: {text}",
            "copies, or one seed for several layers",
        )  # fmt: skip


def _both(equalities: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in equalities for name in text.split(" = ")))


def _names(found: list[Measured]) -> tuple[str, ...]:
    return tuple(m.name for m in found)
