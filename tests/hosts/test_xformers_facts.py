"""What the hosts of xformers' factory say of attentions other than plain softmax, and of releases."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from vitconv.errors import UsageError
from vitconv.hosts import xformers as real
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def config(attention: dict[str, Any], style: str = "pre") -> dict[str, Any]:
    return {
        "block_type": "encoder",
        "dim_model": 16,
        "num_layers": 1,
        "residual_norm_style": style,
        "multi_head_config": {"num_heads": 2, "residual_dropout": 0.0, "attention": {"dropout": 0.0, **attention}},
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }


KINDS = [
    ({"name": "scaled_dot_product"}, "softmax"),
    ({"name": "scaled_dot_product", "causal": True}, "causal"),
    ({"name": "nystrom", "num_landmarks": 4}, None),
    ({"name": "favor"}, None),
]


@pytest.mark.parametrize(("attention", "fact"), KINDS, ids=[f"{a['name']}-{f}" for a, f in KINDS])
def test_the_real_factory_names_its_attention_only_where_it_is_dense(attention, fact):
    pytest.importorskip("xformers.factory", reason="no xformers with a factory")
    spec = Spec("", options={"config": config(attention), "wrap": "none"})
    assert load(HOSTS, "xformers").build(spec).facts.attention == fact


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer_norm_style": "pre"}, "since 0.0.12 the key is residual_norm_style; host xformers-style"),
        ({"feedforward_config": {"name": "FusedMLP", "dropout": 0.0}}, "it went in 0.0.27; host xformers-style"),
        ({"num_layer": 2}, "num_layer'$"),
    ],
    ids=["old key", "FusedMLP", "misspelt"],
)
def test_a_configuration_of_an_older_release_is_told_where_it_runs(change, says):
    pytest.importorskip("xformers.factory", reason="no xformers with a factory")
    spec = Spec("", options={"config": config({"name": "scaled_dot_product"}) | change, "wrap": "none"})
    with pytest.raises(UsageError, match=says):
        load(HOSTS, "xformers").build(spec)


@pytest.mark.parametrize(("causal", "fact"), [(False, "softmax"), (True, "causal")])
def test_the_twin_says_causal(causal, fact):
    spec = Spec(
        "",
        options={
            "config": config({"name": "scaled_dot_product", "causal": causal}),
            "release": "0.0.28.post3",
            "wrap": "none",
        },
    )
    assert load(HOSTS, "xformers-style").build(spec).facts.attention == fact


@pytest.mark.parametrize(
    ("release", "style", "kv"),
    [("0.0.9", "pre", False), ("0.0.9", "post", True), ("0.0.10", "pre", True), ("0.0.28.post3", "pre", True)],
)
def test_the_real_factorys_keys_and_values_go_by_the_installed_release(monkeypatch, release, style, kv):
    pytest.importorskip("xformers.factory", reason="no xformers with a factory")
    importlib.import_module("xformers.factory")
    monkeypatch.setattr(real, "version", lambda: release)
    spec = Spec("", options={"config": config({"name": "scaled_dot_product"}, style), "wrap": "none"})
    assert load(HOSTS, "xformers").build(spec).facts.kv_normalised is kv
