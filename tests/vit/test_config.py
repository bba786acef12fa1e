"""The configuration of the reference ViT: from shapes and facts, refusing what is unknown or does not fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.layout.semantics import Semantics
from vitconv.vit.config import ViTConfig, config_from_shapes
from vitconv.vit.model import ViT

FACTS = Semantics(
    heads=2,
    norm_placement="pre",
    norm_kind="layernorm",
    norm_eps=1e-6,
    final_norm_eps=1e-6,
    activation="gelu",
    attention="softmax",
    kv_normalised=True,
    pooling="token",
    grid=(2, 3),
)
PLAIN = ViTConfig(
    width=8,
    depth=2,
    attention_width=8,
    mlp_width=16,
    patch=(4, 5),
    channels=3,
    positions=6,
    facts=FACTS,
    classes=5,
)
EVERYTHING = dataclasses.replace(
    PLAIN,
    facts=FACTS.replaced({"embed_norm_eps": 1e-5, "qk_norm_eps": 1e-5}),
    attention_width=12,
    classes_dist=5,
    registers=3,
    dist=True,
    mask=True,
    pos_dist=True,
    pos_reg=True,
    qk_norm=True,
    attn_norm=True,
    layer_scale=True,
    gated=True,
    mlp_norm=True,
    embed_norm=True,
    trunk_norm=True,
    pool_norm=True,
    pool_dense=10,
)
BARE = dataclasses.replace(
    PLAIN,
    facts=FACTS.replaced({"pooling": "avg", "position": "none", "norm_kind": "rmsnorm"}),
    positions=0,
    classes=0,
    cls=False,
    pos_cls=False,
    patch_bias=False,
    q_bias=False,
    k_bias=False,
    v_bias=False,
    out_bias=False,
    mlp_bias=False,
    norm_bias=False,
    qk_norm_bias=False,
)
TRUNK = dataclasses.replace(
    PLAIN,
    facts=FACTS.replaced({"pooling": "none"}),
    channels=0,
    patch=(1, 1),
    positions=0,
    classes=0,
    cls=False,
    pos_cls=False,
    norm=False,
)
CONFIGS = {"plain": PLAIN, "everything": EVERYTHING, "bare": BARE, "trunk": TRUNK}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_state_dict_is_the_declared_shapes(config):
    state = ViT(config).state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == config.shapes()


@pytest.mark.parametrize("name", ["plain", "everything", "trunk"])
def test_shapes_and_facts_give_the_configuration_back(name):
    config = CONFIGS[name]
    assert config_from_shapes(config.shapes(), config.facts) == dataclasses.replace(config, qk_norm_bias=config.qk_norm)


def test_bare_network_comes_back():
    again = config_from_shapes(BARE.shapes(), BARE.facts)
    assert again.shapes() == BARE.shapes()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_parameter_has_a_gradient(config):
    torch.manual_seed(0)
    model = ViT(config).double()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    masked = torch.tensor([[True, False, False, True, False, False]]) if config.mask else None
    images = torch.randn((1, 3, 8, 15) if config.channels else (1, 5, 8), dtype=torch.float64)
    model(images, masked=masked).sin().sum().backward()
    idle = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-12}
    # What is added to every key alike shifts a row of logits alike, and softmax does not see it.
    constant = "k_norm.bias" if config.qk_norm else "k.bias"
    true_zero = {f"blocks.{i}.attn.{constant}" for i in range(config.depth)}
    assert idle <= true_zero


def test_every_unknown_fact_is_named_with_its_option():
    shapes = dataclasses.replace(EVERYTHING, qk_norm=False, norm_bias=False).shapes()
    with pytest.raises(Refused) as e:
        config_from_shapes(shapes, Semantics())
    for name in [
        "heads",
        "norm_placement",
        "norm_kind",
        "norm_eps",
        "final_norm_eps",
        "embed_norm_eps",
        "activation",
        "attention",
        "kv_normalised",
        "pooling",
    ]:
        assert f"--set {name}=" in str(e.value)
    assert "--set position=" not in str(e.value)
    assert e.value.exit_code == 3


def test_only_what_is_missing_is_named():
    with pytest.raises(Refused) as e:
        config_from_shapes(PLAIN.shapes(), dataclasses.replace(FACTS, heads=None))
    assert "--set heads=" in str(e.value)
    assert "--set norm_eps=" not in str(e.value)


@pytest.mark.parametrize(
    ("facts", "needs"),
    [
        ({"norm_placement": "deepnorm"}, "residual_alpha"),
        ({"norm_placement": "post", "kv_normalised": None}, None),
    ],
    ids=["deepnorm needs alpha", "post needs no kv_normalised"],
)
def test_facts_needed_by_the_norm_placement(facts, needs):
    facts = FACTS.replaced(facts)
    if needs is None:
        assert config_from_shapes(PLAIN.shapes(), facts).facts.kv_normalised is True
    else:
        with pytest.raises(Refused, match=f"--set {needs}="):
            config_from_shapes(PLAIN.shapes(), facts)


def test_heads_are_proven_by_the_query_norm():
    facts = dataclasses.replace(EVERYTHING.facts, heads=None)
    assert config_from_shapes(EVERYTHING.shapes(), facts).heads == 2
    with pytest.raises(Refused, match=r"attn.q_norm.weight: \[6\], expected \[3\] \(layers 0, 1\)"):
        config_from_shapes(EVERYTHING.shapes(), EVERYTHING.facts.replaced({"heads": 4}))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"heads": 3}, "heads=3 does not divide the attention width 8"),
        ({"attention": "linear"}, "attention=linear"),
        ({"position": "rope", "rope_layout": "half", "heads": 4}, "rotary positions turn quarters of a head"),
        ({"pooling": "map"}, "pooling=map"),
        ({"residual_alpha": 2.0}, "residual_alpha=2.0 belongs to deepnorm, not to pre"),
        ({"norm_placement": "post", "kv_normalised": False}, "kv_normalised=false belongs to pre-norm"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_the_reference_cannot_compute_is_refused(facts, says):
    with pytest.raises(Refused, match=says):
        config_from_shapes(PLAIN.shapes(), FACTS.replaced(facts))


def test_tensors_that_are_not_one_vit_are_listed():
    shapes = {**PLAIN.shapes(), "blocks.1.ls1": (8,), "blocks.0.norm2.weight": (9,)}
    del shapes["blocks.1.attn.q.bias"]
    with pytest.raises(Refused) as e:
        config_from_shapes(shapes, FACTS)
    assert "blocks.{i}.ls1: [8] is not expected (layers 1)" in str(e.value)
    assert "blocks.{i}.norm2.weight: [9], expected [8] (layers 0)" in str(e.value)
    assert "blocks.{i}.attn.q.bias: missing, expected [8] (layers 1)" in str(e.value)


def test_foreign_and_absent_tensors_are_named():
    with pytest.raises(Refused, match=r"not tensors of the plain ViT: blocks.0.hugo"):
        config_from_shapes({**PLAIN.shapes(), "blocks.0.hugo": (1,)}, FACTS)
    with pytest.raises(Refused, match=r"needs blocks.0.attn.out.weight, blocks.0.mlp.up.weight"):
        config_from_shapes({"blocks.0.attn.q.weight": (8, 8)}, FACTS)


def test_grid_is_the_fact_or_a_square():
    assert PLAIN.grid == (2, 3)
    assert PLAIN.image_size == (8, 15)
    assert dataclasses.replace(PLAIN, positions=9, facts=dataclasses.replace(FACTS, grid=None)).grid == (3, 3)
    sized = dataclasses.replace(FACTS, grid=None, image_size=(8, 15))
    assert dataclasses.replace(PLAIN, facts=sized).grid == (2, 3)
    with pytest.raises(Refused, match="--set grid="):
        _ = dataclasses.replace(PLAIN, facts=dataclasses.replace(FACTS, grid=None)).grid


def test_an_image_that_does_not_fit_the_table_is_refused():
    with pytest.raises(UsageError, match="8 x 8 pixels gives 2 patches, the position table has 6 rows"):
        ViT(PLAIN)(torch.zeros(1, 3, 8, 8))


def test_masking_needs_a_mask_token():
    with pytest.raises(UsageError, match="no mask token"):
        ViT(PLAIN)(torch.zeros(1, 3, 8, 15), masked=torch.zeros(1, 6, dtype=torch.bool))
