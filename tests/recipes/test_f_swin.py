"""F: Swin, Swin V2 and what hangs on windows: buffers, tables, merging order, the window of pre-training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import equal, rand_t, save, tensors, vitconv
from torch import Tensor, nn

from vitconv.conversion.translate import translate
from vitconv.layout.semantics import Semantics
from vitconv.vit.stages.config import config_of_stages
from vitconv.vit.stages.model import StageViT

IMAGE, WINDOW = 16, 2
INDEX = ("relative_position_index", "attn_mask", "relative_coords_table")


def swin(
    *, v2: bool = False, image: int = IMAGE, window: int = WINDOW, seed: int = 0, depths: tuple[int, ...] = (2, 2)
) -> nn.Module:
    """Return a tiny Swin of timm's, every parameter drawn: dim 8, heads 2-4, patch 2."""
    timm = pytest.importorskip("timm")
    entry = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
    sizes: dict[str, Any] = {"embed_dim": 8, "depths": depths, "num_heads": (2, 4, 8)[: len(depths)]}
    net = timm.create_model(entry, img_size=image, patch_size=2, window_size=window, num_classes=5, **sizes)
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=gen) + (1.0 if p.dim() == 1 else 0.0))
    return net.eval()


def published(tmp_path: Path, image: int = IMAGE) -> Path:
    """Return a file as Microsoft's code writes it: buffers of one image size and all."""
    source = save(tmp_path / "timm.safetensors", swin().state_dict())
    out = tmp_path / "ms.safetensors"
    answer = vitconv("convert", source, out, "--to", "swin", "--set", f"image_size={image}")
    assert answer.code == 0, answer.text
    return out


