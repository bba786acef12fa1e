"""Parameter groups by role: the same in every dialect, and those of the libraries under their presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from vitconv.cli.main import run
from vitconv.errors import UsageError
from vitconv.layout.groups import PRESETS, Grouped, grouped, place_of, preset

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


def found(path: Path, capsys, *more: str) -> dict[str, tuple[bool, int, float]]:
    """Return {key: (decays, layer, scale)} as `inspect --groups` prints them."""
    capsys.readouterr()
    assert run(["inspect", str(path), "--groups", "--json", *more]) == 0
    sections = {s["key"]: s for s in json.loads(capsys.readouterr().out)["sections"]}
    return {r["key"]: (r["decay"] == "decay", r["layer"], r["scale"]) for r in sections["parameters"]["rows"]}


def timm_vit(**kw: object) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**{**SMALL, **kw})


def save(tmp_path: Path, module: nn.Module) -> Path:
    path = tmp_path / "m.pth"
    torch.save(module.state_dict(), path)
    return path


def test_l01_register_tokens_belong_to_the_embedding_and_do_not_decay(tmp_path: Path, capsys) -> None:
    path = save(tmp_path, timm_vit(reg_tokens=4, no_embed_class=True, init_values=0.1))
    groups = found(path, capsys, "--layer-decay", "0.5")
    assert groups["reg_token"] == (False, 0, 0.125)
    assert groups["blocks.1.attn.qkv.weight"] == (True, 2, 0.5)
    assert groups["blocks.0.ls1.gamma"] == (False, 1, 0.25)
    assert groups["head.weight"] == (True, 3, 1.0)
    first = {"cls_token", "reg_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert {k for k, v in groups.items() if v[1] == 0} == first


VARIANTS: list[dict[str, object]] = [
    {},
    {"reg_tokens": 2, "no_embed_class": True},
    {"init_values": 0.1},
    {"qkv_bias": False},
]


@pytest.mark.parametrize("kw", VARIANTS, ids=["plain", "registers", "layer scale", "no qkv bias"])
def test_the_preset_of_timm_is_timm_s_own(tmp_path: Path, capsys, kw: dict[str, object]) -> None:
    from timm.optim import param_groups_weight_decay

    module = timm_vit(**kw)
    names = {id(p): n for n, p in module.named_parameters()}
    theirs = param_groups_weight_decay(module, 0.05, no_weight_decay_list=module.no_weight_decay())
    want = {names[id(p)]: bool(g["weight_decay"]) for g in theirs for p in g["params"]}
    groups = found(save(tmp_path, module), capsys, "--preset", "timm")
    assert {k: v[0] for k, v in groups.items()} == want


SWIN = {"img_size": 64, "embed_dim": 12, "depths": (1, 2), "num_heads": (2, 2), "window_size": 4, "num_classes": 3}


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "beit_base_patch16_224"],
)
@pytest.mark.parametrize("layered", [False, True], ids=["decay", "layers"])
def test_the_preset_of_timm_is_timms_own_in_other_families(name: str, layered: bool, tmp_path: Path, capsys) -> None:
    import timm
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    sizes = SWIN if "swin" in name else {**SMALL, "patch_size": 8}
    module = timm.create_model(name, **sizes)
    names = {id(p): n for n, p in module.named_parameters()}
    skip = module.no_weight_decay()
    make = param_groups_layer_decay if layered else param_groups_weight_decay
    more = {"layer_decay": 0.5} if layered else {}
    theirs = make(module, 0.05, no_weight_decay_list=skip, **more)
    want = {names[id(p)]: (bool(g["weight_decay"]), g.get("lr_scale", 1.0)) for g in theirs for p in g["params"]}
    words = ("--layer-decay", "0.5") if layered else ()
    groups = found(save(tmp_path, module), capsys, "--preset", "timm", *words)
    assert {k: (v[0], pytest.approx(v[2])) for k, v in groups.items()} == want


def test_l02_norms_are_found_by_role_in_every_naming(tmp_path: Path, capsys) -> None:
    path = save(tmp_path, timm_vit())
    free = {}
    for to in ("hf-vit", "torchvision", "xformers", "canonical", "timm"):
        out = tmp_path / f"{to}.safetensors"
        assert run(["convert", str(path), str(out), "--to", to]) == 0
        free[to] = sum(not decays for decays, _, _ in found(out, capsys).values())
    # Of q, k and v apart each has a bias.
    assert free == {"hf-vit": 26, "torchvision": 22, "xformers": 26, "canonical": 27, "timm": 22}


PRESET_CASES = [
    ("role", False, False, False),
    ("timm", False, False, False),
    ("timm-early", False, False, False),
    ("deit", False, True, False),
    ("mae", False, True, False),
    ("dino", True, True, False),
    ("trainer", True, True, True),
]


@pytest.mark.parametrize(("name", "cls", "dist", "scale"), PRESET_CASES, ids=[c[0] for c in PRESET_CASES])
def test_l05_presets_differ_in_tokens(name: str, cls: bool, dist: bool, scale: bool) -> None:
    tensors = [
        ("cls_token", ("embed.cls",), (1, 1, 8)),
        ("dist_token", ("embed.dist",), (1, 1, 8)),
        ("ls1.gamma", ("blocks.0.ls1",), (8,)),
        ("norm.weight", ("norm.weight",), (8,)),
        ("head.weight", ("head.weight",), (5, 8)),
    ]
    tensors.append(("reg_token", ("embed.reg",), (1, 4, 8)))
    decays = {g.key: g.decays for g in grouped(tensors, 2, rule=preset(name))}
    assert decays.pop("reg_token") is (name not in ("role", "timm"))
    assert decays == {
        "cls_token": cls, "dist_token": dist, "ls1.gamma": scale, "norm.weight": False, "head.weight": True
    }  # fmt: skip


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=f"there are {', '.join(PRESETS)}"):
        preset("adam")


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        (("embed.pos_cls", "embed.pos"), ("position", 0)),
        (("embed.reg",), ("token.reg", 0)),
        (("blocks.11.mlp.up.weight",), ("mlp", 12)),
        (("norm.weight",), ("norm", 13)),
        ((), ("other", 13)),
        (("decoder.blocks.0.mlp.up.weight",), ("mlp", 13)),
    ],
    ids=lambda x: str(x[0]) if x else "none",
)
def test_places(parts: tuple[str, ...], place: tuple[str, int]) -> None:
    assert place_of(parts, 12) == place


def test_a_name_list_would_miss_norms() -> None:
    """Planted: by the name parts of one codebase nothing in another is a norm."""
    rows = [("layernorm_before.weight", ("blocks.0.norm1.weight",), (8, 1))]
    assert [g.decays for g in grouped(rows, 1, rule=preset("trainer"))] == [False]
    blind = [(key, (), shape) for key, _, shape in rows]
    assert [g.decays for g in grouped(blind, 1, rule=preset("trainer"))] == [True]
    assert isinstance(grouped(rows, 1, rule=preset("role"))[0], Grouped)
