"""C: how position tables are resized, registers and rotary buffers, as their recipes say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, State, rand_t, save, tensors, vitconv
from safetensors.torch import load_file

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"


def resized(source: Path, target: Path, to: str, *more: str) -> torch.Tensor:
    answer = vitconv("convert", source, target, "--to", "canonical", "--edit", f"resize-position:to={to}", *more)
    assert answer.code == 0, answer.text
    return tensors(target)["embed.pos"]


def test_c01_a_grid_has_a_height_and_a_width(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t())
    more = ("--set", "grid=4x4", "--set", "position_resize=bicubic")
    wide, high = (resized(source, tmp_path / f"{to}.safetensors", to, *more) for to in ("2x4", "4x2"))
    assert wide.shape == high.shape == (8, DIM)
    assert not torch.equal(wide, high)
    state = rand_t()
    state["pos_embed"][:, 1:] = state["pos_embed"][:, 1:].unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)
    turned = resized(save(tmp_path / "t.safetensors", state), tmp_path / "tt.safetensors", "4x2", *more)
    assert torch.allclose(turned.unflatten(0, (4, 2)).transpose(0, 1).flatten(0, 1), wide, atol=1e-6)


@pytest.mark.parametrize(("grid", "to"), [(11, 15), (7, 61)])
def test_c02_the_size_asked_for_is_the_size_there_is(grid: int, to: int, tmp_path: Path) -> None:
    """With a scale factor these give 14 and 60 rows."""
    source = save(tmp_path / "s.safetensors", rand_t(grid=(grid, grid)))
    for rule in ("bicubic", "bicubic-offset", "bilinear", "bicubic-antialias"):
        more = ("--set", f"grid={grid}x{grid}", "--set", f"position_resize={rule}")
        there = resized(source, tmp_path / f"{rule}.safetensors", f"{to}x{to}", *more)
        assert len(there) == to * to


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("dino/dino-tiny", "bicubic-offset"),
        ("dinov2/dinov2-plain", "bicubic-offset"),
        ("dinov2/dinov2-registers", "bicubic-antialias"),
    ],
)
def test_c03_c05_each_variant_has_its_author_s_rule_and_its_author_s_numbers(
    name: str, rule: str, tmp_path: Path
) -> None:
    dialect = name.partition("/")[0]
    said = vitconv("inspect", GOLDEN / f"{name}.pth", "--from", dialect)
    assert rule in said.out
    there = resized(GOLDEN / f"{name}.pth", tmp_path / "o.safetensors", "6x6", "--from", dialect, "--set", "grid=4x4")
    wanted = load_file(GOLDEN / f"{name}.trace.safetensors")["position.24x24"][0, 1:]
    # DINOv2's author resizes in float32.
    assert torch.allclose(there, wanted, rtol=0, atol=1e-6 if dialect == "dinov2" else 1e-12)


def test_c06_c07_a_rule_is_never_changed_in_silence(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t())
    with_corners, without = (
        resized(
            source, tmp_path / f"{rule}.safetensors", "6x6", "--set", "grid=4x4", "--set", f"position_resize={rule}"
        )
        for rule in ("bicubic-corners", "bicubic")
    )
    assert float((with_corners - without).abs().max()) > 0.05
    asked = vitconv(
        "convert", source, tmp_path / "x.safetensors", "--to", "canonical", "--edit", "resize-position:to=6x6",
        "--set", "grid=4x4",
    )  # fmt: skip
    assert asked.code in (2, 3)
    assert "rule" in asked.text
    assert not (tmp_path / "x.safetensors").exists()


def test_c13_registers_without_positions_fold_the_class_row(tmp_path: Path) -> None:
    """DINOv2 with registers to timm: the class row goes into the token, exactly, and is zeros on the way back."""
    source = GOLDEN / "dinov2" / "dinov2-registers.pth"
    plain = ["--drop", "embed.mask"]
    refused = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", *plain)
    assert refused.code == 3
    assert "fold-cls-position" in refused.text
    answer = vitconv(
        "convert", source, tmp_path / "o.safetensors", "--to", "timm", *plain, "--edit", "fold-cls-position"
    )
    assert answer.code == 0, answer.text
    there, state = tensors(tmp_path / "o.safetensors"), torch.load(source, weights_only=True)
    assert torch.equal(there["cls_token"][0, 0], state["cls_token"][0, 0] + state["pos_embed"][0, 0])
    assert torch.equal(there["pos_embed"], state["pos_embed"][:, 1:])
    back = vitconv(
        "convert", tmp_path / "o.safetensors", tmp_path / "b.safetensors", "--to", "dinov2",
        "--edit", "unfold-cls-position", "--set", "position=learned",
    )  # fmt: skip
    assert back.code == 0, back.text
    assert torch.equal(tensors(tmp_path / "b.safetensors")["pos_embed"][0, 0], torch.zeros(16, dtype=torch.float64))


def test_c13_a_table_padded_for_registers_is_no_dinov2(tmp_path: Path) -> None:
    state = torch.load(GOLDEN / "dinov2" / "dinov2-registers.pth", weights_only=True)
    state["pos_embed"] = torch.nn.functional.pad(state["pos_embed"], (0, 0, 0, 3))
    answer = vitconv("inspect", save(tmp_path / "s.pth", state), "--set", "grid=4x4")
    assert answer.code != 0
    assert "4x4" in answer.text


def test_c20_a_table_kept_as_a_grid_is_read_with_its_sides(tmp_path: Path) -> None:
    """NaFlex keeps [rows, columns, d]: the sides are in the shape, so nothing is asked."""
    import numpy as np

    arrays = dict(np.load(GOLDEN / "npz" / "big-vision-token.npz"))
    arrays["pos_embedding"] = arrays["pos_embedding"].reshape(2, 8, 16)
    arrays["embedding/kernel"] = arrays["embedding/kernel"].reshape(48, 16)
    np.savez(tmp_path / "s.npz", **arrays)
    there = resized(tmp_path / "s.npz", tmp_path / "o.safetensors", "4x16", "--axis", "p=4", "--axis", "q=4",
                    "--set", "position_resize=bilinear-antialias")  # fmt: skip
    assert there.shape == (64, 16)
    said = vitconv("inspect", tmp_path / "s.npz", "--axis", "p=4", "--axis", "q=4")
    assert "(2, 8)" in said.out or "2x8" in said.out


def test_c22_waves_are_compared_and_left_out(tmp_path: Path) -> None:
    state: State = torch.load(GOLDEN / "eva" / "eva-02.pth", weights_only=True)
    waves = [k for k in state if "freqs_" in k]
    assert waves
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm-eva")
    assert answer.code == 0, answer.text
    assert not any("freqs" in k for k in tensors(tmp_path / "o.safetensors"))
    state[waves[0]] = state[waves[0]] + 0.1
    answer = vitconv("convert", save(tmp_path / "w.pth", state), tmp_path / "w.safetensors", "--to", "timm-eva")
    assert answer.code == 3
    assert f"{waves[0]} holds no waves" in answer.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_c23_periods_in_half_precision_are_said(dtype: torch.dtype, tmp_path: Path) -> None:
    state: State = torch.load(GOLDEN / "dinov3" / "dinov3-masked.pth", weights_only=True)
    state["rope_embed.periods"] = state["rope_embed.periods"].to(dtype)
    source = save(tmp_path / "s.pth", state)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "hf-dinov3")
    assert answer.code == 0, answer.text
    assert ("rounded in the source" in answer.text) == (dtype == torch.bfloat16)


def test_c23_periods_of_another_base_are_not_dropped(tmp_path: Path) -> None:
    state: State = torch.load(GOLDEN / "dinov3" / "dinov3-masked.pth", weights_only=True)
    state["rope_embed.periods"] = 10000.0 ** (torch.arange(4, dtype=torch.float64) / 4)
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "hf-dinov3")
    assert answer.code == 3
    assert "not the periods of base 100" in answer.text
    assert not (tmp_path / "o.safetensors").exists()