def reference(state: dict[str, Tensor], pretrained: int) -> nn.Module:
    """Return the reference of a Swin V2 of timm's, with windows of 4."""
    facts = {"window": (4,), "pretrained_window": (pretrained,), "image_size": (IMAGE, IMAGE)}
    canonical = translate(state, "timm-swinv2", "canonical-stages", facts=facts)
    known = {"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "activation": "gelu"}
    shapes = {k: tuple(v.shape) for k, v in canonical.items()}
    config = config_of_stages(shapes, Semantics(**facts, **known, norm_placement="res-post", pooling="avg"))
    net = StageViT(config)
    net.load_state_dict(canonical, strict=True)
    return net


def images(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(7))


def test_f01_buffers_are_made_anew_for_another_image_size(tmp_path: Path) -> None:
    source = published(tmp_path)
    assert any(k.endswith("attn_mask") for k in tensors(source))
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--set", "image_size=24")
    assert answer.code == 0, answer.text
    fresh = swin(image=24, seed=1)
    fresh.load_state_dict(tensors(out), strict=True)
    copied = swin(image=24, seed=2)
    copied.load_state_dict(swin().state_dict(), strict=False)
    with torch.no_grad():
        assert torch.equal(fresh(images(24)), copied(images(24)))


def test_f01_masks_for_the_new_size_are_those_of_the_published_code(tmp_path: Path) -> None:
    """8x8 places and windows of 2: the last window of a row holds three regions that must not see each other."""
    out = tmp_path / "again.safetensors"
    answer = vitconv("convert", published(tmp_path), out, "--to", "swin", "--set", "image_size=24")
    assert answer.code == 0, answer.text
    mask = tensors(out)["layers.0.blocks.1.attn_mask"]
    assert mask.shape == (36, 4, 4)
    assert set(mask.unique().tolist()) == {-100.0, 0.0}
    assert not mask[0].any()
    assert mask[-1].tolist() == [[0 if i == j else -100 for j in range(4)] for i in range(4)]


def test_f01_a_buffer_that_is_not_what_it_should_be_is_no_buffer(tmp_path: Path) -> None:
    state = tensors(published(tmp_path))
    state["layers.0.blocks.0.attn.relative_position_index"] += 1
    source = save(tmp_path / "wrong.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "out.safetensors", "--to", "timm-swin")
    assert answer.code == 3
    assert "relative_position_index" in answer.err
    assert not (tmp_path / "out.safetensors").exists()


def test_f02_a_table_is_resized_when_asked_and_said(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin().state_dict())
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--edit", "resize-window:to=4")
    assert answer.code == 3
    assert "rule=bicubic" in answer.err
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--edit", "resize-window:to=4,rule=bicubic")
    assert answer.code == 0, answer.text
    assert "4 tables of relative positions" in answer.text
    here, there = tensors(source), tensors(out)
    for key, x in here.items():
        if not key.endswith("bias_table"):
            assert torch.equal(x, there[key])
            continue
        assert there[key].shape == (49, x.shape[1])
        grid = x.T.reshape(1, -1, 3, 3)
        want = nn.functional.interpolate(grid, size=(7, 7), mode="bicubic").reshape(-1, 49).T
        assert (there[key] - want).abs().max() < 1e-6
    swin(window=4, seed=1).load_state_dict(there, strict=True)


def test_f02_a_window_that_is_there_already_changes_nothing(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin().state_dict())
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--edit", f"resize-window:to={WINDOW}")
    assert answer.code == 0, answer.text
    assert equal(tensors(source), tensors(out))


def test_f04_the_window_of_pre_training_is_asked_for_and_stored(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin(v2=True, window=4).state_dict())
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "swinv2", "--set", "window=4", "--set", f"image_size={IMAGE}")
    assert answer.code == 3
    assert "--set pretrained_window=0" in answer.err
    told = ("--set", "window=4", "--set", f"image_size={IMAGE}", "--set", "pretrained_window=2")
    answer = vitconv("convert", source, out, "--to", "swinv2", *told)
    assert answer.code == 0, answer.text
    # The published layout holds it in its table of coordinates, and it is read back from there.
    plain = save(tmp_path / "plain.safetensors", tensors(out))
    said = vitconv("inspect", plain).out
    assert re.search(r"pretrained_window +\(2, 2\) +tensors", said), said


def test_f04_parameters_are_equal_and_outputs_are_not() -> None:
    state = swin(v2=True, window=4).state_dict()
    nets = [reference(state, pretrained) for pretrained in (0, 4, 2)]
    assert all(equal(nets[0].state_dict(), net.state_dict()) for net in nets)
    with torch.no_grad():
        own, same, other = (net(images(IMAGE)) for net in nets)
    assert torch.equal(own, same), "a window of pre-training that is the network's own changes nothing"
    assert (own - other).abs().max() > 1e-3


def test_f04_torchvision_has_no_other_window(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", swin(v2=True, window=4).state_dict())
    out = tmp_path / "out.safetensors"
    told = ("--set", "window=4", "--set", "pretrained_window=2")
    answer = vitconv("convert", source, out, "--to", "torchvision-swinv2", *told)
    assert answer.code == 3
    assert "pretrained window" in answer.err
    assert not out.exists()
    told = ("--set", "window=4", "--set", "pretrained_window=0")
    answer = vitconv("convert", source, out, "--to", "torchvision-swinv2", *told)
    assert answer.code == 0, answer.text


class UnfoldMerge(nn.Module):
    """mmdetection's way: unfold the map, channels outermost, then norm and projection."""

    def __init__(self, norm: Tensor, bias: Tensor, reduction: Tensor) -> None:
        super().__init__()
        self.norm, self.bias, self.reduction = norm, bias, reduction

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.unfold(x.permute(0, 3, 1, 2), 2, stride=2).transpose(1, 2)
        y = nn.functional.layer_norm(y, y.shape[-1:], self.norm, self.bias)
        return y @ self.reduction.T


def test_f07_a_merging_by_unfold_has_its_columns_in_another_order(tmp_path: Path) -> None:
    net = swin()
    state = {k: v for k, v in net.state_dict().items() if not k.startswith("head.")}
    source = save(tmp_path / "s.safetensors", state)
    out = tmp_path / "out.safetensors"
    assert vitconv("convert", source, out, "--to", "mmpretrain-swin").code == 0
    there = tensors(out)
    at = "stages.0.downsample."
    assert there[f"{at}reduction.weight"].shape == state["layers.1.downsample.reduction.weight"].shape
    assert not torch.equal(there[f"{at}reduction.weight"], state["layers.1.downsample.reduction.weight"])
    merge = UnfoldMerge(there[f"{at}norm.weight"], there[f"{at}norm.bias"], there[f"{at}reduction.weight"])
    x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = net.layers[1].downsample(x)
        assert (merge(x).reshape(want.shape) - want).abs().max() < 1e-5
        swapped = UnfoldMerge(merge.norm, merge.bias, state["layers.1.downsample.reduction.weight"])
        assert (swapped(x).reshape(want.shape) - want).abs().max() > 0.1
    back = tmp_path / "back.safetensors"
    assert vitconv("convert", out, back, "--to", "timm-swin").code == 0
    assert equal(tensors(back), state)


def test_f08_a_window_larger_than_the_map_is_said(tmp_path: Path) -> None:
    """torchvision's table stays 49 rows at a map of 2x2, which it pads: another function where windows are cut."""
    vision = pytest.importorskip("torchvision.models.swin_transformer")
    net = vision.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], num_classes=5)
    source = save(tmp_path / "s.safetensors", net.state_dict())
    answer = vitconv("inspect", source, "--set", "image_size=8")
    assert answer.code == 0, answer.text
    assert "stage 1: window clipped, its side of 4 is more than the map of 2x2" in answer.out
    assert "window clipped" not in vitconv("inspect", source, "--set", "image_size=16").out


