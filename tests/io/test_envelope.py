from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitconv.errors import Refused
from vitconv.io.envelope import FLAT, Branch, branches, loosen, restore
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import Blob, Stored


def vit(seed: int = 0) -> dict[str, Any]:
    """A tiny timm-like state dict; different seeds give different numbers."""
    generator = torch.Generator().manual_seed(seed)
    names = ["cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight", "head.weight", "head.bias"]
    for i in range(2):
        names += [f"blocks.{i}.{rest}" for rest in ("norm1.weight", "attn.qkv.weight", "mlp.fc1.weight", "ls1.gamma")]
    return {name: torch.randn(2, 3, generator=generator) for name in names}


def prefixed(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in tensors.items()}


def infixed(tensors: dict[str, Any], at: str, infix: str) -> dict[str, Any]:
    return {key.replace(at, f"{at}{infix}", 1) if key.startswith(at) else key: v for key, v in tensors.items()}


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    held: list[Checkpoint] = []

    def save(value: object) -> Checkpoint:
        torch.save(value, tmp_path / f"{len(held)}.pth")
        held.append(open_checkpoint(tmp_path / f"{len(held)}.pth"))
        return held[-1]

    yield save
    for ckpt in held:
        ckpt.close()


def assert_is(ckpt: Checkpoint, branch: Branch, tensors: dict[str, Any]) -> None:
    assert set(branch.tensors) == set(tensors)
    for key, tensor in tensors.items():
        assert bytes(ckpt.read(branch.tensors[key])) == tensor.contiguous().numpy().tobytes(), key


def assert_restores(branch: Branch, keys: Any) -> None:
    """Every bare key gets back the name it has in the file."""
    assert [restore(key, branch.steps, index) for index, key in enumerate(branch.tensors)] == list(keys)


V = vit()
SINGLE: dict[str, tuple[Any, str]] = {
    "bare": (V, FLAT),
    "model": ({"model": V, "epoch": 3, "args": {"lr": 1.0}}, "model"),
    "two deep": ({"state": {"module": V}}, "state.module"),
    "DDP": (prefixed("module.", V), FLAT),
    "DDP twice": (prefixed("module.module.", V), FLAT),
    "compiled DDP": (prefixed("module._orig_mod.", V), FLAT),
    "DDP compiled": (prefixed("_orig_mod.module.", V), FLAT),
    "compiled twice": (prefixed("_orig_mod._orig_mod.", V), FLAT),
    "Fabric": ({"model": prefixed("_forward_module._orig_mod.", V)}, "model"),
    "a compiled block": (infixed(V, "blocks.0.", "_orig_mod."), FLAT),
    "all blocks compiled": (infixed(infixed(V, "blocks.0.", "_orig_mod."), "blocks.1.", "_orig_mod."), FLAT),
    "activation checkpointing": (infixed(V, "blocks.0.", "_checkpoint_wrapped_module."), FLAT),
    "FSDP over checkpointing": (
        prefixed("_fsdp_wrapped_module.", infixed(V, "blocks.1.", "_fsdp_wrapped_module._checkpoint_wrapped_module.")),
        FLAT,
    ),
    "DeepSpeed": ({"module": V, "optimizer": None, "ds_version": "0.14"}, "module"),
    "Lightning": (
        {"state_dict": V, "pytorch-lightning_version": "2.0", "hyper_parameters": {"depth": 2}},
        "state_dict",
    ),
    "SWA": (prefixed("module.", V) | {"n_averaged": torch.tensor(5)}, FLAT),
    "only EMA": ({"state_dict_ema": V}, "state_dict_ema"),
}


@pytest.mark.parametrize(("value", "name"), SINGLE.values(), ids=SINGLE.keys())
def test_one_set_of_weights(opened, value, name) -> None:
    ckpt = opened(value)
    found = branches(ckpt)
    assert [branch.name for branch in found] == [name]
    assert_is(ckpt, found[0], V)
    counters = {"n_averaged"}
    assert_restores(found[0], [stored.key for stored in ckpt.tensors if stored.key not in counters])
    assert found[0].left == ()


