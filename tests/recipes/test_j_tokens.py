"""Public reports on tokens and positions that an init leaves at random: no sign of a training (J)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from vitconv.inits.audit.audit import audit_module

timm = pytest.importorskip("timm")
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5}


def timms() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", **SIZES)


def transformers() -> nn.Module:
    library = pytest.importorskip("transformers")
    config = library.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, image_size=16, patch_size=4,
        num_labels=5,
    )  # fmt: skip
    return library.ViTForImageClassification(config)


@pytest.mark.parametrize("made", [timms, transformers])
@pytest.mark.parametrize(
    ("names", "left"),
    [
        # As `nn.Parameter(torch.randn(...))` leaves them when no init function knows them.
        pytest.param(("pos", "cls"), ("embed.pos", "embed.pos_cls"), id="transformers#20803"),
        pytest.param(("pos",), ("embed.pos", "embed.pos_cls"), id="transformers#39772"),
    ],
)
def test_random_tokens_are_no_training(made: Callable[[], nn.Module], names: tuple[str, ...], left: tuple[str, ...]):
    torch.manual_seed(0)
    net = made()
    for key, p in net.named_parameters():
        if any(name in key.rpartition(".")[2] for name in names):
            nn.init.normal_(p)
    found = audit_module(net)
    assert found.training.state in ("never trained", "undecided")
    assert found.found("never-trained") is None
    unlike = found.found("off-scheme")
    assert unlike is not None and set(left) <= set(unlike.where)
    assert "N(0, 1)" in unlike.text


@pytest.mark.parametrize("made", [timms, transformers])
def test_one_step_of_adamw_is_a_training(made: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = made().train()
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4)
    out = net(torch.randn(4, 3, 16, 16))
    getattr(out, "logits", out).logsumexp(-1).sum().backward()
    optimiser.step()
    assert audit_module(net).training.state in ("trained", "partly trained")
