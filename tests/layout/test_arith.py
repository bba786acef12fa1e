"""Rounding, bit for bit against torch, and the counts of what a cast does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitconv.errors import Refused
from vitconv.layout import arith
from vitconv.layout.arith import cast_report, from_float, to_float

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
UNSIGNED = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}
ONE = {"F64": torch.int64, "F32": torch.int32, "F16": torch.int16, "BF16": torch.int16}


def patterns(dtype: str, n: int = 200_000) -> np.ndarray:
    """Random bit patterns of `dtype` and the awkward ones: NaN, infinite, zero, subnormal, ties."""
    kind = UNSIGNED[dtype]
    if kind is np.uint16:
        return np.arange(1 << 16, dtype=kind)
    info = np.iinfo(kind)
    random = np.random.default_rng(0).integers(0, info.max, n, kind, endpoint=True)
    if dtype == "F32":
        # All exponents, ties and their neighbours in both directions.
        upper = np.arange(1 << 16, dtype=np.uint32) << 16
        awkward = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001)]
        return np.concatenate([random, *awkward])
    return random


def as_torch(bits: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(bits.view(bits.dtype.str.replace("u", "i"))).view(TORCH[dtype])


def bits_of(x: torch.Tensor, dtype: str) -> np.ndarray:
    return x.view(ONE[dtype]).numpy().view(UNSIGNED[dtype])


@pytest.mark.parametrize("dtype", TORCH)
def test_reading_equals_torch_and_writing_gives_the_bits_back(dtype: str) -> None:
    bits = patterns(dtype)
    wide = to_float(bits, dtype, bits.shape)
    theirs = as_torch(bits, dtype).to(torch.float64 if dtype == "F64" else torch.float32).numpy()
    assert wide.dtype == theirs.dtype
    same = wide.view(f"u{wide.itemsize}") == theirs.view(f"u{wide.itemsize}")
    nan = np.isnan(wide)
    assert same[~nan].all() and np.isnan(theirs[nan]).all() and nan.any()
    back = np.frombuffer(from_float(wide, dtype), UNSIGNED[dtype])
    assert (back == bits)[~nan].all()


@pytest.mark.parametrize("target", TORCH)
@pytest.mark.parametrize("source", TORCH)
def test_rounding_equals_torch(source: str, target: str) -> None:
    bits = patterns(source)
    ours = np.frombuffer(from_float(to_float(bits, source, bits.shape), target), UNSIGNED[target])
    x = as_torch(bits, source)
    theirs = bits_of(x.to(TORCH[target]), target)
    nan = torch.isnan(x).numpy()
    assert np.array_equal(ours[~nan], theirs[~nan])
    values = to_float(ours, target, ours.shape)
    assert np.isnan(values[nan]).all()
    signs = torch.signbit(x).numpy()
    assert np.array_equal(np.signbit(values)[nan], signs[nan])


@pytest.mark.parametrize("target", ["F16", "BF16"])
def test_double_precision_is_rounded_once(target: str) -> None:
    # Next to a tie: float32 would round onto the tie, and the second rounding would then go to even.
    step, bit = {"F16": 2.0**-10, "BF16": 2.0**-7}[target], 2.0**-40
    tie, odd = 1 + step / 2, 1 + 3 * step / 2
    x = np.array([tie + bit, -tie - bit, tie - bit, odd - bit, odd + bit, tie, odd])
    expected = [1 + step, -1 - step, 1, 1 + step, 1 + 2 * step, 1, 1 + 2 * step]
    assert to_float(from_float(x, target), target, x.shape).tolist() == expected


def test_double_precision_past_the_range_of_float32() -> None:
    x = np.array([1e300, -1e300, 1e-300, np.inf, 3.39e38, 3.4e38])
    assert to_float(from_float(x, "BF16"), "BF16", x.shape)[:4].tolist() == [np.inf, -np.inf, 0.0, np.inf]
    assert np.isfinite(to_float(from_float(x, "BF16"), "BF16", x.shape)).tolist()[4:] == [True, False]


def test_the_integer_trick_alone_would_lose_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    nan = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(to_float(from_float(nan, "BF16"), "BF16", (3,))).all()
    monkeypatch.setattr(np, "isnan", lambda x: np.zeros(x.shape, bool))
    broken = to_float(from_float(nan, "BF16"), "BF16", (3,))
    monkeypatch.undo()
    assert not np.isnan(broken).any()


def test_counts_of_a_cast() -> None:
    # Recipe H08: values between 1e-8 and 1e6.
    x = (10.0 ** np.random.default_rng(0).uniform(-8, 6, 1000)).astype(np.float32)
    half = torch.from_numpy(x).half()
    report = cast_report(x, "F32", "F16")
    assert report.numel == 1000
    assert report.overflow == int(half.isinf().sum()) > 0
    assert report.underflow == int((half == 0).sum()) > 0
    assert report.subnormal == int(((half != 0) & (half.abs() < 2.0**-14)).sum()) > 0
    brain = cast_report(x, "F32", "BF16")
    assert (brain.overflow, brain.underflow, brain.subnormal, brain.nan) == (0, 0, 0, 0)
    wide = torch.from_numpy(x).double()
    expected = ((wide.bfloat16().double() - wide).abs() / wide).max().item()
    # Counted in float32, whose own division errs by 2^-24.
    assert brain.max_relative_error == pytest.approx(expected, rel=2.0**-23)
    assert 3.7e-3 < expected <= 2.0**-8


def test_counts_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(0, 1e5, (33, 7)).astype(np.float32)
    x[0, 0] = np.nan
    whole = cast_report(x, "F32", "F16")
    monkeypatch.setattr(arith, "_CHUNK", 5)
    assert cast_report(x, "F32", "F16") == whole
    assert whole.nan == 1 and "1 are NaN" in str(whole)


def test_the_report_says_what_is_lost() -> None:
    text = str(cast_report(np.array([1e6, 1e-9, 1e-7, 1.0, 0.0, -0.0], np.float32), "F32", "F16"))
    assert "of 6 elements 1 overflow, 1 become zero, 1 become subnormal" in text


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_eight_bit_floats_are_refused(dtype: str) -> None:
    with pytest.raises(Refused, match="8-bit float whose values need a scale"):
        to_float(b"\0", dtype, (1,))
    with pytest.raises(Refused, match="8-bit float"):
        from_float(np.zeros(1), dtype)


def test_integers_are_refused() -> None:
    with pytest.raises(Refused, match="I64; edits compute with F64, F32, F16, BF16 only"):
        to_float(b"\0" * 8, "I64", (1,))


@pytest.mark.parametrize("dtype", TORCH)
def test_an_empty_tensor(dtype: str) -> None:
    assert to_float(b"", dtype, (0, 3)).shape == (0, 3)
    assert from_float(np.zeros((0, 3), np.float32), dtype).nbytes == 0
    assert cast_report(np.zeros(0, np.float32), "F32", dtype).numel == 0
