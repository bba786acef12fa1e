"""Run the Triton kernels under the interpreter; collected only by name, in a process of its own (test_interpreted.py).

TRITON_INTERPRET=1 must be set before triton is first imported, and the same process cannot compile. Buffers that the
launchers allocate are filled with NaN, so that a kernel which leaves an element unwritten is seen.
"""

import pytest
import torch

from vitconv.errors import Refused
from vitconv.kernels import bench, tolerance
from vitconv.kernels.bench_cases import corners
from vitconv.kernels.epilogue.module import epilogue
from vitconv.kernels.epilogue.module import plan as plan_epilogue
from vitconv.kernels.epilogue.philox import keep_mask
from vitconv.kernels.focused.attention import Focus, focused_attention
from vitconv.kernels.focused.attention import plan as plan_focused
from vitconv.kernels.layer_norm.module import layer_norm

# numpy warns where half arithmetic overflows to inf or divides 0 by 0 in lanes that are masked away.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill every fresh buffer with NaN."""
    plain, plain_like = torch.empty, torch.empty_like

    def poison(tensor):
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(plain(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(plain_like(*a, **k)))


def test_fresh_buffers_are_poisoned():
    assert torch.empty(3).isnan().all()
    assert torch.empty_like(torch.ones(3)).isnan().all()


def three_ways(function, tensors, grad):
    """Run by Triton, by the reference, and by the reference in float64; outputs and all gradients of each."""

    def run(backend, leaves, cotangent):
        leaves = [x.detach().requires_grad_() for x in leaves]
        y = function(*leaves, backend=backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(y.dtype))]

    return (
        run("triton", tensors, grad),
        run("torch", tensors, grad),
        run("torch", [x.double() for x in tensors], grad.double()),
    )


def hold(names, floors, got, reference, exact):
    for name, floor, g, r, e in zip(names, floors, got, reference, exact, strict=True):
        measured, limit = tolerance.error(g, e), tolerance.allowed(tolerance.error(r, e), floor)
        assert measured <= limit, f"{name}: {measured:.2e} > {limit:.2e}"


FOCUSED = [
    pytest.param(F32, 2, 49, 49, 48, 2, 3, "", id="fp32 window of 49"),
    pytest.param(F32, 1, 17, 17, 24, 2, 2.5, "", id="fp32 head width 12, p 2.5"),
    pytest.param(F16, 1, 100, 25, 72, 3, 3, "", id="fp16 head width 24, fewer keys"),
    pytest.param(F16, 2, 70, 70, 64, 1, 8, "", id="fp16 head width 64, p 8"),
    pytest.param(F16, 1, 49, 49, 64, 2, 4, "head", id="fp16 dead head, p 4"),
    pytest.param(F16, 1, 49, 49, 64, 2, 8, "tokens", id="fp16 dead tokens, p 8"),
    pytest.param(F16, 1, 33, 33, 64, 2, 12, "large", id="fp16 inputs to 60000, p 12"),
    pytest.param(F16, 2, 40, 40, 64, 2, 3, "loss scale", id="fp16 loss scale 65536"),
    pytest.param(F16, 1, 40, 40, 64, 2, 3, "strided", id="fp16 views of one qkv"),
    pytest.param(F16, 1, 1, 130, 40, 2, 3, "", id="fp16 one query, head width 20, keys of many blocks"),
    pytest.param(F16, 2, 130, 7, 15, 3, 2, "", id="fp16 head width 5, queries of many blocks"),
    pytest.param(F32, 1, 65, 65, 32, 1, 12, "tokens", id="fp32 dead tokens, p 12"),
    pytest.param(F32, 1, 20, 20, 24, 2, 3, "transposed", id="fp32 channels apart in memory"),
    pytest.param(F32, 1, 20, 20, 24, 2, 40, "", id="fp32 p 40"),
    pytest.param(F32, 1, 20, 20, 32, 1, 8, "channel", id="fp32 one channel outweighs the others"),
    pytest.param(BF16, 1, 50, 50, 64, 2, 3, "", id="bf16"),
    pytest.param(BF16, 1, 70, 35, 72, 3, 3, "", id="bf16 head width 24, fewer keys"),
]


