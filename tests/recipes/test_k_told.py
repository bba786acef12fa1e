"""K, of files: NaN and Inf among weights are carried as they are, and told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import State, equal, rand_t, save, tensors, vitconv

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def converted(tmp_path: Path, state: State, *more: object) -> tuple[str, State]:
    out = tmp_path / "out.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", state), out, "--to", "hf-vit", *more)
    assert answer.code == 0, answer.text
    return answer.out, tensors(out)


def spoiled(values: dict[str, float], dtype: torch.dtype = torch.float32) -> State:
    state = {k: v.to(dtype) for k, v in rand_t().items()}
    for key, value in values.items():
        state[key].view(-1)[-1] = value
    return state


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("key", ["blocks.0.norm1.weight", "norm.weight"])
def test_norms_tell_of_a_training_that_diverged(key: str, value: float, dtype: torch.dtype, tmp_path: Path) -> None:
    out, written = converted(tmp_path, spoiled({key: value}, dtype))
    assert f"warning: NaN or Inf in {key}," in out
    # Carried as they are.
    assert sum(int((~v.isfinite()).sum()) for v in written.values()) == 1


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
def test_finite_weights_are_passed_over(dtype: torch.dtype, tmp_path: Path) -> None:
    largest = torch.finfo(dtype).max
    state = spoiled(dict.fromkeys(("norm.weight", "blocks.0.norm1.weight", "head.weight"), largest), dtype)
    for more in ((), ("--prove",)):
        assert "NaN" not in converted(tmp_path, state, *more)[0]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
def test_a_proof_looks_at_every_element(dtype: torch.dtype, tmp_path: Path) -> None:
    state = spoiled({f"blocks.{i}.mlp.fc1.weight": float("nan") for i in (0, 1)}, dtype)
    state["head.bias"][:3] = -float("inf")
    told = "warning: 5 elements are NaN or Inf, in 3 tensors: blocks.{0..1}.mlp.fc1.weight, head.bias"
    assert told in converted(tmp_path, state, "--prove")[0]
    # Without it these are not read.
    assert "NaN" not in converted(tmp_path, state)[0]


def test_several_files_are_looked_at_too(tmp_path: Path) -> None:
    path = save(tmp_path / "s.pth", spoiled({"norm.weight": float("nan")}))
    answer = vitconv("convert", path, tmp_path / "dcp", "--to", "timm", "--format", "dcp")
    assert "warning: NaN or Inf in norm.weight" in answer.out


def test_what_is_kept_is_the_same_bits(tmp_path: Path) -> None:
    state = spoiled({"norm.weight": float("nan")})
    out = tmp_path / "out.safetensors"
    assert vitconv("convert", save(tmp_path / "s.pth", state), out, "--to", "timm").code == 0
    assert equal(tensors(out), state)
