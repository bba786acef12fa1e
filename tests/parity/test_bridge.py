"""A live network's tensors as canonical ones: read, written and their gradients, in every host."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from vitconv.errors import NotRecognised, Refused
from vitconv.hosts.base.host import Spec
from vitconv.parity.bridge import bridge_of, state_of
from vitconv.registry import HOSTS, load

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
NAMES = ("timm", "torchvision", "transformers", "xformers-style", "xformers-style 0.0.9")


def built_of(network, name):
    spec, options = network(name)
    host, _, model = spec.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(HOSTS, host).build(Spec(model, options))


@pytest.mark.parametrize("name", NAMES)
def test_written_weights_are_read_again_and_compute_the_reference(name, network, weights):
    built = built_of(network, name)
    bridge = bridge_of(state_of(built.module), built.dialects, built.facts)
    assert bridge.shapes == {n: tuple(t.shape) for n, t in weights.items()}
    built.module.double()
    bridge.write(weights, state_of(built.module))
    back = bridge.read(state_of(built.module))
    assert all(torch.equal(back[n], weights[n]) for n in weights)
    reference = load(HOSTS, "reference").build(Spec("", {}, bridge.network.facts, bridge.shapes))
    reference.module.double()
    bridge_of(state_of(reference.module), ("canonical",)).write(weights, state_of(reference.module))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(built(x), reference(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_go_by_the_rule_of_the_weights(name, network, weights):
    """<gradient, change of weights> is the change of the loss, whatever the layout."""
    built = built_of(network, name)
    built.module.double()
    state = state_of(built.module)
    bridge = bridge_of(state, built.dialects, built.facts)
    bridge.write(weights, state)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    loss = built(x).square().sum()
    loss.backward()
    grads = bridge.gradients(state)
    step = {n: 1e-6 * torch.randn_like(w) for n, w in weights.items()}
    bridge.write({n: w + step[n] for n, w in weights.items()}, state)
    up = built(x).square().sum()
    bridge.write({n: w - step[n] for n, w in weights.items()}, state)
    slope = (up - built(x).square().sum()).item() / 2
    predicted = sum(float((grads[n] * step[n]).sum()) for n in weights)
    assert slope == pytest.approx(predicted, rel=1e-5)
    assert set(grads) == set(weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("blocks.1.attn.k.bias"), "the weights lack: blocks.1.attn.k.bias"),
        (lambda w: w.update({"embed.mask": torch.zeros(32)}), "has no place for: embed.mask"),
        (
            lambda w: w.update({"norm.bias": torch.zeros(31)}),
            r"norm.bias: the weights are \[31\], the network has \[32\]",
        ),
    ],
    ids=["lacking", "spare", "shape"],
)
def test_weights_that_do_not_fit_are_refused_with_their_names(change, said, network, weights):
    built = built_of(network, "timm")
    bridge = bridge_of(state_of(built.module), built.dialects, built.facts)
    change(weights)
    with pytest.raises(Refused, match=said):
        bridge.write(weights, state_of(built.module))


def test_a_wrapped_network_is_found_under_its_prefix(network, weights):
    built = built_of(network, "timm")
    wrapped = nn.ModuleDict({"model": nn.ModuleDict({"net": built.module})})
    bridge = bridge_of(state_of(wrapped), ("timm",), built.facts)
    assert bridge.prefix == "model.net."
    bridge.write(weights, state_of(wrapped))
    assert torch.equal(built.module.norm.bias.double(), weights["norm.bias"].float().double())
    assert torch.equal(bridge.read(state_of(wrapped))["norm.bias"], built.module.norm.bias)


def test_a_tensor_that_nothing_explains_is_no_quiet_loss(network):
    built = built_of(network, "timm")
    built.module.register_parameter("mystery", nn.Parameter(torch.zeros(3)))
    with pytest.raises(NotRecognised, match="mystery"):
        bridge_of(state_of(built.module), built.dialects, built.facts)


def test_a_network_of_another_memory_format_is_written_and_read(network, weights):
    """channels_last lays the patch projection out in another order; its elements are the same."""
    built = built_of(network, "timm")
    built.module.double().to(memory_format=torch.channels_last)
    state = state_of(built.module)
    patch = state["patch_embed.proj.weight"]
    assert not patch.is_contiguous()
    bridge = bridge_of(state, built.dialects, built.facts)
    bridge.write(weights, state)
    assert patch.data_ptr() == built.module.patch_embed.proj.weight.data_ptr()
    assert not built.module.patch_embed.proj.weight.is_contiguous()
    assert torch.equal(built.module.patch_embed.proj.weight, weights["embed.patch.weight"])
    assert all(torch.equal(back, weights[n]) for n, back in bridge.read(state).items())
    built(torch.randn(2, 3, 16, 16, dtype=torch.float64)).sum().backward()
    assert torch.equal(bridge.gradients(state)["embed.patch.weight"], built.module.patch_embed.proj.weight.grad)


def test_an_expanded_tensor_cannot_be_written(network):
    built = built_of(network, "timm")
    state = state_of(built.module)
    state["cls_token"] = torch.zeros(1, 1, 1).expand_as(state["cls_token"])
    with pytest.raises(Refused, match=r"several elements.*cls_token.*\.clone"):
        bridge_of(state, built.dialects, built.facts)


def test_weights_of_another_size_are_told_in_one_line_for_each_pair_of_shapes(network, weights):
    built = built_of(network, "timm")
    bridge = bridge_of(state_of(built.module), built.dialects, built.facts)
    wider = {n: torch.zeros(tuple(2 * k for k in t.shape)) for n, t in weights.items()}
    with pytest.raises(Refused, match="in the size of the weights by its options") as refused:
        bridge.check(wider)
    lines = str(refused.value).splitlines()
    assert len({tuple(t.shape) for t in weights.values()}) == len([x for x in lines if ", the network has [" in x])
    assert any("blocks.{0.." in line for line in lines)
