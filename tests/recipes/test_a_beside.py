"""A: what lies beside a network in a file is lost only with consent; training's own parts are left aside and said."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import DIM, Answer, State, equal, prefixed, rand_t, save, tensors, vitconv

H = rand_t(1, head=False)
FC = {"fc.weight": torch.randn(5, DIM), "fc.bias": torch.randn(5)}


def convert(path: Path, contents: Any, *more: object, to: str = "timm") -> tuple[Answer, State | None]:
    out = path / "out.safetensors"
    out.unlink(missing_ok=True)
    answer = vitconv("convert", save(path / "s.pth", contents), out, "--to", to, *more)
    return answer, tensors(out) if out.exists() else None


def renamed(name: str) -> State:
    return {key.replace("fc", name): value for key, value in FC.items()}


@pytest.mark.parametrize(
    "name", ["fc", "classifier", "decode_head.conv_seg", "head.fc", "decoder.0", "neck", "cls_head"]
)
@pytest.mark.parametrize("prefix", ["backbone.", "model.encoder.", "0."])
def test_a_trained_part_beside_the_network_is_not_lost_in_silence(name: str, prefix: str, tmp_path: Path) -> None:
    state = {**prefixed(H, prefix), **renamed(name)}
    answer, written = convert(tmp_path, state)
    assert answer.code == 3, answer.text
    assert written is None
    assert "2 tensors beside the network" in answer.err
    assert "30 of 32 tensors are read" in answer.err
    assert f"{name}.weight" in answer.err
    answer, written = convert(tmp_path, state, "--drop", f"{name}.*")
    assert answer.code == 0, answer.text
    assert "30 to 30; 2 beside the network left out" in answer.out
    assert equal(written, H)


@pytest.mark.parametrize(
    ("prefix", "key", "pattern"),
    [
        ("visual.trunk.", "visual.head.proj.weight", "visual.head.*"),
        ("module.backbone.", "module.head.0.weight", "module.head.*"),
        ("module.backbone.", "module.head.0.weight", "head.*"),
        ("model.net.vit.", "model.net.decoder.weight", "model.net.decoder*"),
        ("_orig_mod.a.", "_orig_mod.b.weight", "_orig_mod.b.*"),
    ],
)
def test_consent_by_the_names_of_the_file(prefix: str, key: str, pattern: str, tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#1962: BiomedCLIP keeps its projection beside the trunk."""
    state = {**prefixed(H, prefix), key: torch.randn(5, DIM)}
    answer, written = convert(tmp_path, state)
    assert answer.code == 3, answer.text
    assert written is None
    answer, written = convert(tmp_path, state, "--drop", pattern)
    assert answer.code == 0, answer.text
    assert "1 beside the network left out" in answer.out
    assert equal(written, H)


@pytest.mark.parametrize("pattern", ["net.vit.*", "vit.*", "other.head.*"])
def test_consent_to_something_else_is_none(pattern: str, tmp_path: Path) -> None:
    state = {**prefixed(H, "net.vit."), "net.head.weight": torch.randn(5, DIM)}
    answer, written = convert(tmp_path, state, "--drop", pattern)
    assert answer.code == 2, answer.text
    assert written is None
    assert "head.weight" in answer.err


@pytest.mark.parametrize("prefix", ["", "module.", "backbone."])
@pytest.mark.parametrize("whole", [True, False])
def test_consent_to_a_part_of_the_network_by_the_names_of_the_file(prefix: str, whole: bool, tmp_path: Path) -> None:
    state = prefixed({**H, "mask_token": torch.randn(1, DIM)}, prefix)
    state |= {f"{prefix}blocks.{i}.ls{n}.gamma": torch.randn(DIM) for i in range(2) for n in (1, 2)}
    pattern = f"{prefix}mask_token" if whole else "mask_token"
    answer, written = convert(tmp_path, state, "--drop", pattern)
    assert answer.code == 0, answer.text
    assert written is not None
    assert "mask_token" not in written


def test_a_trained_part_is_kept_in_the_residue(tmp_path: Path) -> None:
    answer, _ = convert(tmp_path, {**prefixed(H, "backbone."), **FC}, "--residue", tmp_path / "r.safetensors")
    assert answer.code == 0, answer.text
    kept = tensors(tmp_path / "r.safetensors")
    assert equal({key.removeprefix("aside:"): value for key, value in kept.items()}, FC)


