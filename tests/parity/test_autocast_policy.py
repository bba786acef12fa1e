"""CUDA autocast's policy on CPU: the dtypes are those that fake CUDA tensors get from torch's own CUDA autocast."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vitconv.hosts.base.host import Spec
from vitconv.parity.autocast import BANNED, HIGH, HIGH_RESULT, LOW, WIDEST, cuda_policy_on_cpu, policy_of, registered
from vitconv.registry import HOSTS, load

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:User provided device_type")
LOWS = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = (
    "timm", "torchvision", "transformers", "transformers, eager", "xformers", "xformers-style", "xformers-style 0.0.9",
)  # fmt: skip


class Recorder(TorchFunctionMode):
    """Note every function called and the dtypes it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[torch.dtype, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        dtypes = tuple(x.dtype for x in tree_leaves(result) if isinstance(x, Tensor))
        if dtypes:
            self.seen.append((getattr(func, "__name__", str(func)), dtypes))
        return result


@contextmanager
def fake_cuda(dtype: torch.dtype) -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        before = torch.get_autocast_dtype("cuda")
        # torch.autocast itself stays off where there is no CUDA.
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)


def faked(module: nn.Module) -> nn.Module:
    """Return the module with fake CUDA tensors for parameters and buffers; call it in `fake_cuda`."""
    module = copy.deepcopy(module)
    for m in module.modules():
        for held, make in ((m._parameters, nn.Parameter), (m._buffers, lambda t: t)):
            for name, t in list(held.items()):
                if t is not None:
                    empty = torch.empty(t.shape, dtype=t.dtype, device="cuda")
                    held[name] = make(empty) if t.is_floating_point() or make is not nn.Parameter else empty
    return module


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_of_a_network_gives_the_dtype_it_gives_on_cuda(name, low, network):
    spec, options = network(name)
    host, _, model = spec.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = load(HOSTS, host).build(Spec(model, options))
    pictures = torch.randn(2, 3, 16, 16)
    with cuda_policy_on_cpu(LOWS[low]) as on, on(), Recorder() as ours:
        built.run(built.module, pictures)
    with fake_cuda(LOWS[low]):
        network_on_cuda, images = faked(built.module), torch.empty(2, 3, 16, 16, device="cuda")
        with Recorder() as theirs:
            built.run(network_on_cuda, images)
    assert len(ours.seen) > 20
    assert ours.seen == theirs.seen
    # Some in low precision, some not: the policy did something.
    assert {d for _, ds in ours.seen for d in ds} >= {torch.float32, LOWS[low]}


