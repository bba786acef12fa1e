"""timm's config.json and args.yaml: read as the live model has it, written so that local-dir builds it."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from vitconv.configs import timm as reading
from vitconv.configs import timm_beit_write, timm_table, timm_write
from vitconv.configs.read import facts_beside
from vitconv.configs.request import Config, Inexpressible, Lacking
from vitconv.dialects.timm import DIALECT
from vitconv.errors import BadFile
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load

timm = pytest.importorskip("timm")

SMALL = {"img_size": (8, 24), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
CLIP, GIANT, AIM = "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2", "aimv2_large_patch14_224"
# entrypoint, arguments
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_base_patch16_224", {}),
    "heads-4-grey": ("vit_base_patch16_224", {"num_heads": 4, "in_chans": 1, "mlp_ratio": 2.7}),
    "tanh": ("vit_base_patch16_224", {"act_layer": "gelu_tanh"}),
    "eps-1e-5": (CLIP, {"pre_norm": False}),
    "clip-quick": (CLIP, {"act_layer": "quick_gelu"}),
    "clip-at-1e-6": (CLIP, {"norm_layer": "layernorm"}),
    "average-fc-norm": ("vit_base_patch16_224", {"global_pool": "avg", "class_token": False}),
    "average-norm-before": ("vit_base_patch16_224", {"global_pool": "avg", "fc_norm": False}),
    "average-with-prefix": ("vit_base_patch16_224", {"global_pool": "avg", "pool_include_prefix": True}),
    "registers": ("vit_base_patch16_224", {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}),
    "registers-embedded": ("vit_base_patch16_224", {"reg_tokens": 3, "num_classes": 0}),
    "qk-norm": ("vit_base_patch16_224", {"qk_norm": True, "qkv_bias": False}),
    "rms": ("vit_base_patch16_224", {"norm_layer": "rmsnorm"}),
    "rms-qk": ("vit_base_patch16_224", {"norm_layer": "rmsnorm", "qk_norm": True}),
    "scale-norms": ("vit_base_patch16_224", {"scale_attn_norm": True, "scale_mlp_norm": True}),
    "no-table": ("vit_base_patch16_224", {"pos_embed": "none"}),
    "swiglu-packed": (GIANT, {"mlp_ratio": 5.5, "init_values": None}),
    "swiglu-packed-scale": (GIANT, {"mlp_ratio": 4.0}),
    "swiglu-rms-1e-5": (AIM, {"embed_norm_layer": None, "class_token": True, "global_pool": "token"}),
    "swiglu-layernorm": (AIM, {"embed_norm_layer": None, "norm_layer": "layernorm"}),
    "res-post": ("vit_base_patch16_rpn_224", {"init_values": None}),
    "distilled": ("deit_base_distilled_patch16_224", {}),
}


def build(case: str) -> Any:
    """Build by way of a folder: create_model drops arguments that are None, the arguments of a folder it keeps."""
    name, changes = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        config = {"architecture": name, "model_args": {**SMALL, **changes}}
        own = timm.get_pretrained_cfg(name).to_dict()
        (Path(folder) / "config.json").write_text(json.dumps({**config, "pretrained_cfg": own}))
        return timm.create_model(f"local-dir:{folder}")


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in model.state_dict().items()}


def differences(facts: Semantics, live: dict[str, Any]) -> dict[str, Any]:
    return {k: (getattr(facts, k), v) for k, v in live.items() if getattr(facts, k) != v}


def save(model: Any, folder: Path) -> None:
    from timm.models._hub import save_for_hf

    save_for_hf(model, folder, safe_serialization=True)


def preprocessing(model: Any) -> tuple[Any, Any]:
    from timm.data.model_config import resolve_input_data_config

    config = resolve_input_data_config(model)
    return tuple(config["mean"]), tuple(config["std"])


@pytest.fixture(params=CASES, ids=str)
def model(request: pytest.FixtureRequest, fill: Any) -> Any:
    return fill(build(request.param))


def test_what_is_read_is_what_the_live_model_has(model: Any, timm_facts: Any, tmp_path: Path) -> None:
    save(model, tmp_path)
    found = facts_beside(tmp_path / "model.safetensors")
    assert differences(found.facts, timm_facts(model)) == {}
    assert not found.refusals
    assert preprocessing(model) == (found.facts.mean, found.facts.std)
    d, c, p, q = shapes_of(model)["patch_embed.proj.weight"]
    hidden = next(v[-1] for k, v in shapes_of(model).items() if k.endswith("mlp.fc2.weight"))
    expected = {"d": d, "c": c, "p": p, "q": q, "m": hidden, "i": len(model.blocks)}
    assert {k: found.sizes[k] for k in expected} == expected
    assert found.sizes.get("o", 0) == model.num_classes


def test_what_is_written_builds_the_same_model(
    model: Any, timm_facts: Any, request_for: Any, fill: Any, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    save(model, tmp_path / "source")
    facts = facts_beside(tmp_path / "source").facts
    written = timm_write.write(request_for(DIALECT, shapes_of(model), facts))
    assert isinstance(written, Config), written
    out = tmp_path / "out"
    out.mkdir()
    for name, text in written.texts().items():
        (out / name).write_text(text)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out / "model.safetensors")
    again = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    assert timm_facts(again) == timm_facts(model)
    assert type(again) is type(model)
    assert shapes_of(again) == shapes_of(model)
    assert preprocessing(again) == (facts.mean, facts.std)
    x = torch.randn(2, model.in_chans, 8, 24, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    assert facts_beside(out).facts.known() == facts.known()


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_heads": 4},
        {"act_layer": "gelu_tanh"},
        {"global_pool": "avg"},
        {"img_size": [16, 8]},
        {"pool_include_prefix": True, "global_pool": "avg"},
        {"norm_layer": "rmsnorm"},
    ],
    ids=lambda w: next(iter(w)),
)
def test_a_planted_wrong_value_is_seen(wrong: dict[str, Any], timm_facts: Any, tmp_path: Path) -> None:
    model = build("plain")
    save(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "model_args": {**config["model_args"], **wrong}}))
    assert differences(facts_beside(tmp_path).facts, timm_facts(model))


# Enough of the table on every run to see a change of kind: one of each family, and each norm.
SAMPLE = [
    "vit_tiny_patch16_224",
    "vit_small_patch8_224",
    "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_36x1_224",
    "vit_medium_patch16_reg4_gap_256",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch16_siglip_224",
    "vit_base_patch16_rpn_224",
    "beit3_base_patch16_224",
    "test_vit4",
]


def _check_entrypoint(name: str, timm_facts: Any) -> None:
    import torch

    with torch.device("meta"):
        model = timm.create_model(name, depth=1)
    cfg = dict(model.pretrained_cfg)
    found = reading.read({"architecture": name, "num_classes": model.num_classes, "pretrained_cfg": cfg}, "config.json")
    if model.pretrained_cfg.get("fixed_input_size"):
        # The probe of an activation needs numbers, not shapes.
        for block in model.blocks:
            block.mlp.act = type(block.mlp.act)()
        assert differences(found.facts, timm_facts(model)) == {}
    stored = timm_table.pretrained(name)
    assert stored is not None
    assert stored.mean == tuple(cfg["mean"])
    assert stored.std == tuple(cfg["std"])


@pytest.mark.parametrize("name", SAMPLE)
def test_the_table_says_what_the_entrypoint_builds(name: str, timm_facts: Any) -> None:
    _check_entrypoint(name, timm_facts)


@pytest.mark.slow
def test_the_table_is_that_of_the_installed_release() -> None:
    if timm.__version__ != timm_table.release():
        pytest.skip(f"the table is of timm {timm_table.release()}")
    import importlib.util

    path = Path(__file__).with_name("make_timm_table.py")
    spec = importlib.util.spec_from_file_location("make_timm_table", path)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.text_of(maker.collect()) == maker.TABLE.read_text()


def args(**changes: Any) -> dict[str, Any]:
    run = {"model": "vit_base_patch16_224", "opt": "adamw", "gp": None, "img_size": None, "input_size": None}
    return {**run, "model_kwargs": {}, "num_classes": None, "mean": None, "std": None, "in_chans": None, **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"heads": 12, "norm_eps": 1e-6, "pooling": "token", "image_size": (224, 224), "mean": (0.5, 0.5, 0.5)}),
        ({"model": "vit_base_patch32_clip_quickgelu_224"}, {"norm_eps": 1e-5, "activation": "quick_gelu"}),
        ({"model": "vit_base_patch16_224.orig_in21k"}, {"mean": (0.5, 0.5, 0.5)}),
        ({"mean": [0.1, 0.2, 0.3], "gp": "avg"}, {"mean": (0.1, 0.2, 0.3), "pooling": "avg"}),
        ({"img_size": 96}, {"image_size": (96, 96), "grid": (6, 6)}),
        ({"input_size": [3, 64, 96]}, {"image_size": (64, 96), "grid": (4, 6)}),
        ({"model_kwargs": {"num_heads": 6, "img_size": 32}}, {"heads": 6, "grid": (2, 2)}),
        ({"img_size": 96, "model_kwargs": {"dynamic_img_size": True}}, {"grid": None, "image_size": None}),
        ({"std": ["1e-1", 0.2, 0.3]}, {"std": (0.1, 0.2, 0.3)}),
    ],
    ids=["bare", "clip", "tag", "mean", "size", "oblong", "kwargs", "dynamic", "yaml-number"],
)
def test_arguments_of_a_training_run(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    found = reading.read_args(args(**changes), "args.yaml")
    assert {k: getattr(found.facts, k) for k in expected} == expected


def test_a_name_of_another_family_says_nothing() -> None:
    found = reading.read_args(args(model="swin_tiny_patch4_window7_224", mean=[0.5, 0.5, 0.5]), "args.yaml")
    assert found.facts.known() == {"mean": (0.5, 0.5, 0.5)}
    assert "no VisionTransformer of timm" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aimv2_large_patch14_224", "embed_norm_layer"),
        ("vit_base_patch16_xp_224", "ParallelScalingBlock"),
        ("vit_dwee_patch16_reg1_gap_256", "diff"),
    ],
)
def test_what_has_no_counterpart_is_a_refusal(name: str, text: str) -> None:
    found = reading.read({"architecture": name, "pretrained_cfg": {"tag": "x"}}, "config.json")
    assert any(text in reason for reason in found.refusals)


def test_wrong_values_are_named() -> None:
    raw = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 7}, "pretrained_cfg": {"mean": "x"}}
    with pytest.raises(BadFile, match="num_heads is 7, expected a divisor of embed_dim 768"):
        reading.read(raw, "config.json")
    with pytest.raises(BadFile, match=r"config\.json: pretrained_cfg: mean is 'x', expected a list of numbers"):
        reading.read({**raw, "model_args": {}}, "config.json")


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        ("plain", {"norm_eps": 3e-6, "final_norm_eps": 3e-6}, "cannot say layernorm at eps 3e-06"),
        ("plain", {"final_norm_eps": 1e-5}, "norm_eps=1e-06, final_norm_eps=1e-05"),
        ("plain", {"norm_placement": "post"}, "no VisionTransformer of timm has a post-norm block with Mlp"),
        ("plain", {"activation": "squared_relu"}, "activation=squared_relu: timm has no name for it"),
        ("plain", {"kv_normalised": False}, "kv_normalised=false"),
        ("distilled", {"norm_eps": 1e-5, "final_norm_eps": 1e-5}, "cannot say layernorm at eps 1e-05"),
        ("average-fc-norm", {"pooling": "token"}, "there is no class token"),
    ],
    ids=["eps", "eps-places", "post", "activation", "kv", "distilled-eps", "token"],
)
def test_what_cannot_be_said_is_refused(
    case: str, changes: dict[str, Any], text: str, request_for: Any, tmp_path: Path
) -> None:
    model = build(case)
    save(model, tmp_path)
    facts = dataclasses.replace(facts_beside(tmp_path).facts, **changes)
    written = timm_write.write(request_for(DIALECT, shapes_of(model), facts))
    assert isinstance(written, Inexpressible)
    assert text in written.line()


def test_a_smaller_eps_than_can_be_said_is_written_and_said(request_for: Any, tmp_path: Path) -> None:
    model = build("plain")
    save(model, tmp_path)
    facts = dataclasses.replace(facts_beside(tmp_path).facts, norm_eps=1e-12, final_norm_eps=1e-12)
    written = timm_write.write(request_for(DIALECT, shapes_of(model), facts))
    assert isinstance(written, Config)
    assert any("norm_eps is 1e-12" in note and "computes with 1e-06" in note for note in written.notes)


@pytest.mark.parametrize(("top", "inner", "classes"), [(7, 1000, 7), (None, 9, 9), (0, 1000, None)])
def test_the_number_of_classes_is_that_of_the_weights(top: int | None, inner: int, classes: int | None) -> None:
    cfg = {"num_classes": inner, "input_size": [3, 224, 224], "fixed_input_size": True}
    raw = {"architecture": "vit_base_patch16_224", "num_classes": top, "pretrained_cfg": cfg}
    assert reading.read(raw, "config.json").sizes.get("o") == classes


def test_without_a_fixed_size_the_grid_is_unknown() -> None:
    found = reading.read({"architecture": "vit_base_patch16_224", "pretrained_cfg": {"mean": [0, 0, 0]}}, "config.json")
    assert found.facts.grid is None
    assert "n" not in found.sizes
    assert any("image std is not stated; timm then takes [0.229" in note for note in found.notes)
    assert found.facts.std == (0.229, 0.224, 0.225)


def test_an_image_size_follows_from_the_grid(request_for: Any, tmp_path: Path) -> None:
    model = build("plain")
    save(model, tmp_path)
    facts = dataclasses.replace(facts_beside(tmp_path).facts, image_size=None)
    written = timm_write.write(request_for(DIALECT, shapes_of(model), facts))
    assert isinstance(written, Config)
    assert written.files["config.json"]["model_args"]["img_size"] == [8, 24]
    assert written.files["config.json"]["pretrained_cfg"]["input_size"] == [3, 8, 24]


@pytest.mark.parametrize(
    ("case", "absent", "text"),
    [
        ("plain", "head.bias", "timm always has head.bias"),
        ("plain", "blocks.0.norm1.bias", "timm always has blocks.{i}.norm1.bias"),
        ("plain", "blocks.0.attn.out.bias", "proj_bias holds for attention and MLP alike"),
        ("plain", "embed.patch.bias", "timm couples them"),
        ("distilled", "head_dist.weight", "two heads, this network only head"),
    ],
)
def test_tensors_that_timm_always_has(case: str, absent: str, text: str, request_for: Any, tmp_path: Path) -> None:
    model = build(case)
    save(model, tmp_path)
    said = request_for(DIALECT, shapes_of(model), facts_beside(tmp_path).facts)
    written = timm_write.write(dataclasses.replace(said, names=said.names - {absent}))
    assert isinstance(written, Inexpressible)
    assert text in written.line()


def test_lacking_facts_are_named_with_their_options(request_for: Any) -> None:
    model = timm.create_model("vit_base_patch16_224", **{**SMALL, "img_size": 16})
    written = timm_write.write(request_for(DIALECT, shapes_of(model), Semantics()))
    assert isinstance(written, Lacking)
    expected = {"grid", "norm_placement", "norm_eps", "final_norm_eps", "pooling", "heads", "activation"}
    assert set(written.facts) == expected
    assert "--set grid=4x4" in written.line()


def test_an_oblong_table_has_no_suggestion_of_a_square(request_for: Any) -> None:
    model = timm.create_model("vit_base_patch16_224", **SMALL)
    said = request_for(DIALECT, shapes_of(model), Semantics(grid=(2, 6)))
    written = timm_write.write(dataclasses.replace(said, facts=Semantics()))
    assert isinstance(written, Lacking)
    assert written.hints["grid"] == "ROWSxCOLUMNS"


@pytest.mark.parametrize(("image", "hint"), [((16, 16), "4x4"), ((8, 20), "ROWSxCOLUMNS")])
def test_a_table_of_offsets_suggests_its_square(image: tuple[int, int], hint: str, request_for: Any) -> None:
    sizes = {**SMALL, "img_size": image, "use_rel_pos_bias": True}
    model = timm.create_model("beit_base_patch16_224", **sizes)
    written = timm_beit_write.write(request_for(load(DIALECTS, "beit"), shapes_of(model), Semantics()))
    assert isinstance(written, Lacking)
    assert written.hints["grid"] == hint


# In the last ones the quotient times the width falls one short.
@pytest.mark.parametrize(("width", "hidden"), [(32, 88), (24, 85), (1536, 4096), (7, 331), (11, 15), (316, 962)])
def test_the_ratio_gives_the_hidden_width_back(width: int, hidden: int, request_for: Any) -> None:
    said = request_for(DIALECT, shapes_of(build("plain")), Semantics(grid=(2, 6)))
    said = dataclasses.replace(said, sizes={**said.sizes, "d": width, "m": hidden})
    ratio = timm_write._sizes(said, (8, 24))["mlp_ratio"]
    assert int(width * ratio) == hidden
