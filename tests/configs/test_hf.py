"""transformers' config.json: read as the live model has it, written so that the real classes open it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vitconv.configs import hf, hf_write
from vitconv.configs.activations import FROM_HF, TO_HF
from vitconv.configs.read import facts_beside
from vitconv.configs.request import Config, Inexpressible, Lacking
from vitconv.dialects.hf_deit_5 import DIALECT as DEIT
from vitconv.dialects.hf_vit_5 import DIALECT as VIT
from vitconv.errors import BadFile
from vitconv.layout.semantics import Semantics

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}
CASES = {
    "vit-defaults": ("ViTForImageClassification", {}),
    "vit-1e-6": ("ViTForImageClassification", {"layer_norm_eps": 1e-6, "num_labels": 7}),
    "vit-tanh-oblong": (
        "ViTForImageClassification",
        {"layer_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh", "image_size": [8, 16], "num_attention_heads": 4},
    ),
    "vit-quick-no-bias": ("ViTForImageClassification", {"hidden_act": "quick_gelu", "qkv_bias": False}),
    "vit-relu-grey": ("ViTForImageClassification", {"hidden_act": "relu", "num_channels": 1, "num_labels": 10}),
    "vit-model": ("ViTModel", {"layer_norm_eps": 1e-6, "hidden_act": "gelu_new"}),
    "deit": ("DeiTForImageClassification", {"layer_norm_eps": 1e-6}),
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", {"num_labels": 5}),
    "deit-model": ("DeiTModel", {"hidden_act": "silu"}),
}


def build(name: str, changes: dict[str, Any]) -> Any:
    config = getattr(transformers, "DeiTConfig" if "DeiT" in name else "ViTConfig")
    return getattr(transformers, name)(config(**{**SMALL, **changes}))


def differences(facts: Semantics, live: dict[str, Any]) -> dict[str, Any]:
    return {k: (getattr(facts, k), v) for k, v in live.items() if getattr(facts, k) != v}


@pytest.fixture(params=CASES, ids=str)
def model(request: pytest.FixtureRequest, fill: Any) -> Any:
    return fill(build(*CASES[request.param]))


def test_what_is_read_is_what_the_live_model_has(model: Any, hf_facts: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    found = facts_beside(tmp_path / "model.safetensors")
    assert differences(found.facts, hf_facts(model)) == {}
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    width = next(v[0] for k, v in shapes.items() if k.endswith("fc1.weight"))
    assert found.sizes["m"] == width
    head = next((v[0] for k, v in shapes.items() if k.endswith("classifier.weight")), None)
    assert found.sizes.get("o") == head
    assert not found.refusals


def test_what_is_written_opens_in_the_real_class(model: Any, hf_facts: Any, request_for: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model.save_pretrained(tmp_path / "source")
    facts = facts_beside(tmp_path / "source").facts.filled({"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)})
    state = {k: v.contiguous() for k, v in model.state_dict().items()}
    dialect = DEIT if "DeiT" in type(model).__name__ else VIT
    said = request_for(dialect, {k: tuple(v.shape) for k, v in state.items()}, facts, dtype="F32")
    written = hf_write.write(said)
    assert isinstance(written, Config)
    out = tmp_path / "out"
    out.mkdir()
    for name, text in written.texts().items():
        (out / name).write_text(text)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    cls = getattr(transformers, written.files["config.json"]["architectures"][0])
    assert cls is type(model)
    again, info = cls.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert hf_facts(again) == hf_facts(model)
    assert all((again.state_dict()[k] == v).all() for k, v in state.items())
    images = transformers.AutoImageProcessor.from_pretrained(out)
    assert tuple(images.image_mean) == facts.mean
    assert tuple(images.image_std) == facts.std
    read_back = facts_beside(out).facts
    assert read_back.known() == facts.known()


@pytest.mark.parametrize(
    "wrong",
    [{"layer_norm_eps": 1e-7}, {"num_attention_heads": 6}, {"hidden_act": "gelu_new"}, {"image_size": [32, 8]}],
    ids=lambda w: next(iter(w)),
)
def test_a_planted_wrong_value_is_seen(wrong: dict[str, Any], hf_facts: Any, tmp_path: Path) -> None:
    model = build("ViTForImageClassification", {})
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    assert differences(facts_beside(tmp_path).facts, hf_facts(model))


@pytest.mark.parametrize("kind", ["ViTConfig", "DeiTConfig"])
def test_absent_keys_are_the_class_defaults(kind: str) -> None:
    config = getattr(transformers, kind)()
    found = hf.read({"model_type": config.model_type}, "config.json")
    assert found.facts.norm_eps == config.layer_norm_eps == 1e-12
    assert found.facts.heads == config.num_attention_heads
    assert found.facts.activation == FROM_HF[config.hidden_act]
    assert found.sizes["d"] == config.hidden_size
    assert found.sizes["i"] == config.num_hidden_layers
    assert found.sizes["m"] == config.intermediate_size
    assert any("layer_norm_eps is not stated; transformers then takes 1e-12" in n for n in found.notes)


@pytest.mark.parametrize("word", FROM_HF, ids=str)
def test_activation_words_mean_the_function(word: str, act_name: Any) -> None:
    from transformers.activations import ACT2FN

    assert act_name(ACT2FN[word]) == FROM_HF[word]


def test_activations_go_back_to_themselves() -> None:
    assert {FROM_HF[word] for word in TO_HF.values()} == set(TO_HF)
    assert all(FROM_HF[word] == name for name, word in TO_HF.items())


def test_other_models_of_transformers_are_a_note() -> None:
    found = hf.read({"model_type": "segformer", "layer_norm_eps": 1e-5}, "config.json")
    assert not found.facts.known()
    assert not found.sizes
    assert "model_type 'segformer'" in found.notes[0]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number of at least 1"),
        ({"num_attention_heads": 7}, "num_attention_heads is 7, expected a divisor of hidden_size 768"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_eps is 'tiny', expected a number"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ({"image_size": [224]}, "image_size is [224], expected one whole number or two"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"id2label": {"0": "a", "2": "b"}}, "expected the class numbers 0 to 1"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_wrong_values_are_named(raw: dict[str, Any], text: str) -> None:
    with pytest.raises(BadFile) as e:
        hf.read({"model_type": "vit", "architectures": ["ViTForImageClassification"], **raw}, "config.json")
    assert str(e.value).startswith("config.json: ")
    assert text in str(e.value)


def plain(**changes: Any) -> Semantics:
    facts = Semantics(
        heads=3,
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=1e-6,
        final_norm_eps=1e-6,
        activation="gelu",
        attention="softmax",
        kv_normalised=True,
        pooling="token",
        grid=(4, 4),
    )
    return dataclasses.replace(facts, **changes)


@pytest.fixture
def shapes() -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in build("ViTForImageClassification", {}).state_dict().items()}


def test_a_square_count_is_no_grid(shapes: Any, request_for: Any) -> None:
    written = hf_write.write(request_for(VIT, shapes, plain(grid=None)))
    assert isinstance(written, Lacking)
    assert written.facts == ("grid",)
    assert "--set grid=4x4" in written.line()


def test_every_lacking_fact_is_named_at_once(shapes: Any, request_for: Any) -> None:
    written = hf_write.write(request_for(VIT, shapes, Semantics()))
    assert isinstance(written, Lacking)
    expected = {"heads", "norm_eps", "final_norm_eps", "grid", "norm_placement", "pooling", "activation"}
    assert set(written.facts) == expected
    assert all(f"--set {name}=" in written.line() for name in expected)


def test_image_mean_unknown_leaves_the_processor_out(shapes: Any, request_for: Any) -> None:
    written = hf_write.write(request_for(VIT, shapes, plain()))
    assert isinstance(written, Config)
    assert set(written.files) == {"config.json"}
    assert any("preprocessor_config.json is left out" in note for note in written.notes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"final_norm_eps": 1e-5}, "norm_eps=1e-06, final_norm_eps=1e-05"),
        ({"norm_placement": "post"}, "norm_placement=post: transformers' ViT is pre-norm"),
        ({"norm_kind": "rmsnorm"}, "norm_kind=rmsnorm"),
        ({"pooling": "avg"}, "pooling=avg: transformers' ViT classifies the first token"),
        ({"kv_normalised": False}, "kv_normalised=false"),
        ({"attention": "causal"}, "attention=causal"),
        ({"grid": (2, 4)}, "a grid of 2x4 has 8 places, the position table 16"),
        ({"image_size": (8, 32)}, "grid=4x4, but image_size=8x32 makes it 2x8"),
        ({"heads": 5}, "heads=5 does not divide the attention width 24"),
        ({"attention_scale": 0.5}, "attention_scale=0.5"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_what_cannot_be_said_is_refused(changes: dict[str, Any], text: str, shapes: Any, request_for: Any) -> None:
    written = hf_write.write(request_for(VIT, shapes, plain(**changes)))
    assert isinstance(written, Inexpressible)
    assert text in written.line()
