"""`assert_parity`: what passes, what fails with which words, and that nothing passes unproved."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import vitconv
from vitconv.layout.semantics import Semantics
from vitconv.testing import assert_parity
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

QUICK = {"inputs": ["coloured"]}
D, M = 16, 32


def network(eps: float = 1e-6) -> ViT:
    """Return a small ViT with a class token and random weights everywhere."""
    facts = Semantics(
        heads=4, norm_placement="pre", norm_kind="layernorm", norm_eps=eps, final_norm_eps=1e-6, activation="gelu",
        attention="softmax", kv_normalised=True, pooling="token", position="learned", grid=(2, 2), image_size=(8, 8),
    )  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"embed.cls": (D,), "embed.pos": (4, D), "embed.pos_cls": (D,)}
    layers = {"embed.patch": (D, 3, 4, 4), "norm": (D,), "head": (3, D)}
    for part, shape in {"norm1": (D,), "norm2": (D,), "mlp.up": (M, D), "mlp.down": (D, M)}.items():
        layers[f"blocks.0.{part}"] = shape
    layers |= {f"blocks.0.attn.{x}": (D, D) for x in ("q", "k", "v", "out")}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    built = ViT(config_from_shapes(shapes, facts))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in built.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5 + (p.ndim == 1))
    return built.eval()


def test_modules_and_callables_pass_and_the_result_is_returned():
    a = network()
    result = assert_parity(a, lambda: copy.deepcopy(a), **QUICK)
    assert result.verdict == "same"
    assert {s.key for s in result.stages} >= {"accounting", "sanity", "function", "numerics-fp32"}


def test_another_eps_fails_with_figures_where_and_cause():
    a, b = network(), network(eps=1e-5)
    with pytest.raises(AssertionError) as caught:
        assert_parity(a, b, precisions=("fp64",), **QUICK)
    text = str(caught.value)
    assert text.startswith("differs: not the same function")
    assert "fact norm_eps: 1e-06 in A, 1e-05 in B" in text
    assert "where: the forward pass parts first at blocks.0.attn" in text
    assert "cause: eps of the norms in the blocks is 1e-5 (eps-blocks-1e-5)" in text
    assert re.search(r"largest relative gap: \S+e-0\d as they are, (0|\S+e-1\d) with this put in", text)


def test_other_weights_fail():
    a, b = network(), network()
    with torch.no_grad():
        next(p for n, p in b.named_parameters() if n.endswith("attn.k.bias"))[0] += 1.0
    with pytest.raises(AssertionError, match=r"attn\.k\.bias"):
        assert_parity(a, b, precisions=("fp64",), skip=["why"], **QUICK)


@pytest.mark.parametrize("stage", ["accounting", "sanity", "function"])
def test_nothing_passes_when_a_needed_stage_is_left_out(stage):
    a = network()
    with pytest.raises(AssertionError, match=f"undecided.*{stage} did not run"):
        assert_parity(a, copy.deepcopy(a), precisions=("fp64",), skip=[stage], **QUICK)


def test_a_dead_network_does_not_pass():
    a = network()
    with torch.no_grad():
        for p in a.head.parameters():
            p.zero_()
    with pytest.raises(AssertionError, match="vacuous"):
        assert_parity(a, copy.deepcopy(a), precisions=("fp64",), **QUICK)


def test_what_is_not_understood_does_not_pass():
    a = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(AssertionError, match="undecided: nothing was compared"):
        assert_parity(a, copy.deepcopy(a))


def test_a_callable_must_make_a_network():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        assert_parity(network(), lambda: "timm")


def test_verify_is_a_public_name():
    from vitconv.parity.verify import verify

    assert vitconv.verify is verify
