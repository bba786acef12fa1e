"""Benchmarks: ratios to a named baseline, measured in the same run."""