@pytest.mark.parametrize(("dtype", "b", "t", "s", "d", "heads", "power", "kind"), FOCUSED)
def test_focused_attention(dtype, b, t, s, d, heads, power, kind):
    # Both published eps conventions take turns over the cases.
    eps_mode = "sum" if t in (17, 49, 70) else "mean"
    generator = torch.Generator().manual_seed(t + d)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    q, k, v = draw(b, t, d) * 2, draw(b, s, d) * 2, draw(b, s, d)
    if kind == "head":
        q[..., : d // heads], k[..., d // heads :] = -q[..., : d // heads].abs(), -k[..., d // heads :].abs()
    if kind == "tokens":
        q[:, ::5], k[:, 1::7] = -q[:, ::5].abs(), -k[:, 1::7].abs()
    if kind == "channel":
        q = q.abs() * 1e-3
        q[..., 3] = 5.0
    if kind == "large":
        q, k, v = (x.clamp(-3, 3) * 2e4 for x in (q, k, v))
    scale, position = draw(1, 1, d), draw(1, s, d)
    add, grad = draw(b, d, t).transpose(1, 2), draw(b, t, d) * (6.5 if kind == "loss scale" else 1.0)
    if kind == "strided":
        q, k, v = torch.cat([q, k, v], dim=-1).to(dtype).chunk(3, dim=-1)
        grad = grad.transpose(1, 2).contiguous().transpose(1, 2)

    def function(q, k, v, scale, position, add, *, backend):
        return focused_attention(
            q, k, v, scale, position, heads=heads, power=power, eps_mode=eps_mode, add=add, backend=backend
        )

    if kind == "transposed":
        q, k, v, position, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, position, grad))
    tensors = [q.to(dtype), k.to(dtype), v.to(dtype), scale, position, add.to(dtype)]
    got, reference, exact = three_ways(function, tensors, grad.to(dtype))
    for tensor in (*got, *reference):
        assert torch.isfinite(tensor).all()
    fore = tolerance.floor(dtype, interpreted=True, focused="forward")
    back = tolerance.floor(dtype, interpreted=True, focused="backward")
    assert torch.equal(got.pop(), reference.pop())
    exact.pop()
    hold(("out", "q", "k", "v", "scale", "position"), [fore, *[back] * 5], got, reference, exact)


@pytest.mark.parametrize("keys", [1, 20], ids=["one key", "one key outweighs the others"])
def test_focused_attention_of_one_key_keeps_an_absolute_bound(keys):
    """dq, and with one key dk, are then far below their usual size; they are off by what a usual one is off by."""
    q, k, v, grad = (torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(4))
    k[:, 3] = (k[:, 3].abs() + 0.5) * 1e6
    scale = torch.zeros(1, 1, 64)

    def function(q, k, v, *, backend):
        return focused_attention(q, k, v, scale.to(q.dtype), None, heads=2, power=3, backend=backend)

    got, _, exact = three_ways(function, [q, k[:, :keys], v[:, :keys]], grad)
    usual = three_ways(function, [q, k.clamp(max=2.0), v], grad)[2]
    for name, g, e, size in zip(("out", "q", "k", "v"), got, exact, usual, strict=True):
        assert (g.double() - e).norm() < 2e-6 * size.norm(), name
    assert exact[1].norm() < 1e-2 * usual[1].norm()


@pytest.mark.parametrize("dtype", [F32, F16], ids=["fp32", "fp16"])
def test_focused_attention_of_programs_that_loop_over_many_blocks(monkeypatch, dtype):
    """On a GPU with many heads a program takes several blocks of tokens; here there are too few heads for that."""
    from vitconv.kernels.focused import launch

    generator = torch.Generator().manual_seed(3)
    q, k, v, position = (torch.randn(1, n, 24, generator=generator).to(dtype) for n in (150, 140, 140, 140))
    scale, grad = torch.randn(1, 1, 24, generator=generator), torch.randn(1, 150, 24, generator=generator).to(dtype)
    tensors = [q, k, v, scale, position.float()]

    def function(q, k, v, scale, position, *, backend):
        return focused_attention(q, k, v, scale, position, heads=2, power=3, backend=backend)

    assert launch.split(140, 32, 2)[0] == 5
    monkeypatch.setattr(launch, "PROGRAMS", 4)
    assert launch.split(140, 32, 2) == (2, 96)
    got, reference, exact = three_ways(function, tensors, grad)
    fore, back = (tolerance.floor(dtype, interpreted=True, focused=way) for way in ("forward", "backward"))
    hold(("out", "q", "k", "v", "scale", "position"), [fore, *[back] * 5], got, reference, exact)


