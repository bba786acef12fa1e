"""CUDA autocast's dtype policy on CPU tensors.

torch's own CPU autocast runs other operators in low precision (norms, softmax, powers), so it is no stand-in. Autocast
is a layer of kernels in torch's dispatcher, one per operator; here the CPU layer gets kernels with CUDA's policy while
a context lasts, so operators inside other operators, and inside modules written in C++, are met too.

Source: pytorch/pytorch, aten/src/ATen/autocast_mode.h (the lists) and autocast_mode.cpp (casts), 2.14.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vitconv.hosts.base.autocasts import asked


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Run in the low precision.
LOW = _words(
    "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d",
    "conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv",
    "linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention",
    "scaled_dot_product_attention cudnn_convolution cudnn_convolution_transpose _cudnn_rnn",
)
# Run in float32: the inputs are cast.
HIGH = _words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar",
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm",
    "frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss",
    "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss",
    "mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss",
    "multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp linalg_matrix_sqrth",
    "norm.Scalar norm.ScalarOpt_dim upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d",
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d",
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)
# Run with the result in float32, unless the caller names a dtype.
HIGH_RESULT = _words(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm",
    "linalg_matrix_norm.str_ord sum sum.dim_IntList",
)
# Run in the widest floating dtype of the inputs.
WIDEST = _words(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add",
)
BANNED = frozenset({"binary_cross_entropy"})

_CPU = torch._C.DispatchKey.AutocastCPU  # noqa: SLF001


def policy_of(name: str) -> str | None:
    """Return low, high, high-result, widest or banned for an operator such as `softmax.int`; None: left alone."""
    table = {"low": LOW, "high": HIGH, "high-result": HIGH_RESULT, "widest": WIDEST, "banned": BANNED}
    return next((policy for policy, ops in table.items() if name in ops), None)


def registered(key: str) -> set[str]:
    """Return the operators with an autocast kernel of torch's own, for the key AutocastCUDA or AutocastCPU."""
    listed: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key(key)  # noqa: SLF001
    return {name.removeprefix("aten::") for name in listed if name.startswith("aten::")}


@contextmanager
def cuda_policy_on_cpu(dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """Give CPU autocast the policy of CUDA's while the context lasts; yield what switches it on, as a context.

    `dtype`: float16 or bfloat16. While switched on, code that asks whether CUDA autocast is on, and in which dtype,
    hears yes; where it switches CUDA autocast off for a part of the network, nothing is cast there. Not emulated: one
    cast shared by several uses of a weight, which affects only the sum of its gradients.

    The kernels are the process's, so no other thread may use CPU autocast meanwhile.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in sorted(registered("AutocastCUDA") | registered("AutocastCPU")):
                base, _, overload = name.partition(".")
                packet = getattr(torch.ops.aten, base, None)
                if packet is None or (overload or "default") not in packet.overloads():
                    continue
                op = getattr(packet, overload or "default")
                library.impl(name, _kernel(op, policy_of(name)), "AutocastCPU")
        with _recomputed_as_cuda(), _entered_as_cuda():
            yield lambda: _switched_on(dtype)
    finally:
        library._destroy()  # noqa: SLF001


@contextmanager
def _recomputed_as_cuda() -> Iterator[None]:
    """Let gradient checkpointing find CUDA autocast as it was when it computes again.

    torch.utils.checkpoint keeps the state of the autocast of its tensors' device alone, and here that of CUDA decides.
    """
    from unittest.mock import patch

    with (
        patch("torch.utils.checkpoint._infer_device_type", lambda *_args: "cuda"),
        patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        patch("torch.cuda.is_bf16_supported", lambda *_args, **_kwargs: True),
    ):
        yield


@contextmanager
def _entered_as_cuda() -> Iterator[None]:
    """Let CUDA autocasts that were made without CUDA, as decorators are, be on where they were to be."""
    from unittest.mock import patch

    enter = torch.amp.autocast_mode.autocast.__enter__

    def entered(self: Any) -> Any:
        if self.device == "cuda":
            self._enabled = asked(self)
        return enter(self)

    with patch.object(torch.amp.autocast_mode.autocast, "__enter__", entered):
        yield


@contextmanager
def _switched_on(dtype: torch.dtype) -> Iterator[None]:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with torch.autocast("cpu", dtype=dtype, cache_enabled=False):
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


def _kernel(op: Any, policy: str | None) -> Callable[..., Any]:
    def cast(to: torch.dtype, args: Any) -> Any:
        return tree_map_only(Tensor, lambda t: t.to(to) if _eligible(t) else t, args)

    def run(*args: Any, **kwargs: Any) -> Any:
        # Below this layer the operator, and all it is made of, runs as it is.
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_CPU)):  # noqa: SLF001
            if policy is None or not torch.is_autocast_enabled("cuda"):
                return op(*args, **kwargs)
            if policy == "banned":
                raise RuntimeError(f"{op} is unsafe under autocast: use the version with logits")
            if policy == "high-result":
                if kwargs.get("dtype") is None and _dtype_position(op, args) is None and _eligible_first(args):
                    kwargs["dtype"] = torch.float32
                return op(*args, **kwargs)
            # A network may ask for another dtype in a part of it.
            low = torch.get_autocast_dtype("cuda")
            to = low if policy == "low" else torch.float32
            if policy == "widest":
                floats = {t.dtype for t in _tensors((args, kwargs)) if t.is_floating_point()}
                to = torch.float32 if floats - {low} else low
            return op(*cast(to, args), **cast(to, kwargs))

    return run


def _eligible(t: Tensor) -> bool:
    return t.is_floating_point() and t.dtype != torch.float64


def _eligible_first(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and _eligible(args[0])


def _dtype_position(op: Any, args: tuple[Any, ...]) -> torch.dtype | None:
    """Return the dtype that was given by position, or None."""
    names = [a.name for a in op._schema.arguments]  # noqa: SLF001
    at = names.index("dtype")
    return args[at] if at < len(args) else None


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, tree)
    return found
