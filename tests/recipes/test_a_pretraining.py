"""A: what pre-training leaves around a network: chunks of blocks, mask tokens, heads, queues, averages elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import DEPTH, DIM, State, equal, prefixed, rand_t, save, tensors, vitconv


def to_timm(source: Path, *more: object):
    out = source.parent / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


def with_layer_scale(seed: int) -> State:
    state = rand_t(seed, head=False)
    return state | {f"blocks.{i}.ls{j}.gamma": torch.randn(DIM) for i in range(DEPTH) for j in (1, 2)}


def in_chunks(state: State, more: str = "") -> State:
    """Return the state with every block in a chunk of its own, as DINOv2's training keeps them for FSDP."""
    for i in range(DEPTH):
        state = {k.replace(f"blocks.{i}.", f"blocks.{i}.{more}{i}.", 1): v for k, v in state.items()}
    return state


@pytest.mark.parametrize("prefix", ["", "backbone.", "model.backbone."], ids=["bare", "backbone", "deeper"])
@pytest.mark.parametrize("wrapper", ["", "_fsdp_wrapped_module."], ids=["plain", "fsdp"])
def test_blocks_in_chunks_under_a_prefix(prefix: str, wrapper: str, tmp_path: Path) -> None:
    """facebookresearch/dinov2#210 and #235."""
    network = with_layer_scale(2)
    teacher = prefixed(in_chunks(network, wrapper), prefix) | {
        "dino_head.mlp.0.weight": torch.randn(8, DIM),
        "ibot_head.last_layer.weight_g": torch.randn(9, 1),
    }
    answer, written = to_timm(save(tmp_path / "s.pth", {"teacher": teacher}))
    assert answer.code == 0, answer.text
    assert "chunks" in answer.text
    assert equal(written, network)


@pytest.mark.parametrize("name", ["masked_embed", "mask_token"])
@pytest.mark.parametrize("prefix", ["", "backbone.", "encoder."], ids=["bare", "backbone", "encoder"])
def test_a_mask_token_is_named_and_lost_only_with_consent(name: str, prefix: str, tmp_path: Path) -> None:
    """iBOT's and SimMIM's pre-training keep one that no function needs."""
    network = rand_t(1, head=False)
    state = prefixed(network | {name: torch.randn(1, DIM)}, prefix)
    state |= {"decoder.0.weight": torch.randn(48, DIM, 1, 1)} if prefix else {}
    source = save(tmp_path / "s.pth", {"model": state})
    answer, written = to_timm(source)
    assert answer.code == 3 and written is None
    # BEiT has a place for one of them.
    assert (name in answer.err or "embed.mask" in answer.err) and "--drop" in answer.err
    answer, written = to_timm(source, "--drop", name, *(("--drop", "decoder.*") if prefix else ()))
    assert answer.code == 0, answer.text
    assert equal(written, network)


def test_the_second_head_of_ibot_and_the_queues_of_moby_need_no_consent(tmp_path: Path) -> None:
    network = rand_t(2, head=False)
    teacher = prefixed(network, "backbone.") | {
        "head.last_layer2.weight_v": torch.randn(9, 8),
        "head.mlp2.0.weight": torch.randn(8, 8),
        "queue1": torch.randn(4, 8),
        "queue_ptr": torch.zeros(1, dtype=torch.int64),
    }
    answer, written = to_timm(save(tmp_path / "s.pth", {"teacher": teacher}))
    assert answer.code == 0, answer.text
    assert equal(written, network)


@pytest.mark.parametrize(
    "callbacks",
    [
        {"EMA": {"ema_state_dict": prefixed(rand_t(2), "model.")}},
        {"EMACallback": {"decay": 0.99, "shadow": prefixed(rand_t(2), "model.")}},
        {"WeightEMA{'decay': 0.99}": {"weights": prefixed(rand_t(2), "model.")}},
    ],
    ids=["its own name", "a class's name", "a state key"],
)
def test_a20_averages_that_a_callback_keeps_are_weights(callbacks: dict[str, Any], tmp_path: Path) -> None:
    other = {"ModelCheckpoint": {"best_model_score": torch.tensor(3.0), "kth": prefixed(rand_t(3), "model.")}}
    contents = {"state_dict": prefixed(rand_t(1), "model."), "callbacks": callbacks | other}
    source = save(tmp_path / "s.ckpt", contents)
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert "averaged (EMA)" in answer.text
    assert equal(written, rand_t(2))
    answer, written = to_timm(source, "--weights", "raw")
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))


@pytest.mark.parametrize("name", ["model", "net"])
def test_a20_averages_whose_keys_lost_their_dots(name: str, tmp_path: Path) -> None:
    """LitEma keeps a buffer for each parameter, named without dots."""
    ema = {f"{name}_ema.{k.replace('.', '')}": v for k, v in rand_t(2).items()}
    counters = {f"{name}_ema.decay": torch.tensor(0.9), f"{name}_ema.num_updates": torch.tensor(3)}
    answer, written = to_timm(
        save(tmp_path / "s.ckpt", {"state_dict": {**prefixed(rand_t(1), f"{name}."), **ema, **counters}})
    )
    assert answer.code == 0, answer.text
    assert "dots" in answer.text
    assert equal(written, rand_t(2))


