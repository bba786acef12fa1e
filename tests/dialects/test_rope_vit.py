"""timm's networks that turn queries and keys by places along either side, or by trained frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run

timm = pytest.importorskip("timm")
SIZES: dict[str, Any] = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
NAMES = (
    "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_ape_224",
    "vit_small_patch16_rope_mixed_224",
    "vit_small_patch16_rope_mixed_ape_224",
    "vit_pe_core_tiny_patch16_384",
    "vit_pe_lang_gigantic_patch14_448",
    "test_vit3",
)


def network(name: str) -> Any:
    net = timm.create_model(name, num_classes=5, **SIZES).eval()
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=gen) + (p.ndim == 1))
    return net


def saved(name: str, folder: Path) -> Any:
    from timm.models._hub import save_for_hf

    net = network(name)
    save_for_hf(net, str(folder), model_args={**SIZES, "num_classes": 5}, safe_serialization=True)
    return net


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_goes_through_the_canonical_layout_and_opens_again(name: str, tmp_path: Path) -> None:
    net = saved(name, tmp_path / "timm")
    assert run(["convert", str(tmp_path / "timm"), str(tmp_path / "c.safetensors"), "--to", "canonical"]) == 0
    assert run(["convert", str(tmp_path / "c.safetensors"), str(tmp_path / "back"), "--prove"]) == 0
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).double().eval()
    x = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        want, got = net.double()(x), again(x)
    assert torch.equal(got, want)
    before = load_file(tmp_path / "timm" / "model.safetensors")
    assert all(torch.equal(v, before[k]) for k, v in load_file(tmp_path / "back" / "model.safetensors").items())


def test_trained_frequencies_are_one_tensor_for_every_block(tmp_path: Path) -> None:
    saved(NAMES[2], tmp_path / "timm")
    out = tmp_path / "c.safetensors"
    assert run(["convert", str(tmp_path / "timm"), str(out), "--to", "canonical"]) == 0
    stacked = load_file(tmp_path / "timm" / "model.safetensors")["rope.freqs"]
    assert torch.equal(load_file(out)["blocks.1.attn.rope"], stacked[:, 1])


@pytest.mark.parametrize("target", ["eva", "dinov3", "hf-dinov3"])
def test_columns_first_goes_to_no_layout_of_rows_first(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(NAMES[0], tmp_path / "timm")
    assert run(["convert", str(tmp_path / "timm"), str(tmp_path / "o.safetensors"), "--to", target]) == 3
    assert "rope order: columns here, but" in capsys.readouterr().err


def test_without_a_configuration_the_side_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, out = tmp_path / "s.safetensors", tmp_path / "o.safetensors"
    save_file(network(NAMES[0]).state_dict(), src)
    told = ["--set", "heads=4", "--set", "rope_layout=half"]
    assert run(["convert", str(src), str(out), "--to", "hf-dinov3", *told, "--drop", "*.attn.k.bias"]) == 3
    assert "rope_order" in capsys.readouterr().err


def test_a_table_beside_them_is_a_deit_3_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, out = tmp_path / "s.safetensors", tmp_path / "o.safetensors"
    save_file(network(NAMES[1]).state_dict(), src)
    assert run(["convert", str(src), str(out), "--to", "canonical"]) == 0
    said = capsys.readouterr().out
    assert "deit (generation=deit-3)" in said
    how = ["--from", "timm-eva", "--set", "from.attention=AttentionRope+table"]
    assert " ".join(how) in said
    assert run(["convert", str(src), str(out), "--to", "timm", *how]) == 3
    assert "position" in capsys.readouterr().err