def test_all_that_would_be_lost_is_said_at_once(tmp_path: Path) -> None:
    scales = {f"blocks.{i}.{ls}.gamma": torch.randn(DIM) for i in range(2) for ls in ("ls1", "ls2")}
    answer, _ = convert(tmp_path, {**prefixed({**H, **scales}, "backbone."), **FC}, to="torchvision")
    assert answer.code == 3
    assert "no place for 4 tensors" in answer.err
    assert "2 tensors beside the network" in answer.err


@pytest.mark.parametrize(
    "branch", ["net_a", "net_b", "weights.net_a", "weights.net_b"], ids=["a", "b", "a in full", "b in full"]
)
def test_two_networks_are_asked_about_and_either_can_be_named(branch: str, tmp_path: Path) -> None:
    state = {**prefixed(rand_t(1), "net_a."), **prefixed(rand_t(2), "net_b.")}
    answer, written = convert(tmp_path, state)
    assert answer.code == 3
    assert "weights.net_a" in answer.err
    assert "weights.net_b" in answer.err
    assert written is None
    answer, written = convert(tmp_path, state, "--branch", branch)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1 if branch.endswith("a") else 2))


def test_two_plain_containers_of_one_network_are_asked_about(tmp_path: Path) -> None:
    answer, written = convert(tmp_path, {"net_a": rand_t(1), "net_b": rand_t(2)})
    assert answer.code == 3
    assert "net_a and net_b" in answer.err
    assert written is None
    assert equal(convert(tmp_path, {"net_a": rand_t(1), "net_b": rand_t(2)}, "--branch", "net_b")[1], rand_t(2))
    answer, written = convert(tmp_path, {"net_a": rand_t(1), "net_b": rand_t(1)})
    assert answer.code == 0, answer.text


def test_no_such_branch(tmp_path: Path) -> None:
    answer, _ = convert(tmp_path, {"student": rand_t(1), "teacher": rand_t(2)}, "--branch", "nope")
    assert answer.code == 2
    assert "teacher, student" in answer.err


def projector(prefix: str, sizes: tuple[int, ...]) -> State:
    """Linear layers without a bias and BatchNorm in turn, the last one without weights, as MoCo-v3 builds them."""
    layers: list[torch.nn.Module] = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        layers += [torch.nn.Linear(n, m, bias=False), torch.nn.BatchNorm1d(m, affine=not last)]
        layers += [] if last else [torch.nn.ReLU()]
    return prefixed(torch.nn.Sequential(*layers).state_dict(), prefix)


def moco() -> State:
    state = prefixed(rand_t(1, head=False), "module.base_encoder.") | prefixed(
        rand_t(2, head=False), "module.momentum_encoder."
    )
    for name in ("base_encoder", "momentum_encoder"):
        state |= projector(f"module.{name}.head.", (DIM, 16, 16, 8))
    return state | projector("module.predictor.", (8, 16, 8))


@pytest.mark.parametrize("to", ["timm", "moco-v3"])
@pytest.mark.parametrize(("option", "seed"), [((), 1), (("--branch", "momentum_encoder"), 2)], ids=["base", "momentum"])
def test_a_whole_file_of_moco_v3(to: str, option: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    contents = {"epoch": 300, "arch": "vit_small", "state_dict": moco(), "optimizer": {}, "scaler": {}}
    answer, written = convert(tmp_path, contents, *option, to=to)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(seed, head=False))
    assert "head.{0..1,3..4,6}.weight" in answer.out
    assert "no part of the network, left aside" in answer.out


@pytest.mark.parametrize(
    "name",
    [
        "head.mlp.0.weight", "dino_head.last_layer.weight_v", "ibot_head.mlp.2.bias", "student_head.0.weight",
        "projector.layers.0.weight", "projection_head.0.weight", "prediction_mlp.1.weight", "predictor.0.weight",
        "prototypes.weight", "queue", "queue_ptr", "dino_loss.center", "criterion.weight", "train_acc.tp",
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "backbone."], ids=["bare", "prefixed"])
def test_known_parts_of_training_need_no_consent(name: str, prefix: str, tmp_path: Path) -> None:
    if name in ("queue", "queue_ptr"):
        name = f"queue.{name}"
    answer, written = convert(tmp_path, {**prefixed(H, prefix), name: torch.randn(3, 4)})
    assert answer.code == 0, answer.text
    assert equal(written, H)
    assert name in answer.out


@pytest.mark.parametrize("name", ["step", "global_step", "num_batches_tracked", "epoch", "best_acc1"])
@pytest.mark.parametrize("prefix", ["", "model."], ids=["bare", "prefixed"])
def test_a_counter_beside_the_weights_is_left_aside(name: str, prefix: str, tmp_path: Path) -> None:
    answer, written = convert(tmp_path, {**prefixed(rand_t(1), prefix), name: torch.tensor(3)})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert name in answer.out


