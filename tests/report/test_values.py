"""Values as text."""

from __future__ import annotations

import math

import pytest

from vitconv.report.values import printable, written


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (None, "number", "-"),
        (True, "count", "yes"),
        (False, "text", "no"),
        (("q", "k", "v"), "text", "q, k, v"),
        ((), "text", ""),
        (1e-6, "text", "1e-06"),
        (0.1, "text", "0.1"),
        (12, "text", "12"),
        (86567656, "count", "86 567 656"),
        (999, "count", "999"),
        (0, "bytes", "0 B"),
        (999, "bytes", "999 B"),
        (1000, "bytes", "1 kB"),
        (999_600, "bytes", "1 MB"),
        (346_270_000, "bytes", "346 MB"),
        (2_528_000_000, "bytes", "2.53 GB"),
        (3e15, "bytes", "3e+03 TB"),
        (0.0, "number", "0"),
        (0.00021, "number", "2.1e-4"),
        (3.14159e-15, "number", "3.14e-15"),
        (-2e-7, "number", "-2e-7"),
        (0.5, "number", "0.5"),
        (12345.6, "number", "12346"),
        (1.5e9, "number", "1.5e9"),
        (math.nan, "number", "NaN"),
        (-math.inf, "bytes", "-inf"),
        (1.2345, "ratio", "1.23x"),
        (0.0312, "seconds", "31.2 ms"),
        (12.34, "seconds", "12.3 s"),
        (0.9722, "percent", "97.2 %"),
    ],
)
def test_a_value_is_written(value, form, expected: str) -> None:
    assert written(value, form) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blocks.0.é", "blocks.0.é"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("a\x00", "a\\x00"),
        ("a\u202eb", "a\\u202eb"),
        ("a\ud800", "a\\ud800"),
        ("a\x9bb", "a\\x9bb"),
    ],
)
def test_control_characters_are_written_out(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert written(text, "code") == expected
