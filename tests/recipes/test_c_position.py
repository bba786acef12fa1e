"""C: position tables, class and register tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, equal, rand_t, save, tensors, vitconv


def convert(source: Path, to: str, *more: str):
    out = source.with_name("out.safetensors")
    return vitconv("convert", source, out, "--to", to, *more), out


def test_c10_resizing_asks_for_the_grid_that_nothing_states(tmp_path: Path) -> None:
    """A table of 1 + 16 rows is 4x4 or 2x8: the count alone decides nothing."""
    source = save(tmp_path / "s.safetensors", rand_t(grid=(2, 8)))
    answer, out = convert(source, "timm", "--edit", "resize-position:to=4x4,rule=bicubic")
    assert answer.code == 3
    assert "--set grid=" in answer.err
    assert not out.exists()
    answer, out = convert(source, "timm", "--set", "grid=2x8", "--edit", "resize-position:to=4x16,rule=bicubic")
    assert answer.code == 0, answer.text
    assert tensors(out)["pos_embed"].shape == (1, 1 + 64, DIM)


def test_c10_bytes_move_without_the_grid(tmp_path: Path) -> None:
    answer, _ = convert(save(tmp_path / "s.safetensors", rand_t(grid=(2, 8))), "hf-vit")
    assert answer.code == 0, answer.text


def test_c11_no_class_key_means_no_class_row(tmp_path: Path) -> None:
    """196 rows are a 14x14 grid, not 195 and a class row."""
    source = save(tmp_path / "s.safetensors", rand_t(grid=(14, 14), cls=False))
    answer = vitconv("inspect", source, "--json")
    assert answer.json["facts"]["patches"] == 196
    assert answer.json["facts"]["position"] == "patches"


def test_c11_nine_rows_with_a_class_key_are_asked_for(tmp_path: Path) -> None:
    """9 rows: a class row and 2x4, or 3x3 without one."""
    state = rand_t(grid=(2, 4))
    source = save(tmp_path / "s.safetensors", state)
    answer, out = convert(source, "hf-vit")
    assert answer.code == 3
    assert "class+patches" in answer.err
    assert "--set" in answer.err
    assert not out.exists()
    for option in ("from.position=class+patches", "grid=2x4"):
        answer, out = convert(source, "hf-vit", "--set", option)
        assert answer.code == 0, answer.text
        out.unlink()


def with_registers(no_embed_class: bool) -> dict[str, torch.Tensor]:
    state = rand_t()
    gen = torch.Generator().manual_seed(9)
    state["reg_token"] = torch.randn(1, 4, DIM, generator=gen)
    if no_embed_class:
        state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return state


def test_c13_registers_without_positions_need_the_class_row_folded(tmp_path: Path) -> None:
    """Upstream keeps a class row and no rows for registers; timm with registers has neither, so the row is folded."""
    source = save(tmp_path / "t.safetensors", rand_t())
    canonical = tmp_path / "c.safetensors"
    assert vitconv("convert", source, canonical, "--to", "canonical").code == 0
    state = tensors(canonical)
    state["embed.reg"] = with_registers(True)["reg_token"][0]
    source = save(tmp_path / "c2.safetensors", state)
    facts = ["--set", "norm_placement=pre", "--set", "kv_normalised=true"]
    answer, out = convert(source, "timm", *facts)
    assert answer.code == 3, answer.text
    assert "fold-cls-position" in answer.err
    assert not out.exists()
    answer, out = convert(source, "timm", *facts, "--edit", "fold-cls-position", "--prove")
    assert answer.code == 0, answer.text
    written = tensors(out)
    assert written["pos_embed"].shape == (1, 16, DIM)
    assert torch.equal(written["cls_token"][0, 0], state["embed.cls"] + state["embed.pos_cls"])
    assert torch.equal(written["pos_embed"][0], state["embed.pos"])


def test_c13_registers_are_refused_where_there_is_no_place(tmp_path: Path) -> None:
    answer, out = convert(save(tmp_path / "s.safetensors", with_registers(True)), "xformers")
    assert answer.code == 3
    assert "embed.reg" in answer.err
    assert not out.exists()


def test_c13_a_class_row_of_zeros_is_made_only_on_request(tmp_path: Path) -> None:
    state = rand_t()
    state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    source = save(tmp_path / "s.safetensors", state)
    answer, out = convert(source, "hf-vit")
    assert answer.code == 3
    assert "unfold-cls-position" in answer.err
    assert not out.exists()
    answer, out = convert(source, "hf-vit", "--edit", "unfold-cls-position")
    assert answer.code == 0, answer.text
    table = tensors(out)["vit.embeddings.position_embeddings"]
    assert not table[0, 0].any()
    assert torch.equal(table[0, 1:], state["pos_embed"][0])


def test_c16_rows_that_no_token_accounts_for(tmp_path: Path) -> None:
    """1 + 16 + 3 rows and only a class token: neither 20 nor 19 is what the keys say."""
    state = rand_t()
    state["pos_embed"] = torch.cat([state["pos_embed"], torch.randn(1, 3, DIM)], dim=1)
    answer, out = convert(save(tmp_path / "s.safetensors", state), "hf-vit")
    assert answer.code == 3
    assert "n=19" in answer.err
    assert "n=20" in answer.err
    assert not out.exists()


@pytest.mark.parametrize("to", ["hf-vit", "xformers", "torchvision"])
def test_c17_an_absent_position_table_is_not_made_of_zeros(to: str, tmp_path: Path) -> None:
    state = rand_t(cls=False)
    del state["pos_embed"]
    answer, out = convert(save(tmp_path / "s.safetensors", state), to)
    assert answer.code == 3
    assert not out.exists()


def test_position_free_networks_stay_what_they_are(tmp_path: Path) -> None:
    state = rand_t(cls=False)
    del state["pos_embed"]
    answer, out = convert(save(tmp_path / "s.safetensors", state), "timm", "--plain")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)


@pytest.mark.parametrize("to", ["timm", "vit-jax"])
def test_c17_sines_that_code_adds_are_not_left_out(to: str, tmp_path: Path) -> None:
    """pengzhiliang/MAE-pytorch makes its sinusoid in code: written to a layout without one, every output is another."""
    state = {k: v for k, v in rand_t().items() if k != "pos_embed"}
    source, out = save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", to, "--set", "position=sincos", "--set", "heads=4")
    assert answer.code == 3, answer.text
    assert "make-position" in answer.err
    assert not out.exists()


def test_c17_a_table_that_is_told_of_and_not_there(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if k != "pos_embed"}
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", "--set", "position=learned")
    assert answer.code == 2
    assert "position=learned: there is no table" in answer.err