def _two(f: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]:
    return f, shapes


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": _two(F.linear, (3, 4), (5, 4)),
    "matmul": _two(torch.matmul, (3, 4), (4, 5)),
    "@": _two(lambda x, y: x @ y, (3, 4), (4, 5)),
    "bmm": _two(torch.bmm, (2, 3, 4), (2, 4, 5)),
    "baddbmm": _two(torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addmm": _two(torch.addmm, (3, 5), (3, 4), (4, 5)),
    "einsum": _two(lambda x, y: torch.einsum("ij,jk->ik", x, y), (3, 4), (4, 5)),
    "conv2d": _two(F.conv2d, (1, 3, 8, 8), (4, 3, 2, 2)),
    "conv1d": _two(F.conv1d, (1, 3, 8), (4, 3, 2)),
    "conv_transpose2d": _two(F.conv_transpose2d, (1, 3, 8, 8), (3, 4, 2, 2)),
    "scaled_dot_product_attention": _two(F.scaled_dot_product_attention, *[(1, 2, 4, 8)] * 3),
    "layer_norm": _two(lambda x: F.layer_norm(x, (4,)), (3, 4)),
    "rms_norm": _two(lambda x: F.rms_norm(x, (4,)), (3, 4)),
    "group_norm": _two(lambda x: F.group_norm(x, 2), (3, 4)),
    "softmax": _two(lambda x: x.softmax(-1), (3, 4)),
    "softmax in float32": _two(lambda x: F.softmax(x, -1, dtype=torch.float32), (3, 4)),
    "log_softmax": _two(lambda x: x.log_softmax(-1), (3, 4)),
    "sum": _two(lambda x: x.sum(), (3, 4)),
    "sum over an axis": _two(lambda x: x.sum(-1), (3, 4)),
    "mean": _two(lambda x: x.mean(-1), (3, 4)),
    "prod": _two(lambda x: x.prod(), (3, 4)),
    "cumsum": _two(lambda x: x.cumsum(-1), (3, 4)),
    "norm": _two(lambda x: x.norm(), (3, 4)),
    "norm over an axis": _two(lambda x: x.norm(dim=-1, keepdim=True), (3, 4)),
    "linalg.vector_norm": _two(torch.linalg.vector_norm, (3, 4)),
    "normalize": _two(lambda x: F.normalize(x, dim=-1), (3, 4)),
    "pow 2": _two(lambda x: x**2, (3, 4)),
    "2 pow": _two(lambda x: 2**x, (3, 4)),
    "pow of tensors": _two(torch.pow, (3, 4), (3, 4)),
    "square": _two(torch.square, (3, 4)),
    "1 / x": _two(lambda x: 1 / x, (3, 4)),
    "x / y": _two(lambda x, y: x / y, (3, 4), (3, 4)),
    "reciprocal": _two(torch.reciprocal, (3, 4)),
    "rsqrt": _two(torch.rsqrt, (3, 4)),
    "sqrt": _two(torch.sqrt, (3, 4)),
    "exp": _two(torch.exp, (3, 4)),
    "log": _two(torch.log, (3, 4)),
    "softplus": _two(F.softplus, (3, 4)),
    "gelu": _two(F.gelu, (3, 4)),
    "gelu_tanh": _two(lambda x: F.gelu(x, approximate="tanh"), (3, 4)),
    "relu": _two(F.relu, (3, 4)),
    "silu": _two(F.silu, (3, 4)),
    "sigmoid": _two(torch.sigmoid, (3, 4)),
    "erf": _two(torch.erf, (3, 4)),
    "dropout": _two(lambda x: F.dropout(x, 0.1, True), (3, 4)),
    "cat": _two(lambda x, y: torch.cat([x, y]), (3, 4), (3, 4)),
    "stack": _two(lambda x, y: torch.stack([x, y]), (3, 4), (3, 4)),
    "add": _two(torch.add, (3, 4), (3, 4)),
    "addcmul": _two(torch.addcmul, (3, 4), (3, 4), (3, 4)),
    "where": _two(lambda x, y: torch.where(x > 0, x, y), (3, 4), (3, 4)),
    "max": _two(lambda x: x.max(-1).values, (3, 4)),
    "interpolate bicubic": _two(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (1, 3, 4, 4)),
    "interpolate bilinear": _two(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 3, 4, 4)),
    "grid_sample": _two(lambda x, g: F.grid_sample(x, g, align_corners=False), (1, 3, 4, 4), (1, 4, 4, 2)),
    "cosine_similarity": _two(F.cosine_similarity, (3, 4), (3, 4)),
    "cdist": _two(torch.cdist, (3, 4), (3, 4)),
    "mse_loss": _two(F.mse_loss, (3, 4), (3, 4)),
    "max_pool2d": _two(lambda x: F.max_pool2d(x, 2), (1, 3, 4, 4)),
    "avg_pool2d": _two(lambda x: F.avg_pool2d(x, 2), (1, 3, 4, 4)),
    "std": _two(lambda x: x.std(-1), (3, 4)),
    "var": _two(lambda x: x.var(-1), (3, 4)),
    "logsumexp": _two(lambda x: x.logsumexp(-1), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize("inputs", ["low", "float32", "mixed"])
def test_operators_give_the_dtypes_they_give_on_cuda(inputs, low):
    """All in one test: a hundred contexts would cost more than they say."""

    def dtypes(count: int) -> list[torch.dtype]:
        kinds = {"low": [LOWS[low]], "float32": [torch.float32], "mixed": [LOWS[low], torch.float32]}[inputs]
        return [kinds[j % len(kinds)] for j in range(count)]

    def given(f: Callable[..., Any], tensors: list[Tensor]) -> Any:
        try:
            return tuple(t.dtype for t in tree_leaves(f(*tensors)) if isinstance(t, Tensor))
        except (RuntimeError, ValueError) as e:
            return type(e).__name__

    ours, theirs = {}, {}
    with cuda_policy_on_cpu(LOWS[low]) as on, on():
        for name, (f, shapes) in OPERATORS.items():
            ours[name] = given(f, [torch.rand(s).to(d) for s, d in zip(shapes, dtypes(len(shapes)), strict=True)])
    with fake_cuda(LOWS[low]):
        for name, (f, shapes) in OPERATORS.items():
            made = [torch.empty(s, dtype=d, device="cuda") for s, d in zip(shapes, dtypes(len(shapes)), strict=True)]
            theirs[name] = given(f, made)
    assert ours == theirs
    assert sum(isinstance(d, tuple) for d in ours.values()) > 50


def test_the_table_has_every_operator_with_a_cuda_policy_and_no_other():
    table = LOW | HIGH | HIGH_RESULT | WIDEST | BANNED
    assert registered("AutocastCUDA") == table
    assert len(table) == sum(map(len, (LOW, HIGH, HIGH_RESULT, WIDEST, BANNED)))
    assert policy_of("softmax.int") == "high-result"
    assert policy_of("cat") is None


def test_afterwards_cpu_autocast_is_torchs_own_again():
    x = torch.randn(3, 4)

    def dtype() -> torch.dtype:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.layer_norm(x.bfloat16(), (4,)).dtype

    before = dtype(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with cuda_policy_on_cpu(torch.bfloat16) as on, on():
        assert F.layer_norm(x.bfloat16(), (4,)).dtype == torch.float32
        assert torch.is_autocast_enabled("cuda")
    assert (dtype(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == before
    # That is why it is no stand-in.
    assert before[0] == torch.bfloat16


def test_a_part_with_autocast_switched_off_is_left_alone():
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    with cuda_policy_on_cpu(torch.float16) as on, on():
        assert F.linear(x, w).dtype == torch.float16
        with torch.autocast("cuda", enabled=False):
            assert F.linear(x, w).dtype == torch.float32
        assert F.linear(x, w).dtype == torch.float16


def test_gradients_come_back_in_the_parameters_dtype():
    x, w = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    with cuda_policy_on_cpu(torch.bfloat16) as on:
        with on():
            y = F.linear(x, w)
        y.backward(torch.ones_like(y))
    assert w.grad is not None
    assert w.grad.dtype == torch.float32
    assert torch.equal(w.grad, w.grad.bfloat16().float())


def test_double_is_never_cast():
    x = torch.randn(3, 4, dtype=torch.float64)
    with cuda_policy_on_cpu(torch.float16) as on, on():
        assert F.linear(x, x).dtype == torch.float64


def test_an_operator_that_cuda_bans_is_refused():
    p = torch.rand(3)
    with cuda_policy_on_cpu(torch.float16) as on, on(), pytest.raises(RuntimeError, match="unsafe under autocast"):
        F.binary_cross_entropy(p, p)


@pytest.mark.parametrize("table", ["LOW", "HIGH"])
def test_a_wrong_table_would_be_seen(table, monkeypatch):
    from vitconv.parity import autocast

    monkeypatch.setattr(autocast, table, getattr(autocast, table) - {"linear", "layer_norm"})
    x, w = torch.randn(3, 4).half(), torch.randn(5, 4)
    with cuda_policy_on_cpu(torch.float16) as on, on(), Recorder() as ours:
        F.layer_norm(x, (4,))
        F.linear(x.float(), w)
    with fake_cuda(torch.float16), Recorder() as theirs:
        F.layer_norm(torch.empty(3, 4, dtype=torch.float16, device="cuda"), (4,))
        F.linear(torch.empty(3, 4, device="cuda"), torch.empty(5, 4, device="cuda"))
    expected = [s for s in theirs.seen if s[0] in ("layer_norm", "linear")]
    assert [s for s in ours.seen if s[0] in ("layer_norm", "linear")] != expected


@pytest.mark.parametrize("reentrant", [False, True], ids=["not-reentrant", "reentrant"])
@pytest.mark.parametrize("switched_off", [False, True], ids=["on", "off-for-this-part"])
@pytest.mark.parametrize("low", LOWS)
def test_a_checkpointed_part_is_computed_again_as_it_was(low: str, switched_off: bool, reentrant: bool):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    seen: list[torch.dtype] = []
    layer = torch.nn.Linear(4, 4)

    def part(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        seen.append(y.dtype)
        # What is computed again stops where nothing more is needed: the product needs y.
        return y * y

    x = torch.randn(2, 4, requires_grad=True)
    with cuda_policy_on_cpu(LOWS[low]) as on:
        with on():
            if switched_off:
                torch.set_autocast_enabled("cuda", False)
            y = checkpoint(part, x, use_reentrant=reentrant)
        y.float().sum().backward()
    expected = torch.float32 if switched_off else LOWS[low]
    assert seen == [expected, expected]
