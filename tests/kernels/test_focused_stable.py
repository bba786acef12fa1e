"""Hold the bounded form against the published ones in float64, its backward against autograd, its bounds in float16."""

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.kernels import tolerance
from vitconv.kernels.focused import stable
from vitconv.kernels.focused.attention import Focus, focused_attention, plan
from vitconv.kernels.focused.autocast import emulate_cuda_autocast
from vitconv.kernels.focused.variants import original, upstream_fix

HALF = 65504.0
# Two float64 formulations of one function, twenty operations apart.
EXACT = 1e-13


def draw(b, t, s, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, t, d), (b, s, d), (b, s, d), (1, 1, d), (1, s, d))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def with_gradients(function, tensors, grad):
    leaves = [x.detach().requires_grad_() for x in tensors]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))]


@pytest.mark.parametrize("power", [1, 2, 2.5, 3, 4, 8, 12], ids=lambda p: f"p{p}")
@pytest.mark.parametrize(("eps_mode", "published"), [("sum", original), ("mean", upstream_fix)], ids=["sum", "mean"])
@pytest.mark.parametrize("eps", [1e-6, 1e-2], ids=["eps 1e-6", "eps 1e-2"])
def test_equals_the_published_function_forward_and_backward(power, eps_mode, published, eps):
    tensors = draw(2, 49, 20, 24)
    grad = torch.randn(2, 49, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = {"heads": 3, "power": power, "eps": eps}
    expected = with_gradients(lambda *x: published(*x, **settings), tensors, grad)
    got = with_gradients(lambda *x: focused_attention(*x, eps_mode=eps_mode, **settings), tensors, grad)
    for g, e in zip(got, expected, strict=True):
        assert tolerance.error(g, e) < EXACT * max(1, power)


@pytest.mark.parametrize("power", [1, 2.5, 3, 8], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("with_position", [True, False], ids=["position", "no position"])
def test_gradcheck(power, with_position):
    q, k, v, scale, position = (x.requires_grad_() for x in draw(1, 5, 4, 6, seed=3))
    tensors = (q, k, v, scale, position) if with_position else (q, k, v, scale)

    def function(q, k, v, scale, position=None):
        return focused_attention(q, k, v, scale, position, heads=2, power=power, eps=1e-2)

    assert torch.autograd.gradcheck(function, tensors)


def test_gradcheck_sees_a_planted_fault(monkeypatch):
    tensors = [x.requires_grad_() for x in draw(1, 5, 4, 6, seed=3)]
    right = stable._feature_backward
    monkeypatch.setattr(stable, "_feature_backward", lambda h, total, rows, p: right(h, total * 0.5, rows, p))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda *x: focused_attention(*x, heads=2, power=3, eps=1e-2), tensors)


def test_euler_identity_of_the_feature_map():
    x = draw(2, 7, 7, 24)[0]
    soft = torch.ones(1, 1, 24, dtype=torch.float64)
    rows = stable.row_statistics(x, soft, 3)
    h = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    total = h.sum(dim=-1, keepdim=True)
    got = stable._feature_backward(h, total, rows, 3).sum(dim=-1, keepdim=True)
    assert (got - total).abs().max() < 1e-12


KINDS = ("plain", "hot", "tiny", "dead head", "dead tokens", "all dead", "largest")


def half_inputs(kind, tokens, d, heads):
    generator = torch.Generator().manual_seed(tokens + d)
    q, k, v = (torch.randn(1, tokens, d, generator=generator) for _ in range(3))
    e = d // heads
    if kind == "hot":
        q, k, v = q * 100, k * 100, v * 100
    if kind == "tiny":
        q, k, v = q * 1e-6, k * 1e-6, v * 1e-6
    if kind == "dead head":
        q[..., :e], k[..., -e:] = -q[..., :e].abs(), -k[..., -e:].abs()
    if kind == "dead tokens":
        q[:, 0], k[:, -1] = -1.0, -1.0
    if kind == "all dead":
        q, k = -q.abs(), -k.abs()
    if kind == "largest":
        q, k, v = (torch.sign(x) * HALF for x in (q, k, v))
    grad = torch.randn(1, tokens, d, generator=generator) * 6.5536
    rest = [torch.zeros(1, 1, d), torch.zeros(1, tokens, d)]
    return [q.half(), k.half(), v.half(), *rest], grad.half()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [3, 12], ids=lambda p: f"p{p}")
