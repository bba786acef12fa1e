"""A: averages that are kept as lists, and modules that PEFT trained whole: which tensors are meant, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import Answer, State, equal, rand_t, save, tensors, vitconv


def to_timm(path: Path, contents: Any, *more: object) -> tuple[Answer, State | None]:
    out = path / "out.safetensors"
    answer = vitconv("convert", save(path / "s.pth", contents), out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


def listed(seed: int) -> list[torch.Tensor]:
    return list(rand_t(seed).values())


LISTS = {
    "NeMo": {"state_dict": rand_t(1), "ema_weights": listed(2)},
    "NeMo, in a callback": {"state_dict": rand_t(1), "callbacks": {"EMA": {"ema_weights": listed(2), "cur_step": 3}}},
    "torch_ema": {
        "model": rand_t(1),
        "ema": {"decay": 0.9, "num_updates": 3, "shadow_params": listed(2), "collected_params": listed(3)},
    },
    "diffusers": {"model": rand_t(1), "ema": {"shadow_params": listed(2), "decay": 0.99, "optimization_step": 7}},
    "beside buffers": {"model": {**rand_t(1), "num_batches": torch.tensor(3)}, "ema": {"shadow_params": listed(2)}},
}


@pytest.mark.parametrize("contents", LISTS.values(), ids=LISTS.keys())
def test_averages_in_a_list_get_the_names_beside_them(contents: Any, tmp_path: Path) -> None:
    more = ("--drop", "num_batches") if "num_batches" in contents.get("model", {}) else ()
    answer, written = to_timm(tmp_path, contents)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "a list without names, given those of" in answer.out
    (tmp_path / "out.safetensors").unlink()
    assert equal(to_timm(tmp_path, contents, "--weights", "raw", *more)[1], rand_t(1))


def test_a_list_alone_is_told(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, {"ema_weights": listed(2)})
    assert written is None
    assert answer.code == 1
    assert "ema_weights is a list of 32 tensors without names, as NeMo, torch_ema and diffusers keep" in answer.err


@pytest.mark.parametrize("how", ["fewer", "another order"])
def test_a_list_that_does_not_fit_is_told_and_not_taken(how: str, tmp_path: Path) -> None:
    state = listed(2)[:-1] if how == "fewer" else listed(2)[::-1]
    contents = {"state_dict": rand_t(1), "ema": {"shadow_params": state}}
    answer, written = to_timm(tmp_path, contents)
    assert equal(written, rand_t(1))
    assert "warning: ema.shadow_params is a list of" in answer.out
    (tmp_path / "out.safetensors").unlink()
    answer, written = to_timm(tmp_path, contents, "--branch", "ema")
    assert (answer.code, written) == (1, None)
    assert "are others, or in another order" in answer.err


def test_shadow_names_an_average(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, {"model": rand_t(1), "shadow": rand_t(2)})
    assert equal(written, rand_t(2)), answer.text


def peft(*names: str) -> State:
    """Return rand_t as a PeftModel holds it whose classifier is in modules_to_save and nothing else is adapted."""
    state = {f"base_model.model.{k}": v for k, v in rand_t().items() if not k.startswith("head.")}
    for end in ("weight", "bias"):
        state[f"base_model.model.head.original_module.{end}"] = rand_t(1)[f"head.{end}"]
        for j, name in enumerate(names):
            state[f"base_model.model.head.modules_to_save.{name}.{end}"] = rand_t(2 + j)[f"head.{end}"]
    return state


def test_modules_that_peft_trained_whole_are_taken(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, peft("default"))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t() | {k: v for k, v in rand_t(2).items() if k.startswith("head.")})
    assert "trained whole by PEFT (modules_to_save) and taken: base_model.model.head.weight" in answer.out
    assert "since PEFT does not compute with them: base_model.model.head.original_module.weight" in answer.out


def test_those_of_several_adapters_are_refused(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, peft("default", "second"))
    assert (answer.code, written) == (3, None)
    assert "for several adapters (default, second), of which one is active" in answer.err


def test_they_are_named_where_lora_is_refused(tmp_path: Path) -> None:
    state = peft("default") | {
        "base_model.model.blocks.0.attn.qkv.base_layer.weight": rand_t()["blocks.0.attn.qkv.weight"],
        "base_model.model.blocks.0.attn.qkv.lora_A.default.weight": torch.randn(4, 32),
        "base_model.model.blocks.0.attn.qkv.lora_B.default.weight": torch.randn(96, 4),
    }
    answer, _ = to_timm(tmp_path, state)
    assert answer.code == 3
    assert "what it trained whole (modules_to_save: head) comes along" in answer.err
