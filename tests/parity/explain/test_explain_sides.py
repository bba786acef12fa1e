"""The whole way: two sides are verified, they differ, and the report says why, for the first public report too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.bench.clean import LIBRARIES
from vitconv.bench.mutate import override
from vitconv.parity.verify import verify

TIMM = LIBRARIES["timm"][2]
STACK = LIBRARIES["xformers-style"][2]["config"]
XFORMERS = {**LIBRARIES["xformers-style"][2], "wrap": "report"}


def stack(**more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STACK), **more}


def against_timm(**options: Any) -> Any:
    return verify(
        "timm:vit_small_patch16_224",
        "xformers-style:",
        set_a=TIMM,
        set_b={**copy.deepcopy(XFORMERS), **options},
        precisions=(),
        inputs=("coloured", "low-variance"),
    )


def old_stack(**more: Any) -> dict[str, Any]:
    # What residual_norm_style was called up to 0.0.10 or so.
    config = stack(**more)
    config["layer_norm_style"] = config.pop("residual_norm_style")
    return config


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"release": "0.0.22"}, {"eps-blocks-1e-5"}),
        ({"release": "0.0.9", "config": old_stack()}, {"eps-blocks-1e-5", "kv-raw"}),
        ({"config": stack(residual_norm_style="post")}, {"eps-blocks-1e-5", "placement-post"}),
    ],
    ids=["eps of the library", "keys and values not normalised", "post-norm"],
)
def test_the_first_report(options: dict[str, Any], found: set[str]) -> None:
    result = against_timm(**options)
    assert result.verdict == "differs"
    assert set(result.cause.found) == found
    assert result.cause.after < 1e-10 < result.cause.before
    assert result.cause.side == "B"


def test_the_wrong_alpha_of_configurations_of_one_layer() -> None:
    deep = stack(residual_norm_style="deepnorm")
    apart = [{**copy.deepcopy(deep), "num_layers": 1} for _ in range(3)]
    whole = {**copy.deepcopy(XFORMERS), "config": deep}
    result = verify(
        "xformers-style:",
        "xformers-style:",
        set_a=whole,
        set_b={**copy.deepcopy(XFORMERS), "config": apart},
        precisions=(),
        inputs=("coloured",),
    )
    assert result.cause.found == ("alpha-one-layer",)


def test_the_network_that_cannot_be_rebuilt_may_be_the_first() -> None:
    result = verify(
        "xformers-style:",
        "timm:vit_small_patch16_224",
        set_a=copy.deepcopy(XFORMERS),
        set_b=TIMM,
        precisions=(),
        inputs=("coloured", "low-variance"),
    )
    assert result.cause.found == ("eps-blocks-1e-6",)


def timm_net() -> Any:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    return timm.create_model("vit_small_patch16_224", pretrained=False, **TIMM).eval()


def _norm_in_half(self: Any, x: Tensor) -> Tensor:
    y = nn.functional.layer_norm
    if x.dtype == torch.float64:
        return y(x, self.normalized_shape, self.weight, self.bias, self.eps)
    half = torch.bfloat16
    z = y(x.to(half).float(), self.normalized_shape, self.weight.to(half).float(), self.bias.to(half).float(), self.eps)
    return z.to(half).to(x.dtype)


def test_a_loss_of_precision_is_named_by_its_sizes() -> None:
    net = timm_net()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            override(module, forward=_norm_in_half)
    result = verify(timm_net(), net, precisions=("fp32",))
    assert result.verdict == "differs"
    assert result.stage("function").status == "ok"
    assert "norm-in-bf16" in {result.cause.found[0], *(n for names in result.cause.others for n in names)}
    assert not result.cause.proven


def test_equal_sides_have_no_cause() -> None:
    result = verify(timm_net(), timm_net(), precisions=(), inputs=("coloured",))
    assert result.verdict == "same" and result.cause is None


def test_other_weights_are_no_fault_of_the_code() -> None:
    net = timm_net()
    with torch.no_grad():
        net.blocks[1].mlp.fc2.weight += 0.1 * torch.randn(net.blocks[1].mlp.fc2.weight.shape)
    result = verify(timm_net(), net, precisions=(), inputs=("coloured",))
    assert result.verdict == "differs"
    assert result.cause is None or (result.cause.found == () and "weights" in result.cause.reason)


def test_what_is_random_in_eval_is_named() -> None:
    net = timm_net()
    for block in net.blocks:
        block.attn.proj_drop.p = 0.3
        block.attn.proj_drop.train()
        override(block.attn.proj_drop, train=lambda self, mode=True: self, forward=lambda self, x: _drop(x))
    result = verify(timm_net(), net, precisions=(), inputs=("coloured",))
    assert result.cause.found == ("dropout-projection-alive",)
    assert result.exit_code != 0


def _drop(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.3, True)
