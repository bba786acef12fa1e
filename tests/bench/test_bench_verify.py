"""`vitconv bench verify`: every pass is counted, the fault is found, memory is stated and measured."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


def test_stages_are_held_against_their_bare_passes():
    from vitconv.bench.verify import bench

    small = ["img_size=16", "patch_size=8", "embed_dim=32", "depth=2", "num_heads=2", "num_classes=5"]
    found = bench("vit_tiny_patch16_224", small, 1e-5, ["fp32"])
    assert found.verdict == "differs"
    assert found.found == ("eps-blocks-1e-5",)
    assert [c.stage for c in found.costs] == ["sanity", "function", "numerics-fp32", "where"]
    assert all(c.passes > 0 and 0 < c.bare < c.wall for c in found.costs)
    assert found.search > 0 and found.verify > 0
    assert found.stated > 0 and found.peak >= 0
