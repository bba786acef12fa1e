"""Measure one tensor: counts and bounds over all elements, moments over an even sample of a large one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Resolves 2 % of a std at five sigma; moments of all elements would cost more than reading them.
MOMENT_SAMPLE = 1 << 15
TRACE_SAMPLE = 4096

_TINY = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-14}


@dataclass(frozen=True, eq=False)
class Measured:
    """What one tensor holds.

    Attributes:
        n: elements; `bad` of them are NaN or infinite, the first at flat index `first_bad`.
        low, high: bounds over all finite elements, but for a few stray -2.0.
        mean, std, kurtosis: over an even sample of `sampled` elements.
        zeros, subnormal: shares of exact zeros and of subnormals, over the sample.
        eps: relative spacing of the stored dtype.
        stored: the dtype, as in float32.
        precision: the narrower dtype all its values fit in, or "".
        trace: up to 4096 of its values, taken evenly: what copies are found by.
        edge: largest singular value over what independent entries of this std give; nan where it was not worked out.
        stray: elements exactly -2.0.
    """

    name: str
    shape: tuple[int, ...]
    n: int
    bad: int
    first_bad: int
    low: float
    high: float
    mean: float
    std: float
    kurtosis: float
    sampled: int
    zeros: float
    subnormal: float
    eps: float
    stored: str
    precision: str
    trace: Tensor
    edge: float
    stray: int

    @property
    def constant(self) -> bool:
        """Return True when all elements are equal."""
        return self.bad == 0 and self.low == self.high

    @property
    def reach(self) -> float:
        """Return the largest |value| in standard deviations."""
        return max(abs(self.low), abs(self.high)) / self.std if self.std > 0 else 0.0


def measure(name: str, tensor: Tensor, *, spectrum: bool = False) -> Measured:
    """Measure one tensor; `spectrum` works out its largest singular value, of a matrix."""
    stored = tensor.dtype
    flat = tensor.detach().reshape(-1)
    n = flat.numel()
    low, high = _bounds(flat)
    bad, first = 0, -1
    if not math.isfinite(low + high):
        wrong = ~flat.isfinite()
        bad, first = int(wrong.sum()), int(wrong.nonzero()[0]) if wrong.any() else -1
        flat = flat[~wrong]
        low, high = _bounds(flat)
    stray = int((flat == -2.0).sum()) if low <= -2.0 else 0
    if 0 < stray < 0.05 * n and high < 1.0:
        # They are told by themselves, and would hide what the others are drawn from.
        rest = flat[flat != -2.0]
        sample = even(rest, MOMENT_SAMPLE)
        low, high = _bounds(rest)
    else:
        sample = even(flat, MOMENT_SAMPLE)
    # A copy, not a view: what is kept of a tensor must not keep its memory, nor change with it.
    sample = sample.clone(memory_format=torch.contiguous_format)
    mean, std, kurtosis = _moments(sample) if low < high else (low, 0.0, math.nan)
    zeros, subnormal = _near_zero(sample if low < high else sample[:1], stored)
    edge = math.nan
    if spectrum and tensor.dim() == 2 and bad == 0 and std > 0:
        edge = spectral_excess(tensor, bounds=None if stray else (low, high))
    return Measured(
        name=name,
        shape=tuple(tensor.shape),
        n=n,
        bad=bad,
        first_bad=first,
        low=low,
        high=high,
        mean=mean,
        std=std,
        kurtosis=kurtosis,
        sampled=sample.numel(),
        zeros=zeros,
        subnormal=subnormal,
        eps=torch.finfo(stored).eps if stored.is_floating_point else 0.0,
        stored=str(stored).removeprefix("torch."),
        precision=_history(sample, stored) if low < high else "",
        trace=even(sample, TRACE_SAMPLE).float().clone(),
        edge=edge,
        stray=stray,
    )


def _bounds(flat: Tensor) -> tuple[float, float]:
    if not flat.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(flat if flat.is_floating_point() else flat.float())
    return float(low), float(high)


def _moments(sample: Tensor) -> tuple[float, float, float]:
    """Return mean, std and kurtosis; in double precision, of a sample that is small."""
    values = sample.double()
    mean = float(values.mean())
    centred = values.sub_(mean)
    square = centred * centred
    variance = float(square.mean())
    fourth = float(torch.dot(square, square)) / square.numel()
    return mean, math.sqrt(variance), fourth / variance**2 if variance**2 > 0 else math.nan


def _near_zero(sample: Tensor, stored: torch.dtype) -> tuple[float, float]:
    """Return the shares of exact zeros and of subnormals."""
    tiny = _TINY.get(stored, 0.0)
    sizes = sample.abs()
    if not sizes.numel() or float(sizes.min()) >= max(tiny, 5e-324):
        return 0.0, 0.0
    zeros = sizes == 0
    return _share(zeros), _share(~zeros & (sizes.double() < tiny))


def even(flat: Tensor, most: int) -> Tensor:
    """Return at most `most` elements, taken evenly; the step shares no factor with usual widths."""
    if flat.numel() <= most:
        return flat
    step = -(-flat.numel() // most)
    while any(step % p == 0 for p in (2, 3, 5, 7, 11, 13)) and step > 1:
        step += 1
    return flat[::step]


def spectral_excess(matrix: Tensor, rounds: int = 8, bounds: tuple[float, float] | None = None) -> float:
    """Return the largest singular value over std (sqrt rows + sqrt columns), the Marchenko-Pastur edge.

    Independent entries give .98 to 1.03, 100 steps of training 1.15 and more. Large matrices by a few rounds of
    Golub and Kahan's bidiagonalisation: what was learned stands out and is found to a percent, independent entries
    come out 1 to 3 % low. `bounds`: lowest and highest value, where they are known.
    """
    w = matrix.detach().float()
    low, high = (float(x) for x in torch.aminmax(w)) if bounds is None else bounds
    mean, std = _mean_std(w)
    if max(high - mean, mean - low) > 6.5 * std:
        # One stray element is a spike in the spectrum, and nothing learned.
        w = torch.where((w - mean).abs() > 6.5 * std, mean, w)
        mean, std = _mean_std(w)
    if std == 0.0:
        return math.nan
    rows, columns = w.shape
    if min(rows, columns) <= 256:
        top = float(torch.linalg.svdvals(w - mean)[0])
    else:
        top = _largest_singular(w, mean, rounds)
    return top / (std * (math.sqrt(rows) + math.sqrt(columns)))


def _largest_singular(w: Tensor, mean: float, rounds: int) -> float:
    """Return the largest singular value of w - mean, at most a few percent too small, in 2 rounds + 1 products.

    One vector at a time: a matrix times a few vectors takes torch several times as long as times one.
    """
    right = torch.randn(w.shape[1], generator=torch.Generator().manual_seed(0))
    basis = [right / right.norm()]
    images: list[Tensor] = []
    for r in range(rounds + 1):
        images.append(torch.mv(w, basis[-1]) - mean * basis[-1].sum())
        if r == rounds:
            break
        back = torch.mv(w.T, images[-1]) - mean * images[-1].sum()
        known = torch.stack(basis)
        # Twice is enough, and once is not: rounding brings back what was taken away.
        for _ in range(2):
            back = back - known.T @ (known @ back)
        norm = float(back.norm())
        if norm <= 1e-12 * float(images[-1].norm()):
            break
        basis.append(back / norm)
    return float(torch.linalg.svdvals(torch.stack(images))[0])


def _mean_std(w: Tensor) -> tuple[float, float]:
    """Return mean and std of a matrix: torch's own std takes ten times as long as one product."""
    flat = w.reshape(-1)
    mean = float(flat.mean())
    square = float(torch.dot(flat, flat)) / flat.numel()
    return mean, math.sqrt(max(0.0, square - mean * mean))


def _share(mask: Tensor) -> float:
    return float(mask.float().mean()) if mask.numel() else 0.0


def _history(sample: Tensor, stored: torch.dtype) -> str:
    """Return the narrower dtype that holds every value of a float32 tensor exactly, or ""."""
    if stored != torch.float32 or sample.numel() < 64:
        return ""
    for narrow in (torch.bfloat16, torch.float16):
        few = sample[:64]
        if not torch.equal(few.to(narrow).float(), few):
            continue
        if torch.equal(sample.to(narrow).float(), sample):
            return str(narrow).removeprefix("torch.")
    return ""