A, B, C = vit(1), vit(2), {"0.weight": torch.ones(3, 3)}
SEVERAL: dict[str, tuple[Any, list[tuple[str, Any]], str]] = {
    "DINO": (
        {"student": prefixed("module.backbone.", A), "teacher": prefixed("backbone.", B), "epoch": 1},
        [("teacher", prefixed("backbone.", B)), ("student", prefixed("backbone.", A))],
        "teacher",
    ),
    "DINO with its loss": (
        {"dino_loss": {"center": torch.ones(1, 4)}, "student": A, "teacher": B},
        [("teacher", B), ("student", A), ("dino_loss", {"center": torch.ones(1, 4)})],
        "teacher",
    ),
    "DINO in a flat file": (
        prefixed("student.", A) | prefixed("teacher.", B),
        [("teacher", B), ("student", A)],
        "teacher",
    ),
    "timm EMA": ({"state_dict": A, "state_dict_ema": B}, [("state_dict_ema", B), ("state_dict", A)], "EMA"),
    "model_ema": ({"model": A, "model_ema": B}, [("model_ema", B), ("model", A)], "EMA"),
    "I-JEPA": (
        {"encoder": prefixed("module.", A), "predictor": C, "target_encoder": prefixed("module.", B)},
        [("target_encoder", B), ("encoder", A), ("predictor", C)],
        "I-JEPA",
    ),
    "MoCo v3": (
        {
            "state_dict": prefixed("module.base_encoder.", A)
            | prefixed("module.momentum_encoder.", B)
            | prefixed("module.predictor.", C)
        },
        [
            ("state_dict.base_encoder", A),
            ("state_dict.momentum_encoder", B),
            ("state_dict.rest", prefixed("predictor.", C)),
        ],
        "MoCo",
    ),
    "ema-pytorch": (
        prefixed("online_model.module.", A)
        | prefixed("ema_model.", B)
        | {"initted": torch.tensor(True), "step": torch.tensor(9)},
        [("ema_model", B), ("online_model", A)],
        "EMA",
    ),
    "parts larger than the network": (
        {"predictor": {"w": torch.ones(99, 99)}, "dino_head": {"w": torch.ones(99, 99)}, "backbone": A},
        [("backbone", A), ("predictor", {"w": torch.ones(99, 99)}), ("dino_head", {"w": torch.ones(99, 99)})],
        "largest",
    ),
    "two of one kind": (
        {"generator": A, "small": {"weight": torch.ones(2)}},
        [("generator", A), ("small", {"weight": torch.ones(2)})],
        "largest",
    ),
}


@pytest.mark.parametrize(("value", "wanted", "why"), SEVERAL.values(), ids=SEVERAL.keys())
def test_several_sets_are_all_there_and_the_first_is_a_stated_choice(opened, value, wanted, why) -> None:
    ckpt = opened(value)
    found = branches(ckpt)
    assert [branch.name for branch in found] == [name for name, _ in wanted]
    for branch, (_, tensors) in zip(found, wanted, strict=True):
        assert_is(ckpt, branch, tensors)
    assert why in found[0].note
    assert all(name in found[0].note for name, _ in wanted[1:])
    given_back = {restore(key, branch.steps, index) for branch in found for index, key in enumerate(branch.tensors)}
    assert given_back == {stored.key for stored in ckpt.tensors if stored.key not in ("initted", "step")}


def test_order_does_not_depend_on_the_order_in_the_file(opened) -> None:
    parts = {"student": A, "teacher": B, "dino_loss": {"center": torch.ones(1, 4)}}
    for order in itertools.permutations(parts):
        found = branches(opened({name: parts[name] for name in order}))
        assert [branch.name for branch in found] == ["teacher", "student", "dino_loss"]


def test_counters_are_dropped_aloud_and_only_beside_an_averaging_wrapper(opened) -> None:
    found = branches(opened(prefixed("module.", V) | {"n_averaged": torch.tensor(5)}))
    assert "counters were dropped: 'n_averaged'" in found[0].note
    found = branches(opened(V | {"step": torch.tensor(5)}))
    assert "step" in found[0].tensors


def test_training_state_is_no_branch_but_is_mentioned(opened) -> None:
    value = {
        "model": V,
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2, 3)}}},
        "lr_schedulers": [{"x": torch.ones(1)}],
        "scaler": {"scale": torch.ones(1)},
        "optimizer_states": [{"state": {0: {"m": torch.ones(2)}}}],
    }
    found = branches(opened(value))
    assert [branch.name for branch in found] == ["model"]
    assert "4 tensors of optimizer or other training state" in found[0].note