def test_keys_without_dots_and_nothing_that_says_where_they_were(tmp_path: Path) -> None:
    ema = {k.replace(".", ""): v for k, v in rand_t(2).items()}
    answer, written = to_timm(save(tmp_path / "s.pth", {"ema": ema, "net": rand_t(1)["head.bias"]}))
    assert answer.code == 1 and written is None


@pytest.mark.parametrize("prefix", ["backbone.", "image_encoder.", "model.encoder."])
def test_what_does_not_fit_under_a_prefix_is_told_by_its_own_names(prefix: str, tmp_path: Path) -> None:
    state = rand_t(1, head=False) | {"blocks.0.strange.weight": torch.randn(3)}
    answer, _ = to_timm(save(tmp_path / "s.pth", prefixed(state, prefix)))
    assert answer.code == 1
    assert "closest: timm" in answer.err and "unknown here: blocks.0.strange.weight" in answer.err
    assert f"without '{prefix}'" in answer.err


def test_a_kind_that_cannot_be_carried_is_known_under_a_prefix(tmp_path: Path) -> None:
    """Segment Anything's image encoder."""
    state = {k: v for k, v in rand_t(1, head=False, cls=False).items() if not k.startswith("norm.")}
    state |= {f"blocks.{i}.attn.rel_pos_{x}": torch.randn(7, 8) for i in range(DEPTH) for x in "hw"}
    answer, _ = to_timm(save(tmp_path / "s.pth", prefixed(state, "image_encoder.")))
    assert answer.code == 3
    assert "relative positions" in answer.err


def test_a_small_part_that_is_known_is_not_what_a_message_speaks_of(tmp_path: Path) -> None:
    """A ConvNeXt's head alone has names of a layout."""
    state = {f"stages.{i}.conv_dw.weight": torch.randn(4, 1, 7, 7) for i in range(9)}
    state |= {"head.norm.weight": torch.randn(4), "head.norm.bias": torch.randn(4), "head.fc.weight": torch.randn(5, 4)}
    answer, _ = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert "these 12 tensors" in answer.err and "stages.{0..8}.conv_dw.weight" in answer.err


@pytest.mark.parametrize(
    ("one", "two"),
    [("student", "teacher_model"), ("student_net", "teacher"), ("model_student", "teacher_encoder")],
    ids=lambda s: s,
)
def test_a10_a_teacher_and_a_student_of_unlike_names(one: str, two: str, tmp_path: Path) -> None:
    state = prefixed(rand_t(1), f"{one}.") | prefixed(rand_t(2), f"{two}.")
    source = save(tmp_path / "s.pth", {"state_dict": state})
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert "the teacher" in answer.text
    assert equal(written, rand_t(2))
    answer, written = to_timm(source, "--branch", one)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))


def test_a_set_that_is_not_whole_names_the_others(tmp_path: Path) -> None:
    part = {k: v for k, v in rand_t(2).items() if k.startswith("blocks.0.")}
    state = prefixed(rand_t(1), "model.") | prefixed(part, "teacher.")
    answer, written = to_timm(save(tmp_path / "s.pth", {"state_dict": state}))
    assert answer.code == 1 and written is None
    assert "looked at: state_dict.teacher" in answer.err and "--branch" in answer.err


def probed(prefix: str = "") -> State:
    """Return what main_linprobe.py of MAE saves: its head is a BatchNorm without weights and a linear layer."""
    state = {k: v for k, v in rand_t().items() if not k.startswith("head.")}
    norm = {"running_mean": torch.randn(32), "running_var": torch.rand(32), "num_batches_tracked": torch.tensor(3)}
    state |= {f"head.0.{k}": v for k, v in norm.items()} | {
        f"head.1.{k}": rand_t()[f"head.{k}"] for k in ("weight", "bias")
    }
    return {f"{prefix}{k}": v for k, v in state.items()}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a19_the_classifier_of_a_linear_probe_is_no_projector(prefix: str, tmp_path: Path) -> None:
    path, out = save(tmp_path / "s.pth", {"model": probed(prefix)}), tmp_path / "out.safetensors"
    answer = vitconv("convert", path, out, "--to", "timm")
    assert answer.code == 3, answer.text
    assert "head is a BatchNorm without weights and a linear layer, as MAE's linear probe trains them" in answer.err
    assert not out.exists()
    assert vitconv("convert", path, out, "--to", "timm", "--drop", "head.*").code == 0
    assert equal(tensors(out), rand_t(head=False))


def test_a19_the_folded_classifier_is_what_the_message_says() -> None:
    state, x = {k: v.double() for k, v in probed().items()}, torch.randn(4, 32, dtype=torch.float64)
    norm = torch.nn.BatchNorm1d(32, affine=False, eps=1e-6).double().eval()
    norm.load_state_dict({k: state[f"head.0.{k}"] for k in ("running_mean", "running_var", "num_batches_tracked")})
    w = state["head.1.weight"] / (state["head.0.running_var"] + 1e-6).sqrt()
    folded = torch.nn.functional.linear(x, w, state["head.1.bias"] - w @ state["head.0.running_mean"])
    there = torch.nn.functional.linear(norm(x), state["head.1.weight"], state["head.1.bias"])
    assert torch.allclose(folded, there, atol=1e-12)
