"""fold-layer-scale and fold-deepnorm: the same function, and gradients pulled back as autograd has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.compute import name_of

DEEP = {"norm_placement": "deepnorm", "residual_alpha": 2.2133638394006434}


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / a.abs().max()).item()


def check_function_and_gradients(before: Any, out: Any, after: Any) -> None:
    a, b = before.vit(images()), after(images())
    assert apart(a, b) < 1e-12
    a.square().sum().backward()
    b.square().sum().backward()
    back = out.pull_back({n: p.grad.numpy() for n, p in after.named_parameters()})
    grads = {n: p.grad.numpy() for n, p in before.vit.named_parameters()}
    # The gradient of a key bias is nothing but rounding; everything else is far above a thousandth of the largest.
    floor = 1e-3 * max(np.abs(g).max() for g in grads.values())
    for name, grad in grads.items():
        assert np.abs(back[name] - grad).max() <= 1e-11 * max(np.abs(grad).max(), floor), name


def test_layer_scale(model: Callable[..., Any]) -> None:
    before = model(layer_scale=True)
    out = before.held.edited("fold-layer-scale")
    applied = out.network.log[-1]
    assert applied.exact
    assert applied.removed == tuple(f"blocks.{i}.{ls}" for i in range(2) for ls in ("ls1", "ls2"))
    check_function_and_gradients(before, out, before.function(out, layer_scale=False))


def test_layer_scale_without_biases(model: Callable[..., Any]) -> None:
    before = model(layer_scale=True, out_bias=False, mlp_bias=False)
    out = before.held.edited("fold-layer-scale")
    check_function_and_gradients(before, out, before.function(out, layer_scale=False))


def test_layer_scale_on_the_bias_too(model: Callable[..., Any]) -> None:
    # The fault this guards against: only the weight is scaled.
    before = model(layer_scale=True)
    out = before.held.edited("fold-layer-scale")
    half = dict(out.network.cells)
    for i in range(2):
        half[f"blocks.{i}.attn.out.bias"] = before.held.network.cells[f"blocks.{i}.attn.out.bias"]
    faulty = type(out)(dataclasses.replace(out.network, cells=half), out.data)
    assert apart(before.vit(images()), before.function(faulty, layer_scale=False)(images())) > 1e-3


def test_layer_scale_unfolded_by_ones(model: Callable[..., Any]) -> None:
    before = model(layer_scale=True)
    out = before.held.edited("fold-layer-scale", "fill:blocks.{i}.ls1=1,blocks.{i}.ls2=ones")
    assert [a.exact for a in out.network.log] == [True, True, True]
    assert apart(before.vit(images()), before.function(out)(images())) < 1e-12


def test_layer_scale_in_float32_rounds_once(random_network: Callable[..., Any]) -> None:
    net = random_network(block=("attn.out", "mlp.down", "ls1", "ls2"))
    out = net.edited("fold-layer-scale")
    w, g = net["blocks.1.mlp.down.weight"], net["blocks.1.ls2"]
    assert np.array_equal(out["blocks.1.mlp.down.weight"], w * g[:, None])
    assert np.array_equal(out["blocks.1.mlp.down.bias"], net["blocks.1.mlp.down.bias"] * g)


def test_layer_scale_keeps_the_dtype_of_each_tensor(random_network: Callable[..., Any], held: Any) -> None:
    net = random_network(block=("attn.out", "mlp.down", "ls1", "ls2"))
    kinds = {n: "BF16" for n in net.network.cells if n.endswith("weight")}
    out = held(net.values, "F32", dtypes=kinds).edited("fold-layer-scale")
    assert out.network.cells["blocks.0.attn.out.weight"].dtype == "BF16"
    assert out.network.cells["blocks.0.attn.out.bias"].dtype == "F32"


def test_no_layer_scale(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="no LayerScale"):
        random_network().edited("fold-layer-scale")


def test_layer_scale_behind_a_norm_is_refused(random_network: Callable[..., Any]) -> None:
    net = random_network(block=("attn.out", "mlp.down", "ls1", "ls2")).told(norm_placement="res-post")
    with pytest.raises(Refused, match="a norm stands between"):
        net.edited("fold-layer-scale")


def test_layer_scale_without_its_layer_is_refused(random_network: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match=r"no weight to put the scale into: blocks\.\{0\.\.1\}\.mlp\.down"):
        random_network(block=("attn.out", "ls1", "ls2")).edited("fold-layer-scale")


def test_deepnorm(model: Callable[..., Any]) -> None:
    before = model(DEEP)
    out = before.held.edited("fold-deepnorm")
    facts = out.network.facts
    assert facts.norm_placement == "post"
    assert facts.residual_alpha is None
    assert facts.norm_eps == 1e-2 / DEEP["residual_alpha"] ** 2
    assert facts.final_norm_eps == 1e-3
    assert "norm eps 0.01 becomes 0.00204124; deepnorm becomes post" in out.last
    check_function_and_gradients(before, out, before.function(out))


def test_deepnorm_with_the_old_eps_is_another_function(model: Callable[..., Any]) -> None:
    before = model(DEEP)
    out = before.held.edited("fold-deepnorm")
    wrong = out.told(norm_eps=1e-2)
    assert apart(before.vit(images()), before.function(wrong)(images())) > 1e-5


def test_deepnorm_needs_its_facts(random_network: Callable[..., Any]) -> None:
    net = random_network()
    with pytest.raises(
        Refused, match=r"do not say norm_placement, residual_alpha.*, norm_eps; say --set norm_placement"
    ):
        net.edited("fold-deepnorm")
    with pytest.raises(Refused, match=r"do not say residual_alpha") as caught:
        net.told(norm_placement="deepnorm", norm_eps=1e-5).edited("fold-deepnorm")
    assert "norm_eps=E" not in str(caught.value)
    with pytest.raises(Refused, match="norm_placement=pre, not deepnorm"):
        net.told(norm_placement="pre").edited("fold-deepnorm")
    with pytest.raises(Refused, match="residual_alpha=-1, expected a number above zero"):
        net.told(**{**DEEP, "residual_alpha": -1.0}, norm_eps=1e-5).edited("fold-deepnorm")


def test_deepnorm_closes_what_was_open(random_network: Callable[..., Any]) -> None:
    net = random_network().told(**DEEP, norm_eps=1e-5)
    opened = dataclasses.replace(net.network, open={"norm_placement": ("post", "deepnorm"), "attention": ("softmax",)})
    out = type(net)(opened, net.data).edited("fold-deepnorm")
    assert out.network.open == {"attention": ("softmax",)}


def test_deepnorm_with_a_trunk_norm_is_refused(random_network: Callable[..., Any]) -> None:
    net = random_network(("trunk_norm",)).told(**DEEP, norm_eps=1e-5)
    with pytest.raises(Refused, match="trunk_norm has the eps of the norms in the blocks"):
        net.edited("fold-deepnorm")


def test_folds_add_up(model: Callable[..., Any]) -> None:
    before = model(DEEP, layer_scale=True)
    out = before.held.edited("fold-layer-scale", "fold-deepnorm", "fold-cls-position")
    assert [a.edit for a in out.network.log] == ["fold-layer-scale", "fold-deepnorm", "fold-cls-position"]
    tag = out.network.cells["blocks.0.mlp.down.weight"].view.tensor
    assert name_of(tag) == name_of(out.network.made[tag].inputs[0].view.tensor) == "blocks.0.mlp.down.weight"
    check_function_and_gradients(before, out, before.function(out, layer_scale=False, pos_cls=False))
