"""Hold the published variants against each other, and settle the thread's claims with numbers."""

import pytest
import torch

from vitconv.errors import UsageError
from vitconv.kernels.focused import claims
from vitconv.kernels.focused.autocast import emulate_cuda_autocast
from vitconv.kernels.focused.variants import VARIANTS, features, simplified, variant

SAME = [name for name, v in VARIANTS.items() if v.same_function]


def draw(t=30, s=30, d=24, dtype=torch.float64, std=1.0):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, d, generator=generator, dtype=dtype) * std for n in (t, s, s))
    return (
        q,
        k,
        v,
        torch.randn(1, 1, d, generator=generator, dtype=dtype),
        torch.randn(1, s, d, generator=generator).to(dtype),
    )


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("t", "s"), [(30, 30), (6, 6), (40, 10)], ids=["kv first", "qk first", "fewer keys"])
@pytest.mark.parametrize("power", [3, 8], ids=lambda p: f"p{p}")
def test_all_variants_are_one_function_at_eps_zero(name, t, s, power):
    tensors = draw(t, s)
    expected = VARIANTS["original"].run(*tensors, heads=3, power=power, eps=0.0)
    got = VARIANTS[name].run(*tensors, heads=3, power=power, eps=0.0)
    assert got.shape == (2, t, 24)
    assert (got - expected).abs().max() < 1e-12


def test_an_unknown_variant_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="known: original, original-unguarded, autocast-off, divided, simplified"):
        variant("fast")


def test_the_guard_changes_no_value_but_the_range():
    x = draw()[0]
    scale = torch.zeros(1, 1, 24, dtype=torch.float64)
    guarded, plain = (features(x, None, scale, 8, guard=guard) for guard in (True, False))
    assert torch.allclose(guarded, plain, rtol=1e-12)
    dead = torch.full((1, 1, 24), -1.0)
    guarded, plain = (features(dead, None, scale.float(), 8, guard=guard) for guard in (True, False))
    assert torch.isfinite(guarded).all()
    assert torch.isnan(plain).all()


def test_the_simplified_module_ignores_scale_and_position():
    q, k, v, scale, position = draw()
    one = simplified(q, k, v, scale, position, heads=3)
    assert torch.equal(one, simplified(q, k, v, scale * 7, None, heads=3))
    assert (simplified(q, k, v + 1, scale, None, heads=3) - one).abs().max() > 0.1


def test_emulated_autocast_gives_the_dtypes_of_the_gpu():
    q, k = (x.float() for x in draw()[:2])
    with emulate_cuda_autocast():
        assert (q @ k.transpose(1, 2)).dtype == torch.float16
        assert torch.einsum("btc,bsc->bts", q, k).dtype == torch.float16
        for wide in (q.half() ** 3, q.half().norm(dim=-1), q.half().sum(dim=1), 1 / q.half()):
            assert wide.dtype == torch.float32
        assert (q.half().mean(dim=1).dtype, torch.relu(q.half()).dtype) == (torch.float16, torch.float16)
        with torch.autocast("cuda", enabled=False):
            assert (q @ k.transpose(1, 2)).dtype == torch.float32
    assert (q @ k.transpose(1, 2)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")


def test_q_norm_cancels_exactly_and_k_norm_does_not():
    assert claims.drop_norm("q", eps=0.0) < 1e-14
    assert claims.drop_norm("q", eps=1e-6) < 1e-4
    assert claims.drop_norm("q", eps=1e-3) > 1e-3
    assert 0.3 < claims.drop_norm("k", eps=0.0) < 0.6


def test_dividing_v_is_exact_and_its_eps_is_not():
    assert claims.division(1e-6) < 1e-15
    assert 1e-6 < claims.division(1e-3) < 1e-5
    assert claims.division(1e-3, std=0.02) > 5e-3


def test_eps_beside_a_mean_is_not_eps_beside_a_sum():
    assert claims.sum_for_mean(3) < 1e-5
    assert claims.sum_for_mean(8) > 10 * claims.sum_for_mean(6) > 100 * claims.sum_for_mean(3)


def test_norms_per_head_are_another_function():
    assert claims.norms_per_head(3) > 0.1


def test_the_denominator_overflows_before_kv():
    small, large = claims.largest(196), claims.largest(3136)
    assert large["den"] > 65504 > 100 * large["kv"]
    assert large["den"] / small["den"] > 10
    assert large["kv"] / small["kv"] < 6
