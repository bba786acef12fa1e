"""The rules of the twin by release: schema, strictness, norms, MLP layouts, GELU, dropout, alpha."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu

from vitconv.errors import Refused, UsageError
from vitconv.vit.xformers_style.encoder import xformer
from vitconv.vit.xformers_style.feedforward import FusedDropoutBias
from vitconv.vit.xformers_style.release import Environment, release
from vitconv.vit.xformers_style.report import ReportViT

TRITON = Environment(triton=True)
CARD = Environment(triton=True, cuda=True)


def block(
    release_name: str, style: str = "pre", layers: int = 2, width: int = 16, mlp: str = "MLP", **more
) -> dict[str, Any]:
    return {
        "block_type": "encoder",
        "dim_model": width,
        "num_layers": layers,
        release(release_name).style_key: style,
        "multi_head_config": {
            "num_heads": 2,
            "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {"name": mlp, "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
        **more,
    }


def names(model, part: str) -> list[str]:
    return sorted(k.split(part)[1] for k in model.state_dict() if part in k and k.startswith("encoders.0.wrap"))


@pytest.mark.parametrize("text", ["0.0.9", "v0.0.9", "0.0.16rc424", "0.0.28.post3", "0.0.10.dev", "0.0.22.post7"])
def test_releases_are_read(text):
    assert release(text).number[:2] == (0, 0)


@pytest.mark.parametrize("text", ["0.0.29", "0.1.0", "1.2", "", "0.0.0", "0.0.9.3"])
def test_what_is_no_release_with_the_factory_is_refused(text):
    with pytest.raises(UsageError, match=r"expected 0\.0\.1 to 0\.0\.28\.post3"):
        release(text)


@pytest.mark.parametrize(
    ("name", "triton", "kind", "eps"),
    [
        ("0.0.3", True, "LayerNorm", 1e-5),
        ("0.0.4", True, "FusedLayerNorm", 1e-5),
        ("0.0.9", True, "FusedLayerNorm", 1e-5),
        ("0.0.10.dev", True, "FusedLayerNorm", 1e-6),
        ("0.0.10", True, "FusedLayerNorm", 1e-6),
        ("0.0.26.post1", True, "FusedLayerNorm", 1e-6),
        ("0.0.27", True, "LayerNorm", 1e-5),
        ("0.0.10", False, "LayerNorm", 1e-5),
        ("0.0.26", False, "LayerNorm", 1e-5),
    ],
)
def test_norm_class_and_eps(name, triton, kind, eps):
    norm = xformer(block(name), name, Environment(triton=triton)).encoders[0].wrap_att.layer.norm
    assert type(norm).__name__ == kind
    assert (norm.epsilon if kind == "FusedLayerNorm" else norm.eps) == eps


def test_use_triton_false_is_heeded_by_the_final_norm_since_0_0_12():
    for name, kind in (("0.0.11", "FusedLayerNorm"), ("0.0.12", "LayerNorm")):
        last = xformer(block(name, layers=1, use_triton=False), name, TRITON).encoders[0]
        assert type(last.wrap_att.layer.norm).__name__ == "LayerNorm"
        assert type(last.wrap_ff.norm).__name__ == kind


@pytest.mark.parametrize("name", ["0.0.10", "0.0.11", "0.0.26"])
def test_the_half_eps_floor(name):
    norm = xformer(block(name), name, CARD).encoders[0].wrap_att.layer.norm
    x = torch.linspace(-1e-3, 1e-3, 16).reshape(1, 16)

    def at(eps: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x.to(dtype), (16,), eps=eps)

    assert torch.equal(norm(x), at(1e-6, torch.float32))
    floor = 1e-6 if name == "0.0.10" else 1.6e-5
    assert torch.equal(norm.half()(x.half()), at(floor, torch.float16))


@pytest.mark.parametrize(
    ("name", "first", "stack"),
    [
        ("0.0.11", (2,), []),
        ("0.0.11", (1,), [0]),
        ("0.0.11", (1, 2), [0]),
        ("0.0.11", (2, 1), [2]),
        ("0.0.11", (1, 1, 1), [0, 1, 2]),
        ("0.0.12", (2,), []),
        ("0.0.12", (1,), [0]),
        ("0.0.12", (1, 2), []),
        ("0.0.12", (2, 1), [2]),
        ("0.0.12", (1, 1, 1), [2]),
    ],
)
def test_blocks_with_a_final_norm(name, first, stack):
    model = xformer([block(name, layers=n) for n in first], name)
    assert [i for i, b in enumerate(model.encoders) if hasattr(b.wrap_ff, "norm")] == stack


def test_alpha_comes_from_each_configuration():
    together = xformer(block("0.0.12", "deepnorm", layers=12), "0.0.12")
    apart = xformer([block("0.0.12", "deepnorm", layers=1) for _ in range(12)], "0.0.12")
    assert together.encoders[0].wrap_att.sublayer.scale == pytest.approx(2.21336, abs=1e-5)
    assert apart.encoders[11].wrap_ff.sublayer.scale == pytest.approx(1.18921, abs=1e-5)


SAVED = ["mlp.0.weight", "mlp.1.bias", "mlp.2.weight", "mlp.3.bias"]


@pytest.mark.parametrize(
    ("name", "environment", "mlp", "saved", "trained"),
    [
        ("0.0.3", TRITON, "FusedMLP", ["mlp.0.bias", "mlp.0.weight", "mlp.2.bias", "mlp.2.weight"], 4),
        ("0.0.4", TRITON, "FusedMLP", SAVED, 2),
        ("0.0.8", TRITON, "FusedMLP", ["mlp.0.weight", "mlp.2.weight"], 2),
        ("0.0.11", TRITON, "FusedMLP", ["mlp.0.bias", "mlp.0.weight", "mlp.2.bias", "mlp.2.weight"], 4),
        ("0.0.26", TRITON, "FusedMLP", ["mlp.0.weight", "mlp.2.weight"], 2),
        ("0.0.12", Environment(nvfuser=True), "MLP", SAVED, 4),
        ("0.0.11", Environment(nvfuser=True), "MLP", ["mlp.0.bias", "mlp.0.weight", "mlp.3.bias", "mlp.3.weight"], 4),
        ("0.0.22", Environment(nvfuser=True), "MLP", ["mlp.0.bias", "mlp.0.weight", "mlp.3.bias", "mlp.3.weight"], 4),
    ],
)
def test_mlp_layouts(name, environment, mlp, saved, trained):
    model = xformer(block(name, mlp=mlp), name, environment)
    assert names(model, "wrap_ff.layer.sublayer.") == saved
    assert len(list(model.encoders[0].wrap_ff.layer.sublayer.parameters())) == trained


@pytest.mark.parametrize("name", ["0.0.8", "0.0.11", "0.0.26"])
def test_the_hidden_bias_acts_and_is_saved_nowhere(name):
    model = xformer(block(name, mlp="FusedMLP"), name, TRITON).double()
    hidden = [m for m in model.modules() if isinstance(m, FusedDropoutBias)]
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    before = model(x)
    with torch.no_grad():
        hidden[0].bias += 1.0
    assert not torch.allclose(before, model(x))
    model(x).sum().backward()
    assert hidden[0].bias.grad is not None
    assert all(p is not hidden[0].bias for p in model.parameters())
    assert not any(v.data_ptr() == hidden[0].bias.data_ptr() for v in model.state_dict().values())


@pytest.mark.parametrize(
    ("name", "environment", "width", "training", "dropout", "tanh"),
    [
        ("0.0.7", TRITON, 64, False, 0.0, True),
        ("0.0.8", TRITON, 1024, False, 0.0, False),
        ("0.0.8", CARD, 512, False, 0.0, False),
        ("0.0.8", CARD, 1024, False, 0.0, True),
        ("0.0.10", CARD, 1024, False, 0.0, True),
        ("0.0.11", CARD, 1024, False, 0.1, False),
        ("0.0.11", CARD, 1024, True, 0.0, False),
        ("0.0.11", CARD, 1024, True, 0.1, True),
        ("0.0.26", CARD, 512, True, 0.1, False),
    ],
)
def test_which_gelu_the_fused_mlp_runs(name, environment, width, training, dropout, tanh):
    layer = FusedDropoutBias(width, "gelu", dropout, "hidden", release(name), environment).train(training)
    x = torch.linspace(-3, 3, width).repeat(8, 1)
    torch.manual_seed(0)
    y = layer(x)
    kept = y != 0
    want = gelu(x, approximate="tanh" if tanh else "none") / (1 - (dropout if training else 0.0))
    other = gelu(x, approximate="none" if tanh else "tanh") / (1 - (dropout if training else 0.0))
    assert torch.allclose(y[kept], want[kept], atol=1e-7)
    assert not torch.allclose(y[kept], other[kept], atol=1e-5)
    assert kept.float().mean() > (0.8 if training and dropout else 0.97)


def test_dropout_sites_are_alive_in_training_only():
    config = block("0.0.28.post3")
    config["multi_head_config"]["residual_dropout"] = 0.5
    config["multi_head_config"]["attention"]["dropout"] = 0.25
    config["feedforward_config"]["dropout"] = 0.125
    model = xformer(config, "0.0.28.post3")
    rates = {
        n.split(".", 2)[2]: m.p for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout) and ".0." in n
    }
    assert set(rates.values()) == {0.5, 0.25, 0.125}
    x = torch.randn(1, 4, 16)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_attention_dropout_did_nothing_beside_the_sparse_extension_before_0_0_7():
    config = block("0.0.6")
    config["multi_head_config"]["attention"]["dropout"] = 0.25
    for name, environment, rate in (
        ("0.0.6", Environment(sparse=True), 0.0),
        ("0.0.6", Environment(), 0.25),
        ("0.0.7", Environment(sparse=True), 0.25),
    ):
        assert xformer(config, name, environment).encoders[0].mha.attention.attn_drop.p == rate


def test_aliases_are_the_same_parameters():
    old = xformer(block("0.0.11"), "0.0.11").encoders[0]
    assert old.mha is old.wrap_att.layer.sublayer
    assert old.feedforward is old.wrap_ff.layer.sublayer
    assert not hasattr(xformer(block("0.0.12"), "0.0.12").encoders[0], "mha")


def test_a_style_key_of_the_other_epoch_is_ignored_then_an_error():
    config = block("0.0.7", "pre")
    config["residual_norm_style"] = config.pop("layer_norm_style")
    model = xformer(config, "0.0.7")
    assert model.stack.ignored == ("config 0.residual_norm_style",)
    assert hasattr(model.encoders[0].wrap_att, "norm")
    with pytest.raises(Refused, match=r"drops these keys without a word: config 0.residual_norm_style"):
        xformer(config, "0.0.7", refuse_ignored=True)
    with pytest.raises(UsageError, match=r"does not know residual_norm_style .*its key .* layer_norm_style"):
        xformer(config, "0.0.8")


def test_the_mlp_bias_is_heeded_since_0_0_12():
    for name, keys in (("0.0.11", 4), ("0.0.12", 2)):
        config = block(name)
        config["feedforward_config"]["bias"] = False
        model = xformer(config, name)
        assert len(names(model, "wrap_ff.layer.sublayer.")) == keys
        assert bool(model.stack.ignored) == (name == "0.0.11")


@pytest.mark.parametrize("form", ["one", "list", "dict", "stack_configs", "block_config"])
def test_all_forms_of_a_configuration(form):
    one = block("0.0.7")
    forms: dict[str, Any] = {
        "one": one,
        "list": [one],
        "dict": {"encoder": one},
        "stack_configs": {"stack_configs": [one]},
        "block_config": [{"reversible": False, "block_config": one}],
    }
    before = copy.deepcopy(forms[form])
    assert len(xformer(forms[form], "0.0.7").encoders) == 2
    assert forms[form] == before


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"block_type": "decoder"}, Refused, "only encoders"),
        ({"reversible": True}, Refused, "reversible"),
        ({"hugo": 1}, UsageError, "does not know hugo"),
        ({"residual_norm_style": "mid"}, UsageError, "pre, post, deepnorm"),
        ({"dim_model": None}, UsageError, "dim_model is missing"),
        ({"multi_head_config.num_heads": 3}, UsageError, "does not divide dim_model=16"),
        ({"multi_head_config.dim_value": 8}, Refused, "dim_value other than the width"),
        ({"multi_head_config.hugo": 1}, UsageError, "does not know hugo"),
        ({"multi_head_config.attention.name": "nystrom"}, Refused, "nystrom"),
        ({"feedforward_config.hidden_layer_multiplier": 2.5}, UsageError, "a whole number such as 4"),
        ({"feedforward_config.hidden_layer_multiplier": 4.0}, UsageError, "a whole number such as 4"),
        ({"feedforward_config.name": "FusedMLP"}, UsageError, "no FusedMLP any more"),
        ({"feedforward_config.name": "MixtureOfExperts"}, Refused, "MixtureOfExperts"),
        ({"feedforward_config.activation": "tanh"}, UsageError, "relu, gelu"),
        ({"position_encoding_config": {"name": "vocab"}}, Refused, "vocab"),
        ({"patch_embedding_config": {"kernel": 3}}, UsageError, "does not know kernel"),
        ({"patch_embedding_config": {"pool_type": "MAX_POOL_2D"}}, UsageError, "expected CONV_2D"),
    ],
    ids=lambda v: str(v)[:50] if isinstance(v, dict) else "",
)
def test_what_the_release_or_the_twin_refuses(change, error, says):
    config = block("0.0.28")
    for path, value in change.items():
        *parents, leaf = path.split(".")
        node = config
        for p in parents:
            node = node[p]
        node[leaf] = value
    with pytest.raises(error, match=says):
        xformer(config, "0.0.28")


@pytest.mark.parametrize(
    ("name", "change", "error", "says"),
    [
        ("0.0.10", {"position_encoding_config": {"name": "learnable", "seq_len": 4}}, UsageError, "0.0.11 has"),
        ("0.0.11", {"multi_head_config": {"dim_key": 8}}, UsageError, "no dim_key other than dim_model"),
        (
            "0.0.11",
            {"multi_head_config": {"dim_value": 8, "use_separate_proj_weight": True}},
            Refused,
            "dim_value other than the width",
        ),
        ("0.0.5", {"multi_head_config": {"attention": {"causal": True}}}, Refused, "seq_len and on Triton"),
    ],
    ids=["positions before 0.0.11", "dim_key", "raw projections", "causal before 0.0.6"],
)
def test_what_an_old_release_or_the_twin_refuses(name, change, error, says):
    config = block(name)
    for key, value in change.items():
        config[key] = {**config.get(key, {}), **value}
    if "multi_head_config" in change:
        plain = block(name)["multi_head_config"]["attention"]
        config["multi_head_config"]["attention"] = {**plain, **change["multi_head_config"].get("attention", {})}
    with pytest.raises(error, match=says):
        xformer(config, name)


@pytest.mark.parametrize(
    ("name", "separate"),
    [("0.0.2", True), ("0.0.9", False), ("0.0.10", True), ("0.0.11", False)],
)
def test_dim_value_is_dropped_without_a_word_by_the_old_releases(name, separate):
    config = block(name)
    config["multi_head_config"] |= {"dim_value": 32, "use_separate_proj_weight": separate}
    model = xformer(config, name)
    assert model.stack.ignored == ("config 0.multi_head_config.dim_value",)
    assert model.encoders[0].mha.in_proj_container.in_proj_weight.shape == (48, 16)
    with pytest.raises(Refused, match="dim_value"):
        xformer(config, name, refuse_ignored=True)


def test_styles_must_not_be_mixed_with_deepnorm():
    with pytest.raises(UsageError, match="all configurations are deepnorm or none"):
        xformer([block("0.0.12", "deepnorm"), block("0.0.12", "pre")], "0.0.12")


@pytest.mark.parametrize(("name", "tensors"), [("0.0.9", 152), ("0.0.11", 152), ("0.0.28.post3", 200)])
def test_the_first_reports_vit_b_has_86_567_656_parameters(name, tensors):
    with torch.device("meta"):
        backbone = xformer(block(name, layers=12, width=768), name)
        model = ReportViT(backbone, 768)
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 86_567_656
    assert len(parameters) == tensors
    assert {"patch_embed.proj.weight", "cls_token", "pos_embed", "head.0.weight", "head.1.bias"} < set(
        model.state_dict()
    )
    assert model.head[0].eps == 1e-6
