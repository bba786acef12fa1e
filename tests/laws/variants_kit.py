"""Every variant of every plain dialect; those in which two choices or more are not at their first option are slow."""

from __future__ import annotations

import pytest

from vitconv.layout.dialect import Variant
from vitconv.registry import DIALECTS, load_all

# Networks of stages have laws of their own; see test_stages.py.
PLAIN = {name: d for name, d in load_all(DIALECTS, plugins=False).items() if not d.staged}


def _turned(variant: Variant) -> int:
    first = variant.dialect.variants[0].taken
    return sum(first.get(choice) != option for choice, option in variant.taken.items())


each_variant = pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, id="-".join([d.name, *v.names.values()]), marks=pytest.mark.slow if _turned(v) > 1 else ())
        for d in PLAIN.values()
        for v in d.variants
    ],
)
