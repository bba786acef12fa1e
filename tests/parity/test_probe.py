"""Probe weights and images leave nothing hidden."""

from __future__ import annotations

import pytest
import torch

from vitconv.hosts.base.host import Inputs
from vitconv.parity.probe import probe_images, probe_weights

SHAPES = {
    "embed.pos": (16, 32), "embed.cls": (32,), "blocks.0.attn.q.weight": (32, 32), "blocks.0.attn.k.weight": (32, 32),
    "blocks.0.attn.k.bias": (32,), "blocks.0.norm1.weight": (32,), "blocks.0.norm1.bias": (32,), "blocks.0.ls1": (32,),
    "blocks.0.attn.q_norm.weight": (8,), "blocks.0.mlp.up.weight": (64, 32),
}  # fmt: skip


def test_every_tensor_is_of_the_order_of_one_and_none_is_plain():
    for name, t in probe_weights(SHAPES, 0).items():
        assert 0.05 < t.std() < 2, name
        assert t.unique().numel() == t.numel(), name
        assert torch.equal(t, t.float().double())


def test_the_logits_of_attention_spread_by_two():
    shapes = {f"blocks.0.attn.{p}.weight": (192, 192) for p in "qk"}
    w = probe_weights(shapes, 0)
    x = torch.nn.functional.layer_norm(torch.randn(197, 192, dtype=torch.float64), (192,))
    q, k = ((x @ w[f"blocks.0.attn.{p}.weight"].T).view(197, 3, 64).transpose(0, 1) for p in "qk")
    assert 1.5 < float((q @ k.transpose(1, 2) / 8).std()) < 2.5


def test_a_tensor_depends_on_the_seed_and_its_name_alone():
    few = {"embed.cls": (32,), "norm.bias": (32,)}
    assert torch.equal(probe_weights(SHAPES, 4)["embed.cls"], probe_weights(few, 4)["embed.cls"])
    assert not torch.equal(probe_weights(few, 4)["embed.cls"], probe_weights(few, 5)["embed.cls"])


def test_tied_tensors_are_equal():
    names = ("blocks.0.attn.k.weight", "blocks.0.attn.q.weight")
    w = probe_weights(SHAPES, 0, [names])
    assert torch.equal(w[names[0]], w[names[1]])


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 8, 8), (3, 16, 32)], ids=str)
def test_images_are_coloured_and_unlike_their_mirror_image(shape):
    images = probe_images(Inputs("images", shape), 0)
    assert {n: len(x) for n, x in images.items()} == {"coloured": 2, "single": 1, "low-variance": 1, "large": 1}
    for name, x in images.items():
        assert x.shape[1:] == shape
        scale = x.std()
        for other in (x.flip(-1), x.flip(-2), *([x.flip(1)] if shape[0] > 1 else [])):
            assert (x - other).std() > 0.3 * scale, name
        if shape[1] == shape[2]:
            assert (x - x.transpose(-1, -2)).std() > 0.3 * scale
        # Every precision sees the same numbers.
        assert torch.equal(x.bfloat16().double(), x)
        assert torch.equal(x.half().double(), x)
    assert images["low-variance"].std() < 0.02
    assert images["large"].abs().max() > 20
    assert not torch.equal(images["coloured"][0], images["coloured"][1])


def test_a_bare_trunk_gets_tokens():
    assert probe_images(Inputs("tokens", (17, 32)), 0)["coloured"].shape == (2, 17, 32)