def test_focused_attention_of_one_key_without_eps_returns_the_value():
    q, k, v, grad = (torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(i)) for i in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    y = focused_attention(*leaves, torch.zeros(1, 1, 32), None, heads=2, eps=0.0, backend="triton")
    d_q, d_k, d_v = torch.autograd.grad(y, leaves, grad)
    assert tolerance.error(y.detach(), v.detach().double()) < tolerance.floor(F32)
    assert tolerance.error(d_v, grad.double()) < tolerance.floor(F32)
    # One value to choose from: q and k do not matter, up to rounding of terms of order one over y.
    assert max(d_q.abs().max(), d_k.abs().max()) < 1e-3 * grad.abs().max()


def test_focused_attention_needs_no_position_and_no_branch():
    q, k, v = (torch.randn(1, 20, 32, generator=torch.Generator().manual_seed(i)) for i in range(3))
    scale = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(9))
    run = lambda backend: focused_attention(q, k, v, scale, None, heads=2, backend=backend)  # noqa: E731
    assert tolerance.error(run("triton"), run("torch").double()) < tolerance.floor(F32)


def test_focused_attention_says_that_it_runs():
    x, scale = torch.randn(1, 4, 32), torch.zeros(1, 1, 32)
    choice = plan_focused(x, x, x, scale, None, Focus(2, backend="triton"))
    assert str(choice) == "focused attention: triton (asked for)"
    with pytest.raises(Refused, match="head width 96 is above 64"):
        plan_focused(x.repeat(1, 1, 3), x.repeat(1, 1, 3), x.repeat(1, 1, 3), scale, None, Focus(1, backend="triton"))


NORM = [
    pytest.param((3, 197, 96), F32, F32, F32, id="fp32 591 rows of 96"),
    pytest.param((1, 768), F32, F32, F32, id="fp32 one row"),
    pytest.param((7, 100), F16, F16, F16, id="fp16 width 100"),
    pytest.param((5, 1408), F16, F32, F16, id="fp16 input, fp32 weight, width 1408"),
    pytest.param((37, 197), F32, F32, F16, id="fp32 input emits fp16, odd width"),
    pytest.param((9, 384), F32, F32, BF16, id="fp32 input emits bf16"),
    pytest.param((4, 192), BF16, F32, F32, id="bf16 input emits fp32"),
    pytest.param((2, 8192), BF16, BF16, BF16, id="bf16 width 8192"),
    pytest.param((3, 3), F32, F32, F32, id="fp32 width 3"),
    pytest.param((1, 13), F16, F16, F16, id="fp16 one row of 13"),
    pytest.param((300, 101), BF16, F16, F32, id="bf16 300 rows of 101, fp16 weight, fp32 out"),
    pytest.param((2, 8192), F32, F16, F16, id="fp32 width 8192, fp16 weight and out"),
    pytest.param((3, 8191), F16, BF16, F16, id="fp16 width 8191, bf16 weight"),
    pytest.param((130, 48), F16, F32, F32, id="fp16 130 rows emit fp32"),
]


