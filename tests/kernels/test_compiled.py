"""Compile the kernels for sm_80 and sm_90 without a GPU, in a process of its own, and read the cubins."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]

# What a block may hold beside a second one on an A100 (164 KiB per multiprocessor).
SHARED = 80 * 1024


def compiled(*arguments, tmp_path, script="compile_kernels.py"):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("families", "pattern", "count"),
    [
        ("norm", "norm-(fp16-fp16-96|fp32-bf16-768|bf16-bf16-8192)-", 6),
        ("norm", "norm-fp32-fp32-1408-", 2),
        ("epilogue", "epilogue-(fp16-erf|bf16-tanh|fp32-erf)", 6),
        ("focused", "focused-fp16-(24x4-(statistics|state|output|query|reduce|key)|64x2-(reduce|key))", 8),
        ("focused", "focused-(bf16-32x3-(state|output|reduce|key)|fp32-24x4-(reduce|query|key))", 7),
    ],
    ids=["norm", "norm fp32", "epilogue", "focused fp16", "focused bf16 and fp32"],
)
def test_cubins_load_wide_and_do_not_spill(families, pattern, count, tmp_path):
    lines = compiled(families, "80,90", pattern, tmp_path=tmp_path)
    assert len(lines) == 2 * count
    for line in lines:
        assert line["spills"] == 0, line
        assert line["stack"] == 0, line
        assert line["registers"] <= 255, line
        assert line["shared"] <= SHARED, line
        assert line["loads"].get("128", 0) > 0, line


@pytest.mark.parametrize(
    ("wanted", "kernels"),
    [
        (r"focused attention \[128, 3136, 96\]", ["state", "output", "reduce", "query", "key"]),
        (r"layer norm \[50432, 768\] bfloat16|mlp epilogue .* p 0.1", ["forward", "backward"] * 2),
    ],
    ids=["focused", "norm and epilogue"],
)
def test_the_benchmark_launches_at_full_shapes(wanted, kernels, tmp_path):
    """What the launchers hand over, a card of compute capability 9.0 would compile and take."""
    lines = compiled("90", wanted, tmp_path=tmp_path, script="launch_kernels.py")
    names = [line["name"] for line in lines if line["name"] != "statistics_kernel"]
    assert names == [f"{name}_kernel" for name in kernels]
    for line in lines:
        assert line["spills"] == 0, line
        assert line["shared"] <= SHARED, line
        assert line["loads"].get("128", 0) > 0, line
        assert max(line["grid"][1:], default=1) < 2**16, line


def test_the_probe_sees_spills(tmp_path):
    """Ask for a tile that cannot fit: the same reading must then report spills."""
    script = (
        "import compile_kernels as c\n"
        "from vitconv.kernels.layer_norm import triton_kernels as t\n"
        "k = dict(HAS_WEIGHT=True, HAS_BIAS=True, D=8192, BR=8, BD=8192)\n"
        "print(c.read(c.build(t.forward_kernel, {}, k, 90, aligned=('x_row',), warps=4))['spills'])\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100