def test_f10_the_limit_of_the_scale_is_a_number_and_follows_the_network() -> None:
    """A network made on one device and moved computes there: nothing in its forward pass holds a tensor of its own."""
    net = reference(swin(v2=True, window=4).state_dict(), 0).to("meta")
    assert net(torch.empty(1, 3, IMAGE, IMAGE, device="meta")).shape == (1, 5)


def test_f13_a_converter_for_another_family_is_refused(tmp_path: Path) -> None:
    mae = {**rand_t(head=False), "mask_token": torch.randn(1, 1, 16), "decoder_embed.weight": torch.randn(16, 32)}
    source = save(tmp_path / "mae.safetensors", mae)
    answer = vitconv("convert", source, tmp_path / "out.safetensors", "--from", "swin", "--to", "timm-swin")
    assert answer.code in (1, 3)
    assert not (tmp_path / "out.safetensors").exists()
    plain = save(tmp_path / "plain.safetensors", rand_t())
    answer = vitconv("convert", plain, tmp_path / "out.safetensors", "--to", "timm-swin")
    assert answer.code == 3
    assert "is of the plain family and timm-swin of the stages family" in answer.err


def test_f14_a_baked_bias_without_its_generator_is_refused(tmp_path: Path) -> None:
    """FasterViT keeps relative biases as a buffer of one size, and what made them is not in the file."""
    state = dict(swin().state_dict())
    for key in [k for k in state if k.endswith("bias_table")]:
        state[key.replace("relative_position_bias_table", "relative_bias")] = torch.randn(1, 2, 4, 4)
        del state[key]
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "out.safetensors", "--to", "timm-swin")
    assert answer.code == 1
    assert "relative_bias" in answer.err
    assert not (tmp_path / "out.safetensors").exists()


def test_f05_the_final_norm_becomes_the_last_one_of_a_dense_backbone(tmp_path: Path) -> None:
    """Its other norms are new: nothing is written for them."""
    state = {k: v for k, v in swin().state_dict().items() if not k.startswith("head.")}
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.safetensors", state), out, "--to", "mmpretrain-swin")
    assert answer.code == 0, answer.text
    assert torch.equal(tensors(out)["norm1.weight"], state["norm.weight"])
    assert sorted(k for k in tensors(out) if k.startswith("norm")) == ["norm1.bias", "norm1.weight"]


def test_f05_norms_of_other_stages_are_named_and_left_out_on_request(tmp_path: Path) -> None:
    state = {k: v for k, v in swin().state_dict().items() if not k.startswith("head.")}
    dense = tmp_path / "dense.safetensors"
    assert vitconv("convert", save(tmp_path / "s.safetensors", state), dense, "--to", "mmpretrain-swin").code == 0
    more = {**tensors(dense), "norm0.weight": torch.randn(8), "norm0.bias": torch.randn(8)}
    source, out = save(tmp_path / "more.safetensors", more), tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm-swin")
    assert answer.code in (1, 3)
    assert "norm0.weight" in answer.err
    answer = vitconv("convert", source, out, "--to", "timm-swin", "--drop", "norm0.*")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
