"""Run the interpreter suite in its own process: TRITON_INTERPRET must be set before triton is first imported."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = HERE / "interpreted.py"
ROOT = HERE.parents[1]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run(*options):
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(SUITE)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_kernels_agree_with_float64_under_the_interpreter():
    done = run()
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 170
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "old", "new", "test"),
    [
        pytest.param(
            "layer_norm/triton_kernels.py", "tl.where(ok, x - mean[:, None], 0.0)", "x - mean[:, None]",
            "test_layer_norm and plain-fp16 and 100", id="lanes beyond the width reach the variance",
        ),
        pytest.param(
            "layer_norm/triton_kernels.py", "db += tl.sum(dy, axis=0)", "db = tl.sum(dy, axis=0)",
            "test_layer_norm and plain-fp32 and 591", id="only the last rows reach the bias gradient",
        ),
        pytest.param(
            "focused/triton_backward.py", "tl.sum(parts, axis=1), yn", "tl.sum(parts, axis=1) * 0.0 + 1.0, yn",
            "test_focused_attention and fp32 and 12", id="wrong joint sum over heads",
        ),
        pytest.param(
            "epilogue/triton_kernels.py", "word >= THRESHOLD, y", "word > THRESHOLD * 2, y",
            "test_epilogue and plain-fp32 and erf", id="another dropout rate",
        ),
    ],
)  # fmt: skip
def test_the_suite_sees_a_planted_fault(tmp_path, module, old, new, test):
    package = tmp_path / "vitconv"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "errors.py").write_text((ROOT / "vitconv/errors.py").read_text())
    for source in (ROOT / "vitconv/kernels").rglob("*.py"):
        target = package / "kernels" / source.relative_to(ROOT / "vitconv/kernels")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    faulty = package / "kernels" / module
    text = faulty.read_text()
    assert old in text
    faulty.write_text(text.replace(old, new, 1))
    suite = tmp_path / "interpreted.py"
    suite.write_text(SUITE.read_text())
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tmp_path), "-k", test, str(suite)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.search(r"\d+ failed", done.stdout), done.stdout[-2000:]
    assert "AssertionError" in done.stdout
