"""F01, F02, F04, F08, F13: more inputs of their kinds: wide images, windows that are no squares, other families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import equal, rand_t, save, tensors, vitconv
from torch import nn

SIZES: dict[str, Any] = {"patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}


def filled(net: nn.Module, seed: int = 0) -> nn.Module:
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=gen) + (1.0 if p.dim() == 1 else 0.0))
    return net.eval()


def swin(image: tuple[int, int], window: int | tuple[int, int], seed: int = 0) -> nn.Module:
    models = pytest.importorskip("timm.models")
    return filled(models.SwinTransformer(img_size=image, window_size=window, **SIZES), seed)


def test_f01_masks_of_a_wide_image_are_read_and_made_anew(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin((16, 32), 2).state_dict())
    wide, square, back = (tmp_path / f"{name}.safetensors" for name in ("wide", "square", "back"))
    assert vitconv("convert", source, wide, "--to", "swin", "--set", "image_size=16x32").code == 0
    masks = {k: v.shape for k, v in tensors(wide).items() if k.endswith("attn_mask")}
    assert masks == {"layers.0.blocks.1.attn_mask": (32, 4, 4), "layers.1.blocks.1.attn_mask": (8, 4, 4)}
    # A bare file: the size of the images is in the masks alone.
    plain = save(tmp_path / "plain.safetensors", tensors(wide))
    assert "image_size: 16,32, which the tensors hold" in vitconv("inspect", plain).out
    assert vitconv("convert", plain, square, "--to", "swin", "--set", "image_size=24").code == 0
    assert tensors(square)["layers.0.blocks.1.attn_mask"].shape == (36, 4, 4)
    assert vitconv("convert", square, back, "--to", "timm-swin").code == 0
    assert equal(tensors(back), tensors(source))


def test_f01_a_mask_of_a_wide_image_that_is_wrong_is_refused(tmp_path: Path) -> None:
    source, wide = save(tmp_path / "s.safetensors", swin((16, 32), 2).state_dict()), tmp_path / "wide.safetensors"
    assert vitconv("convert", source, wide, "--to", "swin", "--set", "image_size=16x32").code == 0
    state = tensors(wide)
    state["layers.0.blocks.1.attn_mask"][3, 0, 1] = -100.0
    answer = vitconv(
        "convert", save(tmp_path / "w.safetensors", state), tmp_path / "o.safetensors", "--to", "timm-swin"
    )
    assert answer.code == 3
    assert "layers.0.blocks.1.attn_mask should be" in answer.err


def test_f01_without_the_size_of_the_images_no_file_without_masks_is_written(tmp_path: Path) -> None:
    source, out = save(tmp_path / "s.safetensors", swin((16, 16), 2).state_dict()), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "swin")
    assert answer.code == 3
    assert "masks of shifted windows depend on the size of the images" in answer.err
    assert "--set image_size=224" in answer.err
    assert not out.exists()


def test_f01_a_table_of_positions_of_another_size_is_told_apart(tmp_path: Path) -> None:
    state = {**swin((16, 16), 2).state_dict(), "absolute_pos_embed": torch.randn(1, 64, 8)}
    state["head.weight"], state["head.bias"] = state.pop("head.fc.weight"), state.pop("head.fc.bias")
    moved = {k: v for k, v in state.items() if "downsample" not in k}
    moved |= {k.replace("layers.1.", "layers.0."): v for k, v in state.items() if "downsample" in k}
    source, out = save(tmp_path / "s.safetensors", moved), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "swin", "--set", "image_size=24")
    assert answer.code == 3
    assert "144 places; the table of positions (embed.pos) has 64" in answer.err
    edit = ("--edit", "resize-position:to=12,rule=bicubic", "--set", "grid=8x8")
    answer = vitconv("convert", source, out, "--to", "swin", *edit)
    assert answer.code == 0, answer.text
    assert tensors(out)["absolute_pos_embed"].shape == (1, 144, 8)
    assert tensors(out)["layers.0.blocks.1.attn_mask"].shape == (36, 4, 4)


@pytest.mark.parametrize(("window", "to"), [((4, 2), "2x4"), ((2, 4), "4")], ids=["turned", "square"])
def test_f02_windows_that_are_no_squares(tmp_path: Path, window: tuple[int, int], to: str) -> None:
    source, out = save(tmp_path / "s.safetensors", swin((32, 32), window).state_dict()), tmp_path / "o.safetensors"
    edit = f"resize-window:to={to},rule=bicubic"
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--edit", edit)
    assert answer.code == 3
    assert "21 rows, those of no square window" in answer.err
    told = ("--set", f"window={window[0]}", "--set", f"window_width={window[1]}")
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--edit", edit, *told)
    assert answer.code == 0, answer.text
    high, _, wide = to.partition("x")
    swin((32, 32), (int(high), int(wide or high)), seed=1).load_state_dict(tensors(out), strict=True)


def test_f02_an_index_says_the_window_of_torchvision(tmp_path: Path) -> None:
    vision = pytest.importorskip("torchvision.models.swin_transformer")
    net = filled(vision.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 2], num_classes=5))
    source, out = save(tmp_path / "s.safetensors", net.state_dict()), tmp_path / "o.safetensors"
    said = vitconv("inspect", source).out
    assert "window: 4,4, which the tensors hold" in said
    assert "window_width: 2,2, which the tensors hold" in said
    answer = vitconv("convert", source, out, "--to", "torchvision-swin", "--edit", "resize-window:to=4,rule=bicubic")
    assert answer.code == 0, answer.text
    again = vision.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], num_classes=5)
    again.load_state_dict(tensors(out), strict=True)


def test_f04_swin_v2_without_buffers_is_asked_for_both_windows(tmp_path: Path) -> None:
    models = pytest.importorskip("timm.models")
    net = filled(models.SwinTransformerV2(img_size=(16, 32), window_size=(4, 8), **SIZES))
    source = save(tmp_path / "s.safetensors", net.state_dict())
    said = vitconv("inspect", source).out
    for fact in ("window", "pretrained_window", "image_size"):
        assert f"state it with --set {fact}=..." in said
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "torchvision-swinv2", "--set", "pretrained_window=0")
    assert answer.code == 3
    assert "--set window=7 (and --set window_width=... if they are no squares)" in answer.err
    told = ("--set", "window=4", "--set", "window_width=8,8")
    answer = vitconv("convert", source, out, "--to", "torchvision-swinv2", "--set", "pretrained_window=0", *told)
    assert answer.code == 0, answer.text
    vision = pytest.importorskip("torchvision.models.swin_transformer")
    parts = {"block": vision.SwinTransformerBlockV2, "downsample_layer": vision.PatchMergingV2}
    there = vision.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 8], num_classes=5, **parts)
    there.load_state_dict(tensors(out), strict=True)
    x = torch.randn(2, 3, 16, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (net(x) - there.eval()(x)).abs().max() < 1e-4


@pytest.mark.parametrize("side", ["8x32", "22"], ids=["one-window-high", "not-tiled"])
def test_f08_windows_that_codebases_lay_out_differently_are_said(tmp_path: Path, side: str) -> None:
    source, out = save(tmp_path / "s.safetensors", swin((16, 16), 4).state_dict()), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "torchvision-swin", "--set", f"image_size={side}")
    assert answer.code == 0, answer.text
    assert "laid out as timm's code does (window_rule); others do it in another way: not one function" in answer.out
    answer = vitconv(
        "convert", source, tmp_path / "p.safetensors", "--to", "torchvision-swin", "--set", "image_size=16"
    )
    assert "laid out" not in answer.out


def test_f08_dense_prediction_shifts_the_one_window_of_a_map_and_that_is_kept_and_said(tmp_path: Path) -> None:
    """No tensor tells mmseg's backbone from mmpretrain's of classification: the last map of 4x4 is asked about."""
    path = Path(__file__).parents[2] / "fixtures" / "golden" / "stages" / "mmseg-swin-whole.safetensors"
    state = {k.removeprefix("weight."): v for k, v in tensors(path).items() if k.startswith("weight.")}
    source, out, back = (tmp_path / f"{name}.safetensors" for name in ("s", "o", "b"))
    save(source, {k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    convert = ("convert", source, out, "--to", "timm-swin", "--set", "image_size=16")
    assert "backbones of mmseg and mmdet, and with pad_small_map, in another: --set window_rule=mmseg" in (
        vitconv(*convert, "--dry-run").out
    )
    answer = vitconv(*convert, "--set", "window_rule=mmseg")
    assert answer.code == 0, answer.text
    said = (
        "windows of 4x4 on a map of 4x4 are laid out as mmseg's code does (window_rule); networks of classification do"
    )
    assert said in answer.out
    # It stays with the file, and comes back with it.
    answer = vitconv("convert", out, back, "--to", "mmpretrain-swin")
    assert answer.code == 0 and said in answer.out
    assert equal(tensors(back), tensors(source))


@pytest.mark.parametrize("claimed", ["beit", "swin", "flatten-swin", "pvt", "swinv2"])
def test_f13_a_file_of_mae_is_none_of_these(tmp_path: Path, claimed: str) -> None:
    mae = {**rand_t(head=False), "mask_token": torch.randn(1, 1, 16), "decoder_embed.weight": torch.randn(16, 32)}
    mae |= {"decoder_embed.bias": torch.randn(16), "decoder_pos_embed": torch.randn(1, 17, 16)}
    source, out = save(tmp_path / "mae.safetensors", mae), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--from", claimed, "--to", "timm")
    assert answer.code in (1, 3)
    assert answer.err.startswith("error: ")
    assert not out.exists()


def test_f05_a_dense_backbone_of_microsofts_names_is_read_and_written_on_request(tmp_path: Path) -> None:
    """The last norm of classification is the last of a backbone's own, as mmsegmentation's Swin has them."""
    state = {k: v for k, v in swin((16, 16), 2).state_dict().items() if not k.startswith("head.")}
    source, dense, back = (tmp_path / f"{name}.safetensors" for name in ("s", "dense", "back"))
    save(source, state)
    told = ("--set", "image_size=16", "--set", "model=dense")
    answer = vitconv("convert", source, dense, "--to", "swin", *told)
    assert answer.code == 0, answer.text
    assert torch.equal(tensors(dense)["norm1.weight"], state["norm.weight"])
    assert sorted(k for k in tensors(dense) if k.startswith("norm")) == ["norm1.bias", "norm1.weight"]
    backbone = {f"backbone.{k}": v for k, v in tensors(dense).items()}
    head = {"decode_head.conv_seg.weight": torch.randn(5, 16, 1, 1)}
    more = {"backbone.norm0.weight": torch.randn(8), "backbone.norm0.bias": torch.randn(8)}
    published = save(tmp_path / "published.pth", {"state_dict": {**backbone, **head, **more}})
    answer = vitconv("convert", published, back, "--to", "timm-swin")
    assert answer.code == 1
    assert "closest: swin (model=dense)" in answer.err
    assert "norm0.weight" in answer.err
    answer = vitconv("convert", published, back, "--to", "timm-swin", "--drop", "norm0.*", "--drop", "decode_head.*")
    assert answer.code == 0, answer.text
    assert equal(tensors(back), state)


def test_f05_a_classifier_has_no_place_in_a_dense_backbone(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin((16, 16), 2).state_dict())
    told = ("--set", "image_size=16", "--set", "model=dense")
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "swin", *told)
    assert answer.code == 3
    assert "head.weight" in answer.err
    plain = tmp_path / "plain.safetensors"
    assert vitconv("convert", source, plain, "--to", "swin", "--set", "image_size=16").code == 0
    assert "norm.weight" in tensors(plain)


def test_f08_blocks_of_one_stage_may_differ_in_their_windows(tmp_path: Path) -> None:
    """A focused block whose window is as high as the map, beside one of softmax in windows of 7, on a wide map."""
    state = {k: v for k, v in swin((28, 56), 7).state_dict().items() if not k.startswith("head.")}
    source, out = save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors"
    edit = ("--edit", "focus-attention:types=MS1,window=14", "--set", "image_size=28x56")
    answer = vitconv("convert", source, out, "--to", "flatten-swin", *edit)
    assert answer.code == 0, answer.text
    bare = save(tmp_path / "bare.safetensors", tensors(out))
    answer = vitconv("inspect", bare, "--set", "image_size=28x56")
    assert "stage 1: shifted windows of 7x7 on a map of 7x14 are laid out as microsoft's code does" in answer.out
    assert "stage 0" not in answer.out


TRACE = Path(__file__).parents[2] / "fixtures" / "golden" / "stages" / "swin-scale.safetensors"


def test_b11_a_scale_of_the_scores_is_computed_and_refused_by_who_has_none(tmp_path: Path) -> None:
    """qk_scale of Microsoft's Swin is in no tensor, and one number for all stages."""
    weights = {k.removeprefix("weight."): v for k, v in tensors(TRACE).items() if k.startswith("weight.")}
    path, out = save(tmp_path / "s.safetensors", weights), tmp_path / "o.safetensors"
    answer = vitconv("convert", path, out, "--to", "timm-swin", "--set", "attention_scale=0.3")
    assert answer.code == 3
    assert "attention scale: stage 0, 0.3 here, but" in answer.err
    assert not out.exists()
    # Its heads are 4 wide, in both stages.
    assert vitconv("convert", path, out, "--to", "timm-swin", "--set", "attention_scale=0.5").code == 0
    assert (
        vitconv("convert", path, tmp_path / "p.safetensors", "--to", "swin", "--set", "attention_scale=0.3").code == 0
    )