@pytest.mark.parametrize(
    ("tokens", "d", "heads"), [(49, 96, 3), (784, 64, 2), (64, 512, 2)], ids=["49x32", "784x32", "64x256"]
)
@pytest.mark.parametrize("eps_mode", ["sum", "mean"])
def test_float16_is_finite_and_accurate_under_a_loss_scale(kind, power, tokens, d, heads, eps_mode):
    tensors, grad = half_inputs(kind, tokens, d, heads)
    run = lambda *x: focused_attention(*x, heads=heads, power=power, eps_mode=eps_mode)  # noqa: E731
    got = with_gradients(run, tensors, grad)
    exact = with_gradients(run, [x.double() for x in tensors], grad)
    for name, g, e in zip(("out", "q", "k", "v", "scale", "position"), got, exact, strict=True):
        # A gradient beyond float16 in exact arithmetic is the loss scale's to see: it must arrive as inf.
        asked = e.abs() <= HALF * (1 if g.dtype == torch.float16 else 1e30)
        assert torch.isfinite(g[asked]).all(), name
        assert not torch.isnan(g).any(), name
    # One rounding to float16 (2^-11, or half the smallest subnormal), and the core's own bound relative to max |v|.
    bound = 2**-11 * exact[0].abs() + 2**-25 + 1e-5 * tensors[2].abs().max()
    assert ((got[0] - exact[0]).abs() <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "largest", "dead head"])
@pytest.mark.parametrize("power", [3, 12], ids=lambda p: f"p{p}")
def test_float16_is_finite_at_65536_tokens(kind, power):
    tensors, grad = half_inputs(kind, 65536, 32, 1)
    for g in with_gradients(lambda *x: focused_attention(*x, heads=1, power=power), tensors, grad):
        assert not torch.isnan(g).any()
        assert kind == "largest" or torch.isfinite(g).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_intermediate_is_bounded(kind):
    tensors, _ = half_inputs(kind, 256, 96, 3)
    q, k, v, scale, _ = (x.float() for x in tensors)
    soft = torch.nn.functional.softplus(scale)
    keys = stable.gather_keys(stable.row_statistics(k, soft, 8), v, 3, 8)
    queries = stable.weigh_queries(stable.row_statistics(q, soft, 8), keys.u, 3, 8, 1e-6)
    largest = v.abs().max() * (1 + 1e-5)
    assert (keys.p.sum(dim=-2) <= 1 + 1e-5).all()
    assert (keys.p >= 0).all()
    assert (keys.s.abs() <= largest).all()
    total = queries.weight.sum(dim=-1, keepdim=True) + queries.rest
    assert (total - 1).abs().max() < 1e-5
    assert ((queries.weight @ keys.s).abs() <= largest).all()


def test_autocast_and_its_emulation_leave_the_core_alone():
    tensors, grad = half_inputs("hot", 196, 96, 3)
    run = lambda *x: focused_attention(*x, heads=3, power=3)  # noqa: E731
    plain = with_gradients(run, tensors, grad)
    with emulate_cuda_autocast():
        emulated = with_gradients(run, tensors, grad)
    with torch.autocast("cpu", torch.bfloat16):
        cast = with_gradients(run, tensors, grad)
    for p, e, c in zip(plain, emulated, cast, strict=True):
        assert torch.equal(p, e)
        assert torch.equal(p, c)


def test_eps_zero_and_nothing_alive_gives_zero_not_nan():
    q = torch.full((1, 3, 8), -1.0)
    y = focused_attention(q, q, torch.ones(1, 3, 8), torch.zeros(1, 1, 8), None, heads=2, power=12, eps=0.0)
    assert torch.isfinite(y).all()


def test_add_is_rounded_once_with_the_output():
    q, k, v, scale, position = draw(1, 30, 30, 32)
    q, k, v = q.half(), k.half(), v.half()
    add = torch.randn(1, 30, 32, generator=torch.Generator().manual_seed(8)).half()
    exact = focused_attention(q.double(), k.double(), v.double(), scale, position, heads=2) + add.double()
    got = focused_attention(q, k, v, scale, position, heads=2, add=add)
    assert (got.double() - exact).abs().max() <= 2**-11 * exact.abs().max()
    twice = focused_attention(q, k, v, scale, position, heads=2) + add
    assert tolerance.error(got, exact) < tolerance.error(twice, exact)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "width 24 does not divide into 5 heads"),
        ({"eps_mode": "both"}, "eps_mode 'both'"),
        ({"power": 0}, "expected power > 0"),
        ({"backend": "cuda"}, "expected one of auto, torch, triton"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_settings_that_do_not_fit_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        focused_attention(*draw(1, 4, 4, 24), **{"heads": 3, **change})


def test_shapes_that_do_not_fit_are_all_named():
    q, k, v, scale, position = draw(1, 4, 4, 24)
    with pytest.raises(UsageError, match=r"q \[1, 4, 24\], k \[1, 4, 12\].*scale \[1, 1, 12\].*position \[1, 3, 24\]"):
        focused_attention(q, k[..., :12], v, scale[..., :12], position[:, :3], heads=3)


def test_plan_names_every_reason():
    q = torch.zeros(1, 4, 200, dtype=torch.float64)
    choice = plan(q, q, q.float(), torch.zeros(1, 1, 200), None, Focus(heads=2))
    assert choice.path == "torch"
    for reason in ("float64", "head width 100 is above 64", "q, k, v have dtypes"):
        assert reason in choice.why
    with pytest.raises(Refused, match="Use backend 'auto'"):
        plan(q, q, q, torch.zeros(1, 1, 200), None, Focus(heads=2, backend="triton"))
