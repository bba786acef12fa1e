"""The configuration that is written, held to the real factory and to its twin."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import pytest

from vitconv.configs import xformers_write
from vitconv.configs.request import Config, Inexpressible, Lacking, Request
from vitconv.configs.xformers import facts_from_config
from vitconv.dialects.xformers import DIALECT
from vitconv.layout.semantics import Semantics


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


def forward(**changes: Any) -> dict[str, Any]:
    return {**block()["feedforward_config"], **changes}


def build(stack: list[dict[str, Any]]) -> Any:
    """Build with the real factory, release 0.0.28.post3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        factory = pytest.importorskip("xformers.factory")
        return factory.xFormer.from_config(factory.xFormerConfig(copy.deepcopy(stack), weight_init="timm"))


STACKS: dict[str, list[dict[str, Any]]] = {
    "pre": [block()],
    "pre-final": [block(num_layers=2), block(num_layers=1)],
    "pre-one-layer": [block(num_layers=1)],
    "post-relu": [block(residual_norm_style="post", feedforward_config=forward(activation="relu"))],
    "deepnorm": [block(residual_norm_style="deepnorm")],
    "deepnorm-singles": [block(residual_norm_style="deepnorm", num_layers=1)] * 3,
    "no-bias": [block(feedforward_config=forward(bias=False))],
    "embedding": [
        block(
            num_layers=1,
            patch_embedding_config={"in_channels": 3, "out_channels": 16, "kernel_size": 4, "stride": 4},
            position_encoding_config={"name": "learnable", "seq_len": 12, "add_class_token": True},
        ),
        block(num_layers=2),
    ],
    "part-of-the-biases": [
        block(multi_head_config={**block()["multi_head_config"], "bias": (True, False, True, True)})
    ],
}


@pytest.mark.parametrize("name", STACKS)
def test_what_is_written_builds_the_same_stack(name: str, request_for: Any) -> None:
    stack = STACKS[name]
    model = build(stack)
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    found = facts_from_config(stack, release="0.0.28.post3")
    facts = found.facts.filled({"grid": (2, 6)} if name == "embedding" else {})
    assert {m.eps for m in model.modules() if type(m).__name__ == "LayerNorm"} == {found.facts.norm_eps}
    assert {m.num_heads for m in model.modules() if type(m).__name__ == "MultiHeadDispatch"} == {found.facts.heads}
    written = xformers_write.write(request_for(DIALECT, shapes, facts))
    assert isinstance(written, Config), written
    again = build(written.files[xformers_write.FILE])
    assert {k: tuple(v.shape) for k, v in again.state_dict().items()} == shapes
    reread = facts_from_config(written.files[xformers_write.FILE], release="0.0.28.post3")
    assert reread.facts.known() == found.facts.known()
    assert [type(m).__name__ for m in again.modules()] == [type(m).__name__ for m in model.modules()]


@pytest.mark.parametrize("name", ["pre", "pre-final", "post-relu", "deepnorm", "deepnorm-singles"])
def test_the_stack_that_is_written_computes_the_same(name: str, request_for: Any, fill: Any) -> None:
    import torch

    model = fill(build(STACKS[name])).double()
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    facts = facts_from_config(STACKS[name], release="0.0.28.post3").facts
    written = xformers_write.write(request_for(DIALECT, shapes, facts))
    assert isinstance(written, Config)
    again = build(written.files[xformers_write.FILE]).double().eval()
    again.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-13, atol=1e-13)
        # The same weights in a stack of another alpha, style or activation give other numbers: the test can fail.
        wrong = {
            "pre": {
                "residual_norm_style": "pre",
                "multi_head_config": {**block()["multi_head_config"], "num_heads": 2},
            },
            "post-relu": {"residual_norm_style": "post"},
            "deepnorm": {"residual_norm_style": "post"},
            "deepnorm-singles": {"residual_norm_style": "deepnorm"},
        }.get(name)
        if wrong:
            other = build([block(**wrong)]).double().eval()
            other.load_state_dict(model.state_dict(), strict=True)
            assert (other(x) - model(x)).abs().max() > 1e-3


