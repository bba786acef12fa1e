"""Run the kernels on a GPU, where there is one: against float64, twice bit-equal, fresh memory poisoned."""

import pytest
import torch

from vitconv.kernels import bench
from vitconv.kernels.bench_cases import cases
from vitconv.kernels.focused.attention import Focus, focused_attention
from vitconv.kernels.focused.attention import plan as plan_focused
from vitconv.kernels.layer_norm.module import plan as plan_norm

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("index", range(3), ids=["focused", "norm", "epilogue"])
def test_kernel_agrees_with_float64_and_repeats(index):
    case = list(cases(tiny=True, compiled=False))[index]
    outcome = bench.check(case, torch.device("cuda"))
    assert outcome["passed"], outcome


def test_the_kernels_are_used():
    x, scale = torch.zeros(1, 49, 64, device="cuda", dtype=torch.float16), torch.zeros(1, 1, 64, device="cuda")
    assert plan_focused(x, x, x, scale, None, Focus(2)).triton
    assert plan_norm(x, None, None).triton


def test_more_windows_than_a_second_grid_axis_could_hold():
    q, k, v = (torch.randn(70_000, 16, 32, device="cuda", dtype=torch.float16) for _ in range(3))
    y = focused_attention(q, k, v, torch.zeros(1, 1, 32, device="cuda"), None, heads=1)
    plain = focused_attention(
        q[-8:], k[-8:], v[-8:], torch.zeros(1, 1, 32, device="cuda"), None, heads=1, backend="torch"
    )
    assert (y[-8:] - plain).abs().max() < 1e-2