@pytest.mark.parametrize("same", [True, False], ids=["same data", "other data"])
@pytest.mark.parametrize("wrap", ["blocks.0._orig_mod.ls1.gamma", "module.blocks.0.ls1.gamma"])
def test_a_key_with_and_without_its_wrapper(opened, same, wrap) -> None:
    value = V | {wrap: V["blocks.0.ls1.gamma"] if same else V["blocks.0.ls1.gamma"] + 1}
    ckpt = opened(value)
    if same:
        found = branches(ckpt)
        assert_is(ckpt, found[0], V)
        assert "the data are the same" in found[0].note
    else:
        with pytest.raises(Refused, match=r"1 keys are there with and without.*'blocks.0.ls1.gamma'"):
            branches(ckpt)


def test_a_list_of_averages_that_cannot_be_named_never_comes_first(opened) -> None:
    for values in (list(V.values())[1:], [*V.values(), torch.ones(3)]):
        found = branches(opened({"ema": {"shadow_params": values}, "model": V}))
        assert [branch.name for branch in found] == ["model", "ema.shadow_params"]
    found = branches(opened({"ema": {"shadow_params": list(V.values())}, "model": V}))
    assert [branch.name for branch in found] == ["ema.shadow_params", "model"]
    assert list(found[0].tensors) == list(V)


def test_a_wrapper_name_at_the_end_of_a_key_is_a_name(opened) -> None:
    found = branches(opened({"blocks.module": torch.ones(1), "module": torch.ones(2)}))
    assert set(found[0].tensors) == {"blocks.module", "module"}


class TestLoosen:
    @pytest.mark.parametrize("prefix", ["model.", "backbone.", "dinov2_with_registers.", "model.visual.trunk."])
    def test_common_prefix(self, opened, prefix) -> None:
        ckpt = opened({"state_dict": prefixed(prefix, V)})
        readings = list(loosen(branches(ckpt)[0]))
        fitting = [reading for reading in readings if set(reading.tensors) == set(V)]
        assert len(fitting) == 1
        assert_is(ckpt, fitting[0], V)
        assert fitting[0].left == ()
        assert_restores(fitting[0], prefixed(prefix, V))

    def test_siblings(self, opened) -> None:
        ckpt = opened({"teacher": prefixed("module.backbone.", V) | prefixed("module.dino_head.", C)})
        readings = list(loosen(branches(ckpt)[0]))
        fitting = [reading for reading in readings if set(reading.tensors) == set(V)]
        assert len(fitting) == 1
        assert fitting[0].name == "teacher.backbone"
        assert fitting[0].left == ("dino_head.0.weight",)
        assert "left aside: 'dino_head.0.weight'" in fitting[0].note
        assert_restores(fitting[0], prefixed("module.backbone.", V))

    def test_the_larger_part_comes_first(self, opened) -> None:
        big = {key: torch.ones(9, 9) for key in V}
        readings = list(loosen(branches(opened(prefixed("a.", V) | prefixed("b.", big)))[0]))
        assert next(iter(readings)).name == f"{FLAT}.b"
        assert [reading.left[0][:2] for reading in readings if set(reading.tensors) == set(V)] == ["a.", "b."]

    def test_there_is_an_end(self, opened) -> None:
        deep = {f"{'a.' * depth}w{k}": torch.ones(1) for depth in range(60) for k in range(5)}
        assert len(list(loosen(branches(opened(deep))[0]))) <= 100
        assert list(loosen(branches(opened({"w": torch.ones(1)}))[0])) == []


@given(
    st.lists(
        st.lists(
            st.sampled_from(["module", "_orig_mod", "blocks", "0", "1", "w", "_fsdp_wrapped_module", "teacher"]),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_is_taken_off_can_be_put_back(paths: list[list[str]]) -> None:
    keys = list(dict.fromkeys(".".join(path) for path in paths))
    tensors = tuple(Stored((key,), "U8", (1,), Blob(0, i, 1)) for i, key in enumerate(keys))

    class Held:
        def __init__(self) -> None:
            self.tensors = tensors

        def read(self, stored: Stored) -> memoryview:
            return memoryview(bytes([stored.blob.offset]))

    try:
        found = branches(Held())
    except Refused:
        return
    for branch in found:
        for reading in (branch, *loosen(branch)):
            for index, (key, stored) in enumerate(reading.tensors.items()):
                assert restore(key, reading.steps, index) == stored.key
    held = [stored.key for branch in found for stored in branch.tensors.values()]
    assert sorted(held) == sorted(keys)