def said(**changes: Any) -> Request:
    facts = Semantics(
        heads=4,
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=1e-6,
        activation="gelu",
        attention="softmax",
        kv_normalised=True,
    )
    names = ["attn.q.bias", "attn.k.bias", "attn.v.bias", "attn.out.bias", "mlp.up.bias", "mlp.down.bias"]
    request = Request(
        "xformers",
        {"d": 16, "a": 16, "m": 32, "i": 3},
        facts,
        frozenset(f"blocks.0.{n}" for n in names),
        frozenset({"backbone.encoders.0.wrap_ff.layer.sublayer.mlp.3.weight"}),
    )
    inner = {k: v for k, v in changes.items() if hasattr(facts, k)}
    outer = {k: v for k, v in changes.items() if not hasattr(facts, k)}
    return dataclasses.replace(request, facts=dataclasses.replace(facts, **inner), **outer)


def written_stack(request: Request) -> list[dict[str, Any]]:
    written = xformers_write.write(request)
    assert isinstance(written, Config), written
    stack: list[dict[str, Any]] = written.files[xformers_write.FILE]
    return stack


def test_each_epoch_gets_its_own_schema() -> None:
    (new,) = written_stack(said())
    assert new["residual_norm_style"] == "pre"
    assert new["multi_head_config"]["bias"] == [True] * 4
    (before,) = written_stack(said(dialect="xformers-fused"))
    assert before["layer_norm_style"] == "pre"
    assert "residual_norm_style" not in before
    assert before["multi_head_config"]["bias"] is True
    (nested,) = written_stack(said(dialect="xformers-fused", release="0.0.5", kv_normalised=False))
    assert nested["reversible"] is False
    assert nested["block_config"]["layer_norm_style"] == "pre"


@pytest.mark.parametrize("release", ["0.0.3", "0.0.9", "0.0.11"])
def test_the_twin_reads_what_is_written_for_the_fused_epoch(release: str) -> None:
    from vitconv.vit.xformers_style.config import read_stack
    from vitconv.vit.xformers_style.release import release as twin

    kv = twin(release).kv_normalised
    stack = written_stack(said(dialect="xformers-fused", release=release, kv_normalised=kv))
    (read,) = read_stack(stack, twin(release), refuse_ignored=True).blocks
    assert (read.style, read.heads, read.layers, read.mlp_width, read.activation) == ("pre", 4, 3, 32, "gelu")


def test_an_eps_that_the_factory_cannot_state_is_a_note() -> None:
    written = xformers_write.write(said())
    assert isinstance(written, Config)
    assert any("set eps=1e-06 on every norm" in note for note in written.notes)
    written = xformers_write.write(said(norm_eps=1e-5))
    assert isinstance(written, Config)
    assert not any("eps" in note for note in written.notes)


def test_lacking_facts_are_named() -> None:
    written = xformers_write.write(said(heads=None, activation=None))
    assert isinstance(written, Lacking)
    assert set(written.facts) == {"heads", "activation"}
    written = xformers_write.write(said(norm_placement="deepnorm"))
    assert isinstance(written, Lacking)
    assert written.facts == ("residual_alpha",)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"norm_placement": "res-post"}, "norm_placement=res-post"),
        ({"activation": "silu"}, "activation=silu: xformers has no name for it"),
        ({"norm_kind": "rmsnorm"}, "norm_kind=rmsnorm"),
        ({"kv_normalised": False}, "only releases up to 0.0.9"),
        ({"sizes": {"d": 16, "a": 16, "m": 33, "i": 3}}, "the MLP width 33 is no multiple of the width 16"),
        ({"norm_placement": "deepnorm", "residual_alpha": 2.0}, "no split of 3 layers gives that"),
        ({"sizes": {"d": 16, "a": 16, "m": 32, "i": 1}}, "always ends with a norm of its own"),
        ({"dialect": "xformers-fused", "names": frozenset({"blocks.0.attn.q.bias"})}, "one flag holds for the biases"),
    ],
    ids=["res-post", "silu", "rms", "kv", "mlp", "alpha", "one-layer", "biases"],
)
def test_what_cannot_be_said_is_refused(changes: dict[str, Any], text: str) -> None:
    written = xformers_write.write(said(**changes))
    assert isinstance(written, Inexpressible)
    assert text in written.line()
