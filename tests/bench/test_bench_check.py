"""`vitconv bench check`: every static check is timed, beside a pass; the audit beside reading the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitconv.checks.base.run import chosen


@pytest.mark.slow
def test_every_static_check_is_timed_beside_a_pass(tmp_path: Path) -> None:
    from vitconv.bench.check import bench, typical

    found = bench("vit_tiny", "vit_tiny", tmp_path, 1)
    assert set(found.checks) == {c.id for c in chosen()}
    assert len(found.statics) == len(found.audits) == 1
    assert typical(found.statics) > 0 and typical(found.audits) > 0
    assert (tmp_path / "vit_tiny.safetensors").is_file()