@pytest.mark.parametrize("name", ["step", "logit_scale_", "temperature"])
def test_what_is_no_counter_is_not(name: str, tmp_path: Path) -> None:
    value = torch.tensor([3.0, 4.0]) if name == "step" else torch.tensor(3.0)
    answer, written = convert(tmp_path, {**rand_t(1), name: value})
    assert answer.code == 1
    assert name in answer.err
    assert written is None


@pytest.mark.parametrize("beside", [{"best_acc1": torch.tensor(3.0)}, {"swa": {"n_averaged": torch.tensor(3)}}])
def test_a_container_of_counters_is_no_set_of_weights(beside: dict[str, Any], tmp_path: Path) -> None:
    answer, written = convert(tmp_path, {"state_dict": rand_t(1), **beside})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert "--branch" not in answer.out


@pytest.mark.parametrize(
    "prefix",
    [
        "0.",
        "model.0.",
        "0.auto_model.",
        "features.0.",
        "module.0.module.",
        "1.backbone.",
        "model.module.0._orig_mod.net.",
    ],
)
def test_prefixes_with_numbers(prefix: str, tmp_path: Path) -> None:
    answer, written = convert(tmp_path, prefixed(rand_t(1), prefix))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))


@pytest.mark.parametrize("outer", ["model.", "net.", "backbone.", "encoder.", "module.0."])
@pytest.mark.parametrize(
    ("inner", "to"), [("vit", "hf-vit"), ("deit", "hf-deit")], ids=["ViTForImageClassification", "DeiT"]
)
def test_the_reading_that_holds_more_is_the_network(outer: str, inner: str, to: str, tmp_path: Path) -> None:
    state = {**rand_t(1), "dist_token": torch.randn(1, 1, DIM)} if inner == "deit" else rand_t(1)
    if inner == "deit":
        state["pos_embed"] = torch.randn(1, 18, DIM)
    _, named = convert(tmp_path, state, to=to)
    assert named is not None
    assert {"classifier.weight", f"{inner}.layernorm.weight"} <= set(named)
    answer, written = convert(tmp_path, {"state_dict": prefixed(named, outer)})
    assert answer.code == 0, answer.text
    assert equal(written, state)


@pytest.mark.parametrize(
    ("contents", "lost"),
    [
        ({"backbone": H, "linear": {"weight": FC["fc.weight"], "bias": FC["fc.bias"]}}, "linear"),
        ({"model": {"backbone": H, "head": {"weight": FC["fc.weight"], "bias": FC["fc.bias"]}}}, "model.head"),
        ({"encoder": H, "decoder": {"0.weight": FC["fc.weight"], "0.bias": FC["fc.bias"]}}, "decoder"),
    ],
    ids=["linear", "head", "decoder"],
)
def test_a_trained_part_in_a_container_of_its_own(contents: Any, lost: str, tmp_path: Path) -> None:
    answer, written = convert(tmp_path, contents)
    assert answer.code == 3, answer.text
    assert written is None
    assert f"{lost}." in answer.err
    assert equal(convert(tmp_path, contents, "--drop", f"{lost}.*")[1], H)
    answer, written = convert(tmp_path, contents, "--residue", tmp_path / "r.safetensors")
    assert answer.code == 0, answer.text
    assert equal(
        {str(v.shape): v for v in tensors(tmp_path / "r.safetensors").values()}, {str(v.shape): v for v in FC.values()}
    )


@pytest.mark.parametrize(
    "beside",
    [
        {"criterion": {"weight": torch.ones(5)}},
        {"dino_loss": {"center": torch.ones(1, 5)}},
        {"projector": {"0.weight": torch.ones(3, 3), "0.bias": torch.ones(3)}},
        {"hyper_parameters": {"weight": torch.ones(5)}},
        {"student": {"conv1.weight": torch.ones(3, 3, 1, 1), "fc.weight": torch.ones(2, 3)}},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_training_and_copies_in_containers_need_no_consent(beside: Any, tmp_path: Path) -> None:
    answer, written = convert(tmp_path, {"model": rand_t(1), **beside})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))


def test_a_text_tower_under_a_prefix_is_left_aside(tmp_path: Path) -> None:
    state = {**prefixed(rand_t(1), "model.visual."), "model.text.token_embedding.weight": torch.zeros(9, 8)}
    answer, written = convert(tmp_path, {**state, "model.logit_scale": torch.tensor(1.0)})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert "text.token_embedding.weight" in answer.out
