"""timm's NaFlexVit computes in float64 what the classic networks do from converted weights, and back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load

timm = pytest.importorskip("timm")
from timm.models import VisionTransformer  # noqa: E402
from timm.models.eva import Eva  # noqa: E402
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg, batch_patchify  # noqa: E402

TINY = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
WIDE = {**TINY, "embed_dim": 32}
SIDES = {"p": 4, "q": 4}
X = torch.randn(2, 3, 12, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return the network in float64 with every parameter of O(1)."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.double().named_parameters():
            draw = torch.randn(p.shape, generator=g, dtype=torch.float64)
            p.copy_(draw * 0.3 + 1 if p.ndim == 1 and name.endswith(("weight", "gamma")) else draw * 0.3)
    return module.eval()


def flexible(classes: int = 5, **more: Any) -> nn.Module:
    cfg = NaFlexVitCfg(**{**TINY, "pos_embed_grid_size": (3, 5), **more})
    return NaFlexVit(cfg, num_classes=classes).double().eval()


def classic(**more: Any) -> nn.Module:
    return drawn(VisionTransformer(**{**TINY, "img_size": (12, 20), "num_classes": 5, **more}))


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


PLAIN = {"no_embed_class": True}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token": (PLAIN, {"class_token": True, "global_pool": "token"}),
    "registers": (
        {**PLAIN, "class_token": False, "reg_tokens": 3, "global_pool": "avg", "init_values": 0.1},
        {"reg_tokens": 3, "global_pool": "avg", "init_values": 0.1},
    ),
    "map": ({**PLAIN, "class_token": False, "global_pool": "map"}, {}),
    "norms": (
        {**PLAIN, "pre_norm": True, "qk_norm": True, "scale_mlp_norm": True, "scale_attn_norm": True},
        {"class_token": True, "global_pool": "token", "pre_norm": True, "qk_norm": True, "scale_mlp_norm": True}
        | {"scale_attn_inner_norm": True},
    ),
    "no bias": (
        {**PLAIN, "qkv_bias": False, "proj_bias": False},
        {"class_token": True, "global_pool": "token", "qkv_bias": False, "proj_bias": False},
    ),
    "RMS": (
        {**PLAIN, "norm_layer": "rmsnorm"},
        {"class_token": True, "global_pool": "token", "norm_layer": "rmsnorm"},
    ),
}


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("stem", ["linear", "linear-channels-first", "conv"])
def test_a_classic_network_becomes_one_and_comes_back(case: str, stem: str) -> None:
    here, there = PAIRS[case]
    options = {"embed_proj_type": "conv" if stem == "conv" else "linear", "patchify_channels_last": stem == "linear"}
    one, two = classic(**here), flexible(**there, **options)
    weights = dict(one.state_dict())
    facts = {"grid": "3x5", "position": "learned"}
    moved = translate(weights, "timm", "timm-naflex", facts=facts, choices={"stem": stem})
    two.load_state_dict(moved)
    assert near(two(X), one(X)) < 1e-12
    if stem != "linear-channels-first":
        assert same(translate(moved, "timm-naflex", "timm", facts=facts, axes=SIDES), weights)


def test_patches_cut_beforehand_and_padded_give_the_same() -> None:
    one, two = classic(**PLAIN), flexible(class_token=True, global_pool="token")
    two.load_state_dict(translate(dict(one.state_dict()), "timm", "timm-naflex", facts={"grid": "3x5"}))
    rows, grid = batch_patchify(X, (4, 4))
    place = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij"), -1).flatten(0, 1)[None].repeat(2, 1, 1)
    padded = nn.functional.pad(rows, (0, 0, 0, 2))
    valid = (torch.arange(17) < 15)[None].repeat(2, 1)
    out = two(padded, patch_coord=nn.functional.pad(place, (0, 0, 0, 2)), patch_valid=valid)
    assert near(out, one(X)) < 1e-12


def test_the_other_order_of_pixels_computes_something_else() -> None:
    """No shape tells the two linear forms apart, so the planted fault is felt only here."""
    one = classic(**PLAIN)
    weights = translate(dict(one.state_dict()), "timm", "timm-naflex", facts={"grid": "3x5"})
    wrong = flexible(class_token=True, global_pool="token", patchify_channels_last=False)
    wrong.load_state_dict(weights)
    assert near(wrong(X), one(X)) > 0.1


def test_a_row_of_the_class_token_is_folded_and_only_on_request(tmp_path: Path) -> None:
    """Folding pos[0] is left out: relative error above one; asked for, it is exact."""
    one = classic()
    save_file(dict(one.state_dict()), tmp_path / "s.safetensors")
    arguments = ["convert", str(tmp_path / "s.safetensors"), str(tmp_path / "o.safetensors"), "--to", "timm-naflex"]
    arguments += ["--set", "grid=3x5"]
    assert run(arguments) == 3
    assert not (tmp_path / "o.safetensors").exists()
    assert run([*arguments, "--edit", "fold-cls-position", "--prove"]) == 0
    two = flexible(class_token=True, global_pool="token")
    two.load_state_dict(load_file(tmp_path / "o.safetensors"))
    assert near(two(X), one(X)) < 1e-12
    with torch.no_grad():
        two.embeds.cls_token.sub_(one.pos_embed[:, :1])
    assert near(two(X), one(X)) > 0.1


def test_a_sum_of_rows_and_columns_is_joined(tmp_path: Path) -> None:
    one = drawn(flexible(pos_embed="factorized", reg_tokens=2, global_pool="avg"))
    save_file(dict(one.state_dict()), tmp_path / "s.safetensors")
    arguments = ["convert", str(tmp_path / "s.safetensors"), str(tmp_path / "o.safetensors"), "--axis", "p=4"]
    arguments += ["--axis", "q=4", "--to", "timm"]
    assert run(arguments) == 3
    assert run([*arguments, "--edit", "join-position"]) == 0
    two = classic(**PLAIN, class_token=False, reg_tokens=2, global_pool="avg")
    two.load_state_dict(load_file(tmp_path / "o.safetensors"))
    assert near(two(X), one(X)) < 1e-12


@pytest.mark.parametrize("pos", ["learned", "factorized"])
def test_the_reference_computes_it(pos: str) -> None:
    one = drawn(flexible(pos_embed=pos, class_token=True, global_pool="token", embed_norm_layer="layernorm"))
    built = load(HOSTS, "timm").describe(one, Spec("", {}))
    there = translate(dict(one.state_dict()), "timm-naflex", "canonical", axes=SIDES)
    shapes = {k: tuple(v.shape) for k, v in there.items()}
    facts = built.facts.replaced({"embed_norm_eps": 1e-6})
    reference = load(HOSTS, "reference").build(Spec("", {}, facts, shapes)).module.double().eval()
    reference.load_state_dict(there)
    assert built.facts.grid == (3, 5)
    assert near(reference(X), one(X)) < 1e-12


HALF = {"rope_type": "dinov3", "rope_rotate_half": True, "rope_temperature": 100.0}


def rotary(layout: str, **more: Any) -> nn.Module:
    kind = HALF if layout == "dinov3" else {}
    sizes = {**WIDE, "img_size": (12, 20), "num_classes": 5, "use_rot_pos_emb": True}
    return drawn(Eva(**sizes, **kind, **more))


EVA = {"class_token": True, "global_pool": "avg", "fc_norm": True, "attn_type": "eva"}


@pytest.mark.parametrize(
    ("layout", "here", "there"),
    [
        (
            "cat",
            {"use_abs_pos_emb": False, "ref_feat_shape": (5, 3)},
            {"pos_embed": "none", "rope_ref_feat_shape": (5, 3)},
        ),
        ("dinov3", {"use_abs_pos_emb": False, "num_reg_tokens": 2}, {"pos_embed": "none", "reg_tokens": 2}),
        (
            "cat",
            {"qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True, "use_abs_pos_emb": False}
            | {"ref_feat_shape": (3, 5)},
            {"qkv_fused": False, "swiglu_mlp": True, "scale_mlp_norm": True, "pos_embed": "none"}
            | {"rope_ref_feat_shape": (3, 5)},
        ),
    ],
    ids=["eva", "dinov3", "eva-02"],
)
def test_eva_becomes_one_and_comes_back(layout: str, here: dict[str, Any], there: dict[str, Any]) -> None:
    one = rotary(layout, **here)
    more = {"rope_type": "axial"} if layout == "cat" else HALF
    two = flexible(**{**WIDE, **EVA, **more, **there})
    weights = dict(one.state_dict())
    choices = {"attention": "split", "mlp": "SwiGLU"} if here.get("swiglu_mlp") else {}
    facts = {"position": "rope", "grid": "3x5"}
    moved = translate(weights, "timm-eva", "timm-naflex-eva", facts=facts, choices=choices)
    two.load_state_dict(moved)
    # The waves of rotary positions are computed in float32.
    assert near(two(X), one(X)) < 1e-6
    assert same(translate(moved, "timm-naflex-eva", "timm-eva", facts=facts, choices=choices, axes=SIDES), weights)


def test_trained_frequencies_are_refused_with_the_reason() -> None:
    cfg = {**WIDE, **EVA, "rope_type": "mixed", "pos_embed": "none"}
    with pytest.raises(Refused, match="frequencies that are trained"):
        translate(dict(flexible(**cfg).state_dict()), None, "timm")


def test_siglip_2_keeps_its_patches_as_rows() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Siglip2VisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, patch_size=4, num_patches=16
    )
    one = drawn(transformers.Siglip2VisionModel(config))
    two = flexible(0, pos_embed_grid_size=(4, 4), act_layer="gelu_tanh")
    facts = {"grid": "4x4"}
    weights = dict(one.state_dict())
    moved = translate(weights, "hf-siglip2", "timm-naflex", facts=facts, axes=SIDES)
    two.load_state_dict(moved)
    x = X[:, :, :, :12].repeat(1, 1, 2, 2)[:, :, :16, :16].contiguous()
    rows, grid = batch_patchify(x, (4, 4))
    shapes = torch.tensor([grid] * 2)
    out = one(rows, pixel_attention_mask=torch.ones(2, 16, dtype=torch.long), spatial_shapes=shapes).pooler_output
    # Its table goes through an interpolation in float32 even at its own size.
    assert near(two(x), out) < 1e-5
    back = translate(moved, "timm-naflex", "hf-siglip2", facts=facts, axes=SIDES)
    assert same({k.removeprefix("vision_model."): v for k, v in back.items()}, weights)
