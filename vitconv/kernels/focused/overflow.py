"""Measure where each variant of focused linear attention leaves float16, forward and backward.

Each cell runs a variant on inputs rounded to float16, under emulated CUDA autocast ("amp") or wholly in
float16 ("half"), and compares it with the same variant in float64 on the same inputs. `table` gives, per
regime, the smallest number of tokens at which a variant fails, and how: "nan" (a result is not finite) or
"wrong" (finite, relative L2 error above 5 %: the silent kind, where z = 1 / inf = 0 gives zero rows).
Gradients are those of a float16 cotangent of std 1e-4 times the loss scale of 65536; only entries that are
finite and within float16 in float64 are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitconv.kernels.focused.autocast import emulate_cuda_autocast
from vitconv.kernels.focused.variants import VARIANTS, Variant

TOKENS = (49, 196, 784, 3136, 12544)
HEADS, HEAD_WIDTH = 2, 32
LOSS_SCALE = 65536.0
WRONG = 0.05
LARGEST = 65504.0


@dataclass(frozen=True, slots=True)
class Regime:
    """Name a kind of input: std of q, k, v, power, precision ("amp" or "half"), and what is switched off."""

    std: float
    power: float
    precision: str = "amp"
    dead: str = ""

    def __str__(self) -> str:
        return f"{self.precision}, p = {self.power:g}, std {self.std:g}{', dead ' + self.dead if self.dead else ''}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Say how one run ended, forward and backward: "", "nan" or "wrong"; and the relative L2 errors."""

    forward: str
    backward: str
    error: float
    gradient_error: float


REGIMES = (
    *(Regime(std, 3) for std in (0.02, 0.2, 1, 2, 4, 16)),
    *(Regime(std, 8) for std in (0.2, 1, 4)),
    Regime(1, 12),
    *(Regime(1, p, dead="head") for p in (3, 8)),
    *(Regime(1, p, dead="token") for p in (3, 4, 8)),
    *(Regime(std, 3, "half") for std in (0.2, 1, 4, 16)),
    Regime(1, 8, "half"),
    Regime(1, 3, "half", "head"),
)


def inputs(regime: Regime, tokens: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Draw q, k, v, scale, position (scale, position float32 under amp) and the cotangent, rounded to float16."""
    generator = torch.Generator().manual_seed(seed)
    d = HEADS * HEAD_WIDTH
    q, k, v = (torch.randn(1, tokens, d, generator=generator) * regime.std for _ in range(3))
    if regime.dead == "head":
        q[..., :HEAD_WIDTH] = -q[..., :HEAD_WIDTH].abs()
    if regime.dead == "token":
        q[:, 0], k[:, 1] = -q[:, 0].abs(), -k[:, 1].abs()
    params = torch.float32 if regime.precision == "amp" else torch.float16
    rest = [torch.zeros(1, 1, d, dtype=params), torch.zeros(1, tokens, d, dtype=params)]
    grad = torch.randn(1, tokens, d, generator=generator) * (1e-4 * LOSS_SCALE)
    return [*(x.half() for x in (q, k, v)), *rest], grad.half()


def _run(variant: Variant, tensors: Sequence[Tensor], grad: Tensor, power: float) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    y = variant.run(*leaves, heads=HEADS, power=power, eps=variant.eps)
    wanted = leaves[:3]
    return [y.detach(), *torch.autograd.grad(y, wanted, grad.to(y.dtype))]


def _judge(got: Sequence[Tensor], exact: Sequence[Tensor]) -> tuple[str, float]:
    worst, finite = 0.0, True
    for g, e in zip(got, exact, strict=True):
        asked = e.abs() <= LARGEST
        g = g.double()
        finite = finite and bool(torch.isfinite(g[asked]).all())
        difference = torch.where(asked & torch.isfinite(g), g - e, 0.0)
        worst = max(worst, float(difference.norm() / e[asked].norm().clamp_min(1e-30)))
    return ("nan" if not finite else "wrong" if worst > WRONG else ""), worst


def measure(variant: Variant, regime: Regime, tokens: int) -> Outcome:
    """Run one variant once, in the regime's precision and in float64, and judge output and gradients."""
    tensors, grad = inputs(regime, tokens)
    exact = _run(variant, [x.double() for x in tensors], grad.double(), regime.power)
    if regime.precision == "amp":
        with emulate_cuda_autocast():
            got = _run(variant, tensors, grad, regime.power)
    else:
        got = _run(variant, tensors, grad, regime.power)
    forward, error = _judge(got[:1], exact[:1])
    backward, gradient_error = _judge(got[1:], exact[1:])
    return Outcome(forward, backward, error, gradient_error)


def first_failure(variant: Variant, regime: Regime, tokens: Sequence[int] = TOKENS) -> tuple[str, str]:
    """Say at which number of tokens output and gradients first fail, as "784 wrong", or "ok"."""
    found = ["ok", "ok"]
    for count in tokens:
        outcome = measure(variant, regime, count)
        for i, verdict in enumerate((outcome.forward, outcome.backward)):
            if verdict and found[i] == "ok":
                found[i] = f"{count} {verdict}"
        if "ok" not in found:
            break
    return found[0], found[1]


def table(regimes: Sequence[Regime] = REGIMES, tokens: Sequence[int] = TOKENS) -> Iterator[str]:
    """Yield the overflow table as Markdown lines: per regime and variant, first failure forward / backward."""
    names = [name for name in VARIANTS if name != "original-unguarded"]
    yield "| regime | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for regime in regimes:
        power_only = {"simplified": 2.0}
        cells = []
        for name in names:
            shown = Regime(regime.std, power_only.get(name, regime.power), regime.precision, regime.dead)
            forward, backward = first_failure(VARIANTS[name], shown, tokens)
            cells.append(forward if forward == backward else f"{forward} / {backward}")
        yield f"| {regime} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    import sys

    for line in table():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
