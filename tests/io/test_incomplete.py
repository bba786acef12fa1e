from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vitconv.errors import BadFile
from vitconv.io.source import open_checkpoint


def vit() -> dict[str, Any]:
    found: dict[str, Any] = {
        "cls_token": torch.randn(1, 1, 8),
        "logit_scale": torch.randn(1),
        "head.weight": torch.randn(1, 8),
    }
    found["head.bias"] = torch.randn(1)
    for i in range(4):
        for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1"):
            found[f"blocks.{i}.{name}.weight"] = torch.randn(8) if "norm" in name else torch.randn(8, 8)
            found[f"blocks.{i}.{name}.bias"] = torch.randn(8)
    return found


def open_saved(tmp_path: Path, value: Any, kind: str = "pth") -> None:
    path = tmp_path / f"x.{kind}"
    torch.save(value, path) if kind == "pth" else safetensors.torch.save_file(value, path)
    with open_checkpoint(path):
        pass


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("every", [1, 2, 3], ids=["all", "half", "a third"])
def test_placeholders_of_zero_stage_3(tmp_path: Path, size, every, kind) -> None:
    value = vit()
    replaced = [key for i, key in enumerate(key for key in value if "blocks" in key) if i % every == 0]
    value |= {key: torch.zeros(size) for key in replaced}
    small = len(replaced) + (size == 1)
    with pytest.raises(
        BadFile, match=rf"{small} of {len(value)} tensors are placeholders.*blocks.0.*zero_to_fp32"
    ) as caught:
        open_saved(tmp_path, value, kind)
    assert "more" in str(caught.value)


def test_small_tensors_with_a_reason_are_fine(tmp_path: Path) -> None:
    value = vit() | {"scale": torch.ones(()), "act.weight": torch.ones(1), "nothing": torch.zeros(0)}
    for i in range(5):
        value |= {f"gate.{i}.{part}": torch.ones(1) for part in ("weight", "bias", "running_mean", "running_var")}
    open_saved(tmp_path, value)


def test_placeholders_in_an_optimizer_do_not_matter(tmp_path: Path) -> None:
    open_saved(tmp_path, {"model": vit(), "optimizer": {f"{i}.weight": torch.zeros(0) for i in range(9)}})


@pytest.mark.parametrize(
    "key", ["backbone._fsdp_wrapped_module._flat_param", "_flat_param", "blocks.0._fsdp_wrapped_module.flat_param_0"]
)
def test_flat_parameters_of_fsdp(tmp_path: Path, key) -> None:
    with pytest.raises(BadFile, match=r"1 flat parameters of FSDP.*FULL_STATE_DICT"):
        open_saved(tmp_path, {"teacher": {key: torch.randn(4000)}})


def test_partition_of_deepspeed(tmp_path: Path) -> None:
    value = {
        "optimizer_state_dict": {"fp32_flat_groups": [torch.randn(4004)]},
        "param_shapes": [{"w": torch.Size([4])}],
    }
    with pytest.raises(BadFile, match=r"partition of DeepSpeed.*zero_to_fp32"):
        open_saved(tmp_path, value)
