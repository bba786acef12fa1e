"""The factory's configuration in both schemas, read by what each release makes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vitconv.configs.parse import parse_yaml
from vitconv.configs.xformers import accepts, facts_from_config
from vitconv.errors import BadFile, UsageError
from vitconv.layout.semantics import Semantics
from vitconv.vit.xformers_style.encoder import xformer

# The ViT-B of the first public report (facebookresearch/xformers issue 219), as its author gave it.
REPORT = """
reversible: False
block_type: "encoder"
num_layers: 12
dim_model: 768
layer_norm_style: "pre"

multi_head_config:
  num_heads: 12
  residual_dropout: 0.1  # (1) tried without this
  use_rotary_embeddings: False

  attention:
    name: "scaled_dot_product"
    dropout: 0.0
    causal: False

feedforward_config:
  name: "MLP"
  dropout: 0.0
  activation: "gelu"
  hidden_layer_multiplier: 4
"""


def block(**changes: Any) -> dict[str, Any]:
    out = {
        "block_type": "encoder",
        "num_layers": 3,
        "dim_model": 16,
        "residual_norm_style": "pre",
        "multi_head_config": {"num_heads": 4, "attention": {"name": "scaled_dot_product"}},
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 2},
    }
    return {k: v for k, v in {**out, **changes}.items() if v is not None}


def old(**changes: Any) -> dict[str, Any]:
    return block(**{"residual_norm_style": None, "layer_norm_style": "pre", **changes})


def test_the_configuration_of_the_first_report() -> None:
    raw = parse_yaml(REPORT, "vit_b.yaml")
    assert accepts(raw)
    found = facts_from_config(raw, where="vit_b.yaml")
    expected = Semantics(
        heads=12,
        norm_placement="pre",
        norm_kind="layernorm",
        activation="gelu",
        attention="softmax",
        mlp_dropout=0.0,
    )
    assert found.facts == expected
    assert found.sizes == {"i": 12, "d": 768, "a": 768, "m": 3072}
    assert found.extra["epoch"] == "fused"
    assert found.extra["trunk_norm"] is False
    assert any("--set release=" in note for note in found.notes)
    assert "0.0.11 or older" in found.source


@pytest.mark.parametrize(
    ("release", "triton", "eps", "kv"),
    [
        ("0.0.9", None, 1e-5, False),
        ("0.0.10", None, None, True),
        ("0.0.10", True, 1e-6, True),
        ("0.0.11", False, 1e-5, True),
        ("0.0.10.dev", True, 1e-6, False),
    ],
)
def test_a_release_completes_the_first_report(release: str, triton: bool | None, eps: float | None, kv: bool) -> None:
    found = facts_from_config(parse_yaml(REPORT, "vit_b.yaml"), release=release, triton=triton)
    assert (found.facts.norm_eps, found.facts.kv_normalised, found.facts.release) == (eps, kv, release)


def test_both_schemas_say_the_same() -> None:
    new, before = facts_from_config(block()), facts_from_config(old())
    nested = facts_from_config([{"reversible": False, "block_config": old()}])
    assert new.facts.differences(before.facts) == {}
    assert nested.facts == before.facts
    assert new.sizes == before.sizes == nested.sizes
    assert (new.extra["epoch"], before.extra["epoch"]) == ("linear", "fused")
    assert (new.facts.kv_normalised, before.facts.kv_normalised) == (True, None)


@pytest.mark.parametrize(
    "form",
    [lambda b: b, lambda b: [b], lambda b: {"a": b}, lambda b: {"stack_configs": [b]}],
    ids=["bare", "list", "named", "stack"],
)
def test_every_form_of_the_stack(form: Any) -> None:
    raw = form(block())
    assert accepts(raw)
    assert facts_from_config(raw).facts == facts_from_config(block()).facts


def test_reading_leaves_the_configuration_as_it_was() -> None:
    raw = [block(), block(num_layers=1)]
    before = copy.deepcopy(raw)
    facts_from_config(raw)
    assert raw == before


@pytest.mark.parametrize(
    ("raw", "release", "text"),
    [
        (block(), "0.0.11", "does not know residual_norm_style; its key is layer_norm_style"),
        (old(), "0.0.12", "does not know layer_norm_style; its key is residual_norm_style"),
        (old(layer_norm_style="deepnorm"), "0.0.9", "has no deepnorm"),
        (block(), "0.0.29", "0.0.29 has no factory any more"),
    ],
)
def test_a_key_of_the_wrong_era_is_named(raw: Any, release: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        facts_from_config(raw, release=release)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (block(layer_norm_style="pre"), "layer_norm_style (0.0.11 and older) and residual_norm_style"),
        ([block(), old()], "of 0.0.11 and older and of 0.0.12 and newer in one file"),
        (old(normalization="layernorm"), "normalization came with 0.0.12"),
        (block(residual_norm_style="sandwich"), "expected pre, post or deepnorm"),
        (block(feedforward_config=None), "feedforward_config missing"),
        (block(num_layers="twelve"), "num_layers is 'twelve', expected a whole number"),
        ([block(residual_norm_style="deepnorm"), block()], "either all blocks are deepnorm or none"),
        (block(multi_head_config={"num_heads": 3, "attention": {"name": "x"}}), "expected a divisor of dim_model 16"),
    ],
)
def test_what_no_release_reads_is_an_error(raw: Any, text: str) -> None:
    with pytest.raises(BadFile) as e:
        facts_from_config(raw, where="vit.yaml")
    assert text in str(e.value)
    assert str(e.value).startswith("vit.yaml")


def test_a_style_that_is_ignored_makes_a_post_norm_network() -> None:
    nested = facts_from_config([{"block_config": block()}])
    early = facts_from_config(block(), release="0.0.5")
    for found in (nested, early):
        assert found.facts.norm_placement == "post"
        assert any("residual_norm_style is ignored" in note for note in found.notes)


def test_no_style_is_post() -> None:
    found = facts_from_config(block(residual_norm_style=None))
    assert found.facts.norm_placement == "post"
    assert any("every release builds post-norm" in note for note in found.notes)


@pytest.mark.parametrize(("parts", "alpha"), [([12], 24**0.25), ([1] * 12, 2**0.25), ([6, 6], 12**0.25)])
def test_alpha_is_that_of_one_configuration(parts: list[int], alpha: float) -> None:
    found = facts_from_config([block(residual_norm_style="deepnorm", num_layers=n) for n in parts])
    assert found.facts.residual_alpha == pytest.approx(alpha, rel=1e-15)
    assert found.sizes["i"] == 12


def test_two_alphas_in_one_stack_are_a_refusal() -> None:
    found = facts_from_config([block(residual_norm_style="deepnorm", num_layers=n) for n in (1, 2)])
    assert found.facts.residual_alpha is None
    assert any("layers differs" in reason for reason in found.refusals)


def forward(**changes: Any) -> dict[str, Any]:
    return {**block()["feedforward_config"], **changes}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (block(block_type="decoder"), "only encoders"),
        (block(reversible=True), "reversible"),
        (block(normalization="skip"), "without norms"),
        (block(multi_head_config={"num_heads": 4, "attention": {"name": "nystrom"}}), "'nystrom' has no counterpart"),
        (block(feedforward_config=forward(name="MixtureOfExperts")), "'MixtureOfExperts'"),
        (block(feedforward_config=forward(activation="smelu")), "activation 'smelu'"),
        (block(position_encoding_config={"name": "vocab", "seq_len": 4, "vocab_size": 9}), "'vocab'"),
        ([old(num_layers=1), old(num_layers=2)], "inside the stack"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_has_no_counterpart_is_a_refusal(raw: Any, text: str) -> None:
    assert any(text in reason for reason in facts_from_config(raw).refusals)


def test_causal_attention_is_read() -> None:
    raw = block(multi_head_config={"num_heads": 4, "attention": {"name": "scaled_dot_product", "causal": True}})
    assert facts_from_config(raw).facts.attention == "causal"


def test_a_flag_that_rules_triton_out_fixes_the_eps() -> None:
    found = facts_from_config([block(use_triton=False), block(use_triton=False, num_layers=1)])
    assert (found.facts.norm_eps, found.facts.final_norm_eps) == (1e-5, 1e-5)
    # Before 0.0.12 the final norm did not heed the flag.
    found = facts_from_config([old(use_triton=False, num_layers=2), old(use_triton=False, num_layers=1)])
    assert (found.facts.norm_eps, found.facts.final_norm_eps) == (1e-5, None)


def hydra(target: str = "xFormerEncoderConfig") -> dict[str, Any]:
    """Return a block as the examples' build_model writes it for Hydra: the class in place of the block type."""
    inner = {"_target_": f"xformers.factory.block_factory.{target}", **block(block_type=None)}
    stack = {"_target_": "xformers.factory.model_factory.xFormer", "stack_configs": {"encoder_local": inner}}
    return {"xformer": stack}


def test_a_configuration_for_hydra_is_read() -> None:
    found = facts_from_config(hydra())
    assert (found.facts.heads, found.facts.norm_placement, found.sizes["i"]) == (4, "pre", 3)
    assert accepts(hydra())
    model = xformer(hydra(), "0.0.22")
    assert len(model.encoders) == 3
    assert "decoder" in " ".join(facts_from_config(hydra("xFormerDecoderConfig")).refusals)
