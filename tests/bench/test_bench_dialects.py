"""The sources of the benchmark are files of their layouts, and the library takes what we write for the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitconv.bench.convert import Size
from vitconv.bench.dialects import PATHS, make_source
from vitconv.cli.main import run

SMALL = Size(64, 2, 256, 8, 16)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_our_file_has_the_library_s_values(path: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    job = PATHS[path]
    source, ours, theirs = (
        tmp_path / f"{job.source}{job.suffix}",
        tmp_path / "o.safetensors",
        tmp_path / "t.safetensors",
    )
    make_source(source, job.source, SMALL)
    assert run(["convert", str(source), str(ours), "--to", job.target, *job.options]) == 0
    told = [str(x) for x in (SMALL.d, SMALL.depth, 1, SMALL.p, 32)]
    subprocess.run([sys.executable, "-c", job.script, str(source), str(theirs), *told], check=True)
    a, b = load_file(ours), load_file(theirs)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
