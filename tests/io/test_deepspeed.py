"""Folders of DeepSpeed: whole weights are read, pieces are refused with how to gather them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.errors import BadFile, UsageError
from vitconv.io.envelope import branches
from vitconv.io.source import open_checkpoint


def weights() -> dict[str, torch.Tensor]:
    return {f"blocks.{i}.w.weight": torch.full((4, 4), float(i + 1), dtype=torch.bfloat16) for i in range(4)}


def flat() -> dict[str, Any]:
    groups = {"single_partition_of_fp32_groups": [torch.zeros(36)], "zero_stage": 2}
    return {"optimizer_state_dict": groups}


def make(folder: Path, files: dict[str, Any], latest: str | None = "global_step3") -> Path:
    step = folder / "global_step3"
    step.mkdir(parents=True)
    for name, contents in files.items():
        torch.save(contents, step / name)
    (folder / "zero_to_fp32.py").write_text("# DeepSpeed's own\n")
    if latest is not None:
        (folder / "latest").write_text(latest)
    return folder


STAGE2 = {
    "mp_rank_00_model_states.pt": {"module": weights(), "optimizer": None, "ds_version": "0.15"},
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": flat(),
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt": flat(),
}
STAGE3 = {
    f"zero_pp_rank_{r}_mp_rank_00_model_states.pt": {"module": {k: torch.empty(0) for k in weights()}} for r in (0, 1)
}


@pytest.mark.parametrize("by", ["folder", "step", "no latest"])
def test_weights_up_to_stage_two_are_read(tmp_path: Path, by: str) -> None:
    folder = make(tmp_path / "ds", STAGE2, None if by == "no latest" else "global_step3\n")
    with open_checkpoint(folder / "global_step3" if by == "step" else folder) as ckpt:
        (branch,) = branches(ckpt)
        assert branch.name == "module"
        assert branch.tensors.keys() == weights().keys()
        assert any("fp32 copies are in pieces" in note for note in ckpt.notes)


def test_without_partitions_nothing_is_said(tmp_path: Path) -> None:
    folder = make(tmp_path / "ds", {"mp_rank_00_model_states.pt": {"module": weights()}})
    with open_checkpoint(folder) as ckpt:
        assert ckpt.notes == ()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("stage 3", STAGE3, r"ZeRO stage 3.*2 ranks.*gather them first.*zero_to_fp32\.py"),
    ("only the optimizer", {"zero_pp_rank_0_mp_rank_00_optim_states.pt": flat()}, "not the weights; gather them first"),
    ("tensor parallel", {f"mp_rank_0{r}_model_states.pt": {"module": weights()} for r in (0, 1)}, "tensor-parallel"),
    ("pipeline", {"layer_00-model_states.pt": weights(), "mp_rank_00_model_states.pt": {}}, "pipeline"),
]


@pytest.mark.parametrize(("files", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
@pytest.mark.parametrize("by", ["folder", "step"])
def test_pieces_are_refused(tmp_path: Path, files: dict[str, Any], words: str, by: str) -> None:
    folder = make(tmp_path / "ds", files)
    with pytest.raises(BadFile, match=words):
        open_checkpoint(folder if by == "folder" else folder / "global_step3")


@pytest.mark.parametrize("text", ["global_step9", "", "../elsewhere", "/etc", "a\nb"])
def test_latest_must_name_a_step(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path / "ds", STAGE2, text)
    with pytest.raises(UsageError, match="global_step3"):
        open_checkpoint(folder)


def test_a_file_of_placeholders_says_how_to_gather(tmp_path: Path) -> None:
    folder = make(tmp_path / "ds", STAGE3)
    with pytest.raises(BadFile, match=r"placeholders.*gather.*zero_to_fp32\.py"):
        open_checkpoint(folder / "global_step3" / "zero_pp_rank_0_mp_rank_00_model_states.pt")


def test_gathered_weights_beside_the_pieces_are_what_is_read(tmp_path: Path) -> None:
    """transformers' Trainer: model.safetensors in the folder of the steps."""
    folder = make(tmp_path / "ds", STAGE3)
    from safetensors.torch import save_file

    save_file(weights(), folder / "model.safetensors")
    with open_checkpoint(folder) as ckpt:
        assert {t.key for t in ckpt.tensors} == weights().keys()


@pytest.mark.parametrize("name", ["checkpoint", "pytorch_model"], ids=["Lightning", "accelerate"])
def test_a_step_of_another_name(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "epoch=0.ckpt", STAGE2, name)
    (folder / "global_step3").rename(folder / name)
    with open_checkpoint(folder) as ckpt:
        assert {t.key for t in ckpt.tensors if t.path[0] == "module"} == weights().keys()


def test_a_file_called_latest_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("model_best.pth")
    torch.save(weights(), tmp_path / "model_best.pth")
    with open_checkpoint(tmp_path) as ckpt:
        assert len(ckpt.tensors) == 4
