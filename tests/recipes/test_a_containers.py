"""A: key names, prefixes, containers, and which set of weights is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import equal, prefixed, rand_t, save, tensors, vitconv


def to_timm(source: Path, *more: object):
    """Convert to timm and return (answer, written tensors or None)."""
    out = source.with_name("out.safetensors")
    answer = vitconv("convert", source, out, "--to", "timm", "--prove", *more)
    return answer, tensors(out) if out.exists() else None


def test_a01_a_training_head_is_left_aside_and_said(tmp_path: Path) -> None:
    backbone = rand_t(head=False)
    source = save(tmp_path / "s.pth", {"student": {**backbone, "head.projection_head.0.weight": torch.randn(7, 32)}})
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert "head.projection_head.0.weight" in answer.out
    assert equal(written, backbone)


def test_a01_an_unknown_key_is_dropped_only_with_consent(tmp_path: Path) -> None:
    state = {**rand_t(), "extra.weight": torch.randn(7, 32)}
    source = save(tmp_path / "s.pth", state)
    answer, written = to_timm(source)
    assert answer.code == 1
    assert "extra.weight" in answer.err
    assert written is None
    answer, written = to_timm(source, "--drop", "extra.*")
    assert answer.code == 0, answer.text
    assert "extra.weight" in answer.out
    assert equal(written, rand_t())
    assert to_timm(source, "--drop", "extra.*", "--drop", "nothing.*")[0].code == 2


def test_a01_suffixed_keys_are_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", {k + "_x": v for k, v in rand_t().items()})
    answer, written = to_timm(source)
    assert answer.code == 1
    assert "no dialect explains" in answer.err
    assert "pos_embed_x" in answer.err
    assert written is None


@pytest.mark.parametrize("prefix", ["module._orig_mod.", "_orig_mod.module.", "_orig_mod._orig_mod.", "module.module."])
def test_a04_wrappers_in_any_order(prefix: str, tmp_path: Path) -> None:
    state = rand_t()
    answer, written = to_timm(save(tmp_path / "s.pth", prefixed(state, prefix)))
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_a04_an_empty_result_is_refused(tmp_path: Path) -> None:
    answer, written = to_timm(save(tmp_path / "s.pth", {"epoch": 3}))
    assert answer.code in (1, 3)
    assert "no tensors" in answer.err
    assert written is None


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."])
def test_a05_a07_wrappers_inside_a_key(wrapper: str, tmp_path: Path) -> None:
    state = rand_t()
    wrapped = {k.replace("blocks.0.", f"blocks.0.{wrapper}"): v for k, v in state.items()}
    answer, written = to_timm(save(tmp_path / "s.pth", wrapped))
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_a05_two_tensors_under_one_stripped_key(tmp_path: Path) -> None:
    state = rand_t()
    state["blocks.0._orig_mod.attn.qkv.weight"] = state["blocks.0.attn.qkv.weight"] + 1
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 3
    assert "blocks.0.attn.qkv.weight" in answer.err
    assert written is None


def test_a08_flat_fsdp_parameters(tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", {"teacher": {"backbone._fsdp_wrapped_module._flat_param": torch.randn(4000)}})
    answer, written = to_timm(source)
    assert answer.code == 3
    assert "_flat_param" in answer.err
    assert "FSDP" in answer.err
    assert written is None


def test_a10_teacher_is_the_default_and_said(tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", {"student": rand_t(1), "teacher": rand_t(2)})
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "teacher" in answer.out
    (tmp_path / "out.safetensors").unlink()
    answer, written = to_timm(source, "--branch", "student")
    assert equal(written, rand_t(1))


def test_a11_each_branch_has_its_own_prefix(tmp_path: Path) -> None:
    contents = {"student": prefixed(rand_t(1), "module.backbone."), "teacher": prefixed(rand_t(2), "backbone.")}
    source = save(tmp_path / "s.pth", contents)
    for branch, seed in (("teacher", 2), ("student", 1)):
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        answer, written = to_timm(source, "--branch", branch)
        assert answer.code == 0, answer.text
        assert equal(written, rand_t(seed))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"model": s},
        lambda s: {"state": {"module": s}},
        lambda s: {"model_state_dict": s, "epoch": 3},
        lambda s: {"net": s},
        lambda s: {"state_dict": prefixed(s, "model."), "hyper_parameters": {"lr": 1e-3}},
        lambda s: {"ema": s},
    ],
    ids=["bare", "model", "nested", "model_state_dict", "net", "lightning", "ema only"],
)
def test_a13_a14_containers(wrap, tmp_path: Path) -> None:
    answer, written = to_timm(save(tmp_path / "s.pth", wrap(rand_t())))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t())


def test_a16_half_mha_half_timm_is_refused(tmp_path: Path) -> None:
    state = rand_t()
    for kind in ("weight", "bias"):
        state[f"blocks.0.attn.in_proj_{kind}"] = state.pop(f"blocks.0.attn.qkv.{kind}")
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert "blocks.0.attn.in_proj_weight" in answer.err
    assert "blocks.0.attn.qkv.weight" in answer.err
    assert written is None


def test_a17_moco_takes_the_base_encoder(tmp_path: Path) -> None:
    state = prefixed(rand_t(1), "module.base_encoder.") | prefixed(rand_t(2), "module.momentum_encoder.")
    state["module.predictor.0.weight"] = torch.randn(8, 8)
    answer, written = to_timm(save(tmp_path / "s.pth", {"state_dict": state}))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert "momentum" in answer.out
    assert "base encoder" in answer.out


def test_a19_a_classifier_is_said(tmp_path: Path) -> None:
    with_head = vitconv("inspect", save(tmp_path / "a.safetensors", rand_t()), "--json")
    without = vitconv("inspect", save(tmp_path / "b.safetensors", rand_t(head=False)), "--json")
    assert with_head.json["facts"]["classes"] == 5
    assert "classes" not in without.json["facts"]


def test_a20_ema_is_the_default_and_said(tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", {"model": rand_t(1), "model_ema": rand_t(2)})
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "EMA" in answer.out
    listed = vitconv("inspect", source, "--health")
    assert "relative distance" in listed.out


@pytest.mark.parametrize(("option", "seed"), [(("--weights", "ema"), 2), (("--weights", "raw"), 1), ((), 2)])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda raw, ema: {"params": raw, "params_ema": ema},
        lambda raw, ema: {"state_dict": raw, "swa_state_dict": ema},
        lambda raw, ema: {"model": raw, "ema": {"module": ema, "updates": torch.tensor(5), "decay": 0.99}},
        lambda raw, ema: {"model": raw, "averaged_model": {"n_averaged": torch.tensor(3), **prefixed(ema, "module.")}},
        lambda raw, ema: {"state_dict": {**prefixed(raw, "net."), **prefixed(ema, "net_ema.")}},
        lambda raw, ema: {**prefixed(raw, "model."), **prefixed(ema, "ema.")},
    ],
    ids=["BasicSR", "swa", "nested", "torch's AveragedModel", "flat with a suffix", "flat"],
)
def test_a20_raw_or_averaged_by_choice(wrap, option: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", wrap(rand_t(1), rand_t(2)))
    answer, written = to_timm(source, *option)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(seed))


def test_byol_takes_the_online_network(tmp_path: Path) -> None:
    state = prefixed(rand_t(1), "online_network.encoder.") | prefixed(rand_t(2), "target_network.encoder.")
    answer, written = to_timm(save(tmp_path / "s.pth", {"state_dict": state}))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert "online network" in answer.out


def test_a20_only_averaged_weights(tmp_path: Path) -> None:
    answer, written = to_timm(save(tmp_path / "s.pth", {"state_dict_ema": rand_t(2)}))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))


def test_a22_ema_pytorch_holds_both_copies_and_counters(tmp_path: Path) -> None:
    state = prefixed(rand_t(1), "online_model.") | prefixed(rand_t(2), "ema_model.")
    state |= {"initted": torch.tensor(True), "step": torch.tensor(100)}
    source = save(tmp_path / "s.pth", state)
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))


@pytest.mark.parametrize(
    ("contents", "word"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\x1f\x8b\x08garbage", "gzip"),
    ],
    ids=["empty", "lfs pointer", "html", "gzip"],
)
@pytest.mark.parametrize("name", ["s.pth", "s.safetensors"])
def test_a28_what_is_no_checkpoint(contents: bytes, word: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(contents)
    answer, written = to_timm(tmp_path / name)
    assert answer.code == 3
    assert word.lower() in answer.err.lower()
    assert written is None


@pytest.mark.parametrize("name", ["s.pth", "s.safetensors"])
def test_a28_a_file_cut_in_half(name: str, tmp_path: Path) -> None:
    source = save(tmp_path / name, rand_t())
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    answer, written = to_timm(source)
    assert answer.code == 3
    assert len(answer.err.strip().splitlines()) <= 3
    assert written is None
