"""config.json of timm's NaFlexVit: what it says, what it decides, and a folder that timm opens with no further word."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run
from vitconv.configs.timm import read
from vitconv.configs.timm_naflex import DEFAULTS, arguments

timm = pytest.importorskip("timm")
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg  # noqa: E402

SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "pos_embed_grid_size": [3, 5]}


def config(name: str = "naflexvit_base_patch16_gap", **args: Any) -> dict[str, Any]:
    return {"architecture": name, "num_classes": 5, "model_args": args, "pretrained_cfg": {"num_classes": 5}}


def test_the_table_is_that_of_the_installed_timm() -> None:
    spec = importlib.util.spec_from_file_location("maker", Path(__file__).with_name("make_timm_naflex_table.py"))
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    if timm.__version__ != json.loads(maker.TABLE.read_text())["timm"]:
        pytest.skip("another release of timm is installed")
    assert maker.text_of(maker.collect()) == maker.TABLE.read_text()


def test_the_defaults_are_those_of_the_class() -> None:
    cfg = vars(NaFlexVitCfg())
    known = {k: list(cfg[k]) if isinstance(cfg[k], tuple) else cfg[k] for k in DEFAULTS if k in cfg}
    assert {k: v for k, v in DEFAULTS.items() if k in cfg} == known


def test_the_facts_of_a_name() -> None:
    found = read(config("naflexvit_so400m_patch16_siglip"), "c")
    facts = found.facts
    assert (facts.heads, facts.activation, facts.pooling, facts.norm_eps) == (16, "gelu_tanh", "map", 1e-6)
    assert (facts.grid, facts.image_size, facts.position_resize) == ((16, 16), (256, 256), "bilinear-antialias")
    assert found.sizes["rows"] == 16
    assert found.refusals == ()
    assert arguments("vit_base_patch16_224") is None


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"rope_type": "mrope", "pos_embed": "none"}, "rope_type 'mrope'"),
        ({"attn_gated": True}, "attn_gated"),
        ({"num_kv_heads": 1}, "num_kv_heads 1"),
        ({"global_pool": "avgmax"}, "global_pool 'avgmax'"),
        ({"attn_layer": "diff"}, "attn_layer 'diff'"),
        (
            {"pos_embed": "factorized", "pos_embed_ar_preserving": True, "pos_embed_grid_size": [3, 5]},
            "even at its own",
        ),
    ],
    ids=["rope of three axes", "gate", "grouped", "pool", "differential", "aspect"],
)
def test_what_has_no_counterpart_is_refused(args: dict[str, Any], reason: str) -> None:
    assert any(reason in line for line in read(config(**args), "c").refusals)


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_the_order_of_pixels_is_read_off_the_configuration(last: bool, tmp_path: Path) -> None:
    """No shape tells it: without the configuration channels come last, as by default."""
    cfg = {**SIZES, "global_pool": "avg", "fc_norm": True, "patchify_channels_last": last}
    g = torch.Generator().manual_seed(0)
    weights = NaFlexVit(NaFlexVitCfg(**{**cfg, "pos_embed_grid_size": (3, 5)}), num_classes=5).state_dict()
    weights = {k: torch.randn(v.shape, generator=g) for k, v in weights.items()}
    (tmp_path / "in").mkdir()
    save_file(weights, tmp_path / "in" / "model.safetensors")
    args = {**cfg, "reg_tokens": 0, "init_values": None, "class_token": False}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config(**args)))
    assert run(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "timm"]) == 0
    flat = weights["embeds.proj.weight"]
    kernel = flat.view(16, 4, 4, 3).permute(0, 3, 1, 2) if last else flat.view(16, 3, 4, 4)
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["patch_embed.proj.weight"], kernel)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_medium_patch16_gap_240", "vit_base_patch16_siglip_224"])
def test_a_folder_that_timm_opens(name: str, tmp_path: Path) -> None:
    options = {"img_size": [12, 20], "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    one = timm.create_model(name, num_classes=5, **options).eval()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in one.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    source = tmp_path / "in"
    source.mkdir()
    save_file(dict(one.state_dict()), source / "model.safetensors")
    (source / "config.json").write_text(
        json.dumps({**config(name, **options), "pretrained_cfg": {"input_size": [3, 12, 20], "fixed_input_size": True}})
    )
    more = ["--edit", "fold-cls-position"] if "tiny" in name else []
    assert run(["convert", str(source), str(tmp_path / "out"), "--to", "timm-naflex", *more]) == 0
    two = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert isinstance(two, NaFlexVit)
    x = torch.randn(2, 3, 12, 20, generator=g)
    # A folded row is added in the dtype of the file, as the network that it is of adds it.
    assert torch.allclose(two.double()(x.double()), one.double()(x.double()), rtol=0, atol=1e-6 if more else 1e-12)


@pytest.mark.parametrize("to", ["timm", "timm-naflex"])
def test_a_pooling_that_timm_has_not_gives_no_configuration(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """big_vision's pool_type "0" takes the first patch; timm would not pool at all where its name is unknown."""
    source = Path(__file__).parents[2] / "fixtures" / "golden" / "npz" / "big-vision-first.npz"
    sets = ("--set", "pooling=first", "--set", "grid=4x4")
    assert run(["convert", str(source), str(tmp_path / "out"), "--to", to, *sets]) == 0
    assert "pooling=first: timm pools the class token, a mean, or by an attention-pooling" in capsys.readouterr().out
    assert not (tmp_path / "out" / "config.json").exists()
