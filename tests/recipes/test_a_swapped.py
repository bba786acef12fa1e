"""A20: the name of a set says what it was in training, which is not always what a trainer saves under it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import State, equal, prefixed, rand_t, save, tensors, vitconv

COUNTED = {"steps": torch.tensor(300)}


def mmengine(*, counter: bool = True, prefix: str = "module.") -> dict[str, State]:
    return {
        "state_dict": rand_t(1),
        "ema_state_dict": prefixed(rand_t(2), prefix) | (COUNTED if counter else {}),
    }


@pytest.mark.parametrize(
    ("option", "seed"),
    [((), 1), (("--weights", "ema"), 1), (("--weights", "raw"), 2), (("--branch", "ema_state_dict"), 2)],
    ids=["default", "ema", "raw", "by its name"],
)
def test_mmengine_saves_the_average_as_state_dict(option: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    """open-mmlab/mmengine#507: its hook exchanges the two as it saves."""
    out = tmp_path / "o.safetensors"
    contents = {**mmengine(), "meta": {"mmengine_version": "0.10"}, "message_hub": {}}
    answer = vitconv("convert", save(tmp_path / "s.pth", contents), out, "--to", "timm", *option)
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(seed))
    assert "mmengine saves the averaged weights as state_dict" in answer.out


@pytest.mark.parametrize("contents", [mmengine(counter=False), mmengine(prefix="")], ids=["no counter", "no module."])
def test_an_average_of_somebody_else_is_what_it_is_called(contents: dict[str, State], tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", contents), out, "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(2))


@pytest.mark.parametrize("first", ["state_dict", "current_model_state"])
@pytest.mark.parametrize(
    ("option", "seed"),
    [((), 1), (("--weights", "ema"), 1), (("--weights", "raw"), 2), (("--branch", "current_model_state"), 2)],
    ids=["default", "ema", "raw", "by its name"],
)
def test_lightning_saves_the_average_as_state_dict(
    option: tuple[str, ...], seed: int, first: str, tmp_path: Path
) -> None:
    """Lightning-AI/pytorch-lightning#20545, ecmwf/anemoi-core#1373."""
    sets: dict[str, object] = {"state_dict": prefixed(rand_t(1), "model.")}
    sets |= {"current_model_state": prefixed(rand_t(2), "model.")}
    contents = {first: sets[first], **sets, "averaging_state": {"n_averaged": torch.tensor(5)}, "epoch": 1}
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", contents), out, "--to", "timm", *option)
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(seed))
    assert "Lightning's WeightAveraging saves the averages as state_dict" in answer.out


def buffers(seed: int) -> State:
    return {f"ema_{key.replace('.', '_')}": tensor for key, tensor in rand_t(seed).items()}


def test_the_buffers_of_mmcvs_hook_are_asked_about(tmp_path: Path) -> None:
    """hirotomusiker/CLRerNet#26: whether they hold the averages depends on when the file was saved."""
    out = tmp_path / "o.safetensors"
    source = save(tmp_path / "s.pth", {"state_dict": rand_t(1) | buffers(2)})
    answer = vitconv("convert", source, out, "--to", "timm")
    assert answer.code == 3, answer.text
    assert "EMAHook" in answer.err
    assert not out.exists()
    for branch, seed in (("state_dict", 1), ("emahook", 2)):
        answer = vitconv("convert", source, out, "--to", "timm", "--branch", branch)
        assert answer.code == 0, answer.text
        assert equal(tensors(out), rand_t(seed))


def test_equal_buffers_need_no_answer(tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", {"state_dict": rand_t(1) | buffers(1)}), out, "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(1))


def test_a_model_beside_a_teacher_has_its_name(tmp_path: Path) -> None:
    """Zasder3/train-CLIP-FT#10: a Lightning module with the model and the teacher it distils from."""
    out = tmp_path / "o.safetensors"
    flat = prefixed(rand_t(1), "model.") | prefixed(rand_t(2), "teacher.")
    answer = vitconv(
        "convert", save(tmp_path / "s.pth", {"state_dict": flat}), out, "--to", "timm", "--branch", "model"
    )
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(1))


DEEP = "video_model.video_encoder.embedder.vision_model.timm_model."


@pytest.mark.parametrize("branch", ["timm_model", "vision_model.timm_model", "video_model"])
def test_a_part_may_be_called_by_any_end_of_its_path(branch: str, tmp_path: Path) -> None:
    """facebookresearch/perception_models#112: a network deep in another one."""
    out = tmp_path / "o.safetensors"
    source = save(tmp_path / "s.pth", prefixed(rand_t(1), DEEP) | {"audio_model.proj.weight": torch.randn(8, 8)})
    answer = vitconv("convert", source, out, "--to", "timm", "--branch", branch)
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(1))


def test_a_path_that_two_parts_end_in_is_asked_about(tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    source = save(tmp_path / "s.pth", prefixed(rand_t(1), "a.net.") | prefixed(rand_t(2), "b.net."))
    answer = vitconv("convert", source, out, "--to", "timm", "--branch", "net")
    assert answer.code == 2, answer.text
    assert "a.net" in answer.err
    assert "b.net" in answer.err
    answer = vitconv("convert", source, out, "--to", "timm", "--branch", "b.net")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(2))
