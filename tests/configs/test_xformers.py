"""The factory's configuration in both schemas, what releases fix, and what is written, held to the real factory."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import pytest

from vitconv.configs import xformers_write
from vitconv.configs.parse import parse_yaml
from vitconv.configs.request import Config, Inexpressible, Lacking, Request
from vitconv.configs.xformers import accepts, facts_from_config, with_release
from vitconv.configs.xformers_release import facts_from_release, norm_eps, release_number, trunk_norm_eps
from vitconv.dialects.xformers import DIALECT
from vitconv.errors import BadFile, UsageError
from vitconv.layout.semantics import Semantics

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


# xformers.md has this table by environment; None where Triton decides.
@pytest.mark.parametrize(
    ("release", "without", "with_triton", "unknown"),
    [
        ("0.0.3", 1e-5, 1e-5, 1e-5),
        ("v0.03", 1e-5, 1e-5, 1e-5),
        ("0.0.9", 1e-5, 1e-5, 1e-5),
        ("0.0.10", 1e-5, 1e-6, None),
        ("0.0.16rc424", 1e-5, 1e-6, None),
        ("0.0.26.post1", 1e-5, 1e-6, None),
        ("0.0.27", 1e-5, 1e-5, 1e-5),
        ("0.0.28.post3", 1e-5, 1e-5, 1e-5),
    ],
)
def test_eps_in_effect(release: str, without: float, with_triton: float, unknown: float | None) -> None:
    got = tuple(norm_eps(release, triton=t) for t in (False, True, None))
    assert got == (without, with_triton, unknown)
    assert norm_eps(release, triton=True, use_triton=False) == 1e-5


@pytest.mark.parametrize("text", ["0.0.29", "1.0", "0.0.0", "0.0.100", "latest", ""])
def test_no_release_of_the_factory(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected 0\.0\.1 to 0\.0\.28\.post3"):
        release_number(text)


def test_the_tables_agree_with_the_twin_of_the_factory() -> None:
    from vitconv.vit.xformers_style.release import Environment, release

    for text in [f"0.0.{z}" for z in range(1, 29)] + ["0.0.10.dev"]:
        twin = release(text)
        for triton in (False, True):
            for use in (False, True):
                where = (text, triton, use)
                env = Environment(triton=triton, cuda=triton)
                assert norm_eps(text, triton=triton, use_triton=use) == twin.norm(env, use)[1], where
                final = use or not twin.final_norm_heeds_use_triton
                assert trunk_norm_eps(text, triton=triton, use_triton=use) == twin.norm(env, final)[1], where
        assert facts_from_release(text, "pre").kv_normalised == twin.kv_normalised, text


def test_facts_are_completed_by_their_own_release() -> None:
    facts = with_release(Semantics(norm_placement="pre", release="0.0.9"))
    assert (facts.norm_eps, facts.kv_normalised) == (1e-5, False)
    assert with_release(Semantics(norm_placement="post", release="0.0.9")).kv_normalised is True
    assert with_release(Semantics(release="0.0.9")).kv_normalised is None
    assert with_release(Semantics(heads=3)) == Semantics(heads=3)


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