@pytest.mark.parametrize(("shape", "dtype", "weights", "out"), NORM)
@pytest.mark.parametrize("kind", ["plain", "mean 1000 std", "strided", "transposed", "bare"])
def test_layer_norm(shape, dtype, weights, out, kind):
    generator = torch.Generator().manual_seed(shape[-1])
    d = shape[-1]
    x = torch.randn(*shape, generator=generator) * 2 + (2000 if kind == "mean 1000 std" else 3)
    x = x.to(dtype)
    if kind == "strided":
        x = torch.cat([x, x], dim=-1)[..., :d]
    weight, bias = (torch.randn(d, generator=generator).to(weights) for _ in range(2))
    weight[0] = 0
    grad = torch.randn(*shape, generator=generator).to(out)
    if kind == "transposed":
        x, grad = (t.transpose(0, -1).contiguous().transpose(0, -1) for t in (x, grad))
    tensors = [x] if kind == "bare" else [x, weight, bias]

    def function(x, weight=None, bias=None, *, backend):
        wide = torch.float64 if x.dtype == torch.float64 else out
        return layer_norm(x, weight, bias, 1e-6, out_dtype=wide, backend=backend)

    got, reference, exact = three_ways(function, tensors, grad)
    assert got[0].dtype == out
    floors = [tolerance.floor(g.dtype, interpreted=True) for g in got]
    hold(("y", "dx", "dw", "db")[: len(got)], floors, got, reference, exact)


EPILOGUE = [
    pytest.param((5, 7, 100), F32, "erf", 0.3, id="fp32 erf"),
    pytest.param((1, 13), F32, "tanh", 0.0, id="fp32 tanh, one row of 13"),
    pytest.param((19, 384), F16, "tanh", 0.1, id="fp16 tanh"),
    pytest.param((3, 1027), F16, "erf", 0.9, id="fp16 erf, width 1027"),
    pytest.param((9, 96), BF16, "erf", 0.5, id="bf16 erf"),
    pytest.param((1, 1), F32, "erf", 0.0, id="fp32 one element"),
    pytest.param((130, 33), BF16, "tanh", 0.2, id="bf16 tanh, 130 rows of 33"),
    pytest.param((2, 8192), F16, "erf", 0.1, id="fp16 width 8192"),
]


@pytest.mark.parametrize(("shape", "dtype", "activation", "p"), EPILOGUE)
@pytest.mark.parametrize("kind", ["plain", "strided", "transposed"])
def test_epilogue(shape, dtype, activation, p, kind):
    generator = torch.Generator().manual_seed(shape[-1])
    x = (torch.randn(*shape, generator=generator) * 2).to(dtype)
    if kind == "strided":
        x = torch.cat([x, x], dim=-1)[..., : shape[-1]]
    bias, grad = torch.randn(shape[-1], generator=generator), torch.randn(*shape, generator=generator).to(dtype)
    if kind == "transposed":
        x, grad = (t.transpose(0, -1).contiguous().transpose(0, -1) for t in (x, grad))

    def function(x, bias, *, backend):
        return epilogue(x, bias, activation=activation, p=p, seed=2**40 + 17, backend=backend)

    got, reference, exact = three_ways(function, [x, bias], grad)
    # One mask: what one drops the other has not, but for values that half precision may round to zero.
    assert (got[0] + reference[0]).abs()[(got[0] == 0) != (reference[0] == 0)].lt(1e-6).all()
    floors = [tolerance.floor(dtype, interpreted=True), tolerance.floor(dtype, interpreted=True), tolerance.floor(F32)]
    hold(("y", "dx", "db"), floors, got, reference, exact)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (5, 13), (40, 100), (2, 4097)])
@pytest.mark.parametrize("p", [1e-3, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**62 + 7])
def test_what_is_dropped_is_the_plain_philox_mask(rows, columns, p, seed):
    # One everywhere, so that a zero is a dropped element.
    y = epilogue(torch.full((rows, columns), 9.0), None, p=p, seed=seed, backend="triton")
    assert torch.equal(y != 0, keep_mask(rows, columns, p, seed))


def test_epilogue_without_bias_and_its_refusal():
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    run = lambda backend: epilogue(x, p=0.2, seed=5, backend=backend)  # noqa: E731
    assert tolerance.error(run("triton"), run("torch").double()) < tolerance.floor(F32)
    assert "drops everything" in str(plan_epilogue(x, None, 1.0).why)


@pytest.mark.parametrize(
    "case", [c for c in corners(backend="triton") if c.out_dtype != BF16], ids=lambda c: f"{c.kernel} {c.label}"
)
def test_what_the_benchmark_checks_on_a_card_passes(case):
    outcome = bench.check(case, torch.device("cpu"))
    assert outcome["passed"], outcome