def test_f08_a_window_is_told_as_the_configuration_has_it(tmp_path: Path) -> None:
    """Microsoft's code makes a window as small as its map: window_size=16 on maps of 8x8 and 4x4."""
    source = save(tmp_path / "s.safetensors", swin((16, 16), 8).state_dict())
    ms = tmp_path / "ms.safetensors"
    assert vitconv("convert", source, ms, "--to", "swin", "--set", "image_size=16").code == 0
    plain = save(tmp_path / "plain.safetensors", tensors(ms))
    answer = vitconv("inspect", plain, "--set", "window=16", "--set", "image_size=16")
    assert answer.code == 0, answer.text
    assert "(8, 4)" in answer.out
    for told in ("window=6", "window=2"):
        answer = vitconv("inspect", plain, "--set", told, "--set", "image_size=16")
        assert answer.code == 3, told
        assert "the tensors have window=8,4" in answer.out


def test_f04_pre_training_at_one_s_own_window_is_none(tmp_path: Path) -> None:
    """pretrained_window_sizes=[4, 0] with windows of 4: the coordinates are those of its own window."""
    models = pytest.importorskip("timm.models")
    net = filled(models.SwinTransformerV2(img_size=16, window_size=4, **SIZES))
    source, ms = save(tmp_path / "s.safetensors", net.state_dict()), tmp_path / "ms.safetensors"
    sets = ("--set", "image_size=16", "--set", "window=4", "--set", "pretrained_window=0")
    assert vitconv("convert", source, ms, "--to", "swinv2", *sets).code == 0
    plain = save(tmp_path / "plain.safetensors", tensors(ms))
    assert vitconv("inspect", plain, "--set", "pretrained_window=4,0").code == 0
    answer = vitconv("inspect", plain, "--set", "pretrained_window=6,0")
    assert answer.code == 3
    assert "the tensors have pretrained_window=0,0, but pretrained_window=6,0 was said" in answer.out
