"""What every test shares: options and markers, hypothesis profiles, and no network."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Set before any test imports the libraries that read them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Derandomised: the same examples on every run and machine. A bound on examples, none on time: CI machines
# are slow.
settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optin", action="store_true", help="also run tests that need what is not installed by default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    optin = config.getoption("--optin")
    for item in items:
        if "optin" in item.keywords and not optin:
            item.add_marker(pytest.mark.skip(reason="runs with --optin"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    # torch is imported only when a test asks for a device.
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
