"""Optimisers and what a training keeps (L), with inputs of our own: groups in other layouts, moments, schedulers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import equal, rand_t, save, tensors, vitconv
from torch import nn

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.registry import CHECKS, load

sys.path.insert(0, str(Path(__file__).parents[1] / "conversion"))
from optimizer_kit import SETS, Run, adamw, named, sgd


def rows(path: Path, *more: object) -> dict[str, dict[str, Any]]:
    """Return {key: row} of `inspect --groups`."""
    answer = vitconv("inspect", path, "--groups", "--json", *more)
    assert answer.code == 0, answer.text
    return {r["key"]: r for s in answer.json["sections"] if s["key"] == "parameters" for r in s["rows"]}


def dinov2(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="transformers builds DINOv2 with registers")
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=28, patch_size=14, num_register_tokens=2
    )
    return save(tmp_path / "m.pth", transformers.Dinov2WithRegistersModel(config).state_dict())


def swin(tmp_path: Path) -> Path:
    timm = pytest.importorskip("timm", reason="timm builds Swin")
    sizes = {"embed_dim": 12, "depths": (1, 2, 1, 1), "num_heads": (2, 2, 2, 2), "num_classes": 3}
    return save(tmp_path / "m.pth", timm.create_model("swin_tiny_patch4_window7_224", **sizes).state_dict())


# (key, layer, decay): the last layer has the learning rate itself, every one before half of the next.
@pytest.mark.parametrize(
    ("make", "last", "expected"),
    [
        pytest.param(
            dinov2, 4,
            [("embeddings.register_tokens", 0, False), ("embeddings.mask_token", 0, False),
             ("encoder.layer.1.layer_scale1.lambda1", 2, False), ("encoder.layer.2.mlp.fc1.weight", 3, True),
             ("layernorm.weight", 4, False)],
            id="L01-own-dinov2-registers",
        ),
        pytest.param(
            swin, 6,
            [("patch_embed.proj.weight", 0, True), ("layers.0.blocks.0.attn.qkv.weight", 1, True),
             ("layers.1.downsample.reduction.weight", 2, True), ("layers.1.blocks.1.attn.qkv.weight", 3, True),
             ("layers.1.blocks.1.attn.relative_position_bias_table", 3, False),
             ("layers.3.blocks.0.norm1.weight", 5, False), ("head.fc.weight", 6, True)],
            id="L01-own-stages",
        ),
    ],
)  # fmt: skip
def test_layers_and_decay(
    make: Callable[[Path], Path], last: int, expected: list[tuple[str, int, bool]], tmp_path: Path
) -> None:
    found = rows(make(tmp_path), "--layer-decay", "0.5")
    for key, layer, decays in expected:
        row = found[key]
        assert (row["layer"], row["decay"], row["scale"]) == (
            layer, "decay" if decays else "no decay", 0.5 ** (last - layer)
        ), key  # fmt: skip
    assert {row["layer"] for row in found.values()} == set(range(last + 1))


@pytest.mark.parametrize(
    ("parts", "idle", "missed"),
    [
        pytest.param(
            ("ln1", "ln2"), ("ln1", "ln2"), ("cls_token, pos_embed", 20), id="L02-own-mmpretrain"
        ),
        pytest.param(("LayerNorm", "bias"), ("LayerNorm",), ("cls_token, pos_embed", 5), id="L02-own-bert"),
        pytest.param(
            ("norm", "bias", "cls_token", "reg_token"), ("reg_token",), ("pos_embed", 0), id="L02-own-a-token-too-many"
        ),
        pytest.param(("norm", "bias", "cls_tokn", "pos_embed"), ("cls_tokn",), ("cls_token", 0), id="L02-own-typo"),
        pytest.param(("norm?.*", "*.bias", "*_token"), ("norm?.*",), ("pos_embed", 5), id="L02-own-whole-names"),
        pytest.param(("norm", "bias", "cls_token", "pos_embed"), (), ("", 0), id="L02-own-all-are-there"),
    ],
)  # fmt: skip
def test_name_parts_of_another_codebase(
    parts: tuple[str, ...], idle: tuple[str, ...], missed: tuple[str, int], tmp_path: Path
) -> None:
    path = save(tmp_path / "t.safetensors", rand_t())
    words = [word for part in parts for word in ("--no-decay", part)]
    found = patterns(path, *words)
    assert tuple(part for part in parts if not found[part]["count"]) == idle
    assert (
        found.get("missed, of several axes", {"which": ""})["which"],
        found.get("missed, vectors", {"count": 0})["count"],
    ) == missed
    # By role nothing has to be listed.
    free = rows(path)
    assert all(r["decay"] == "no decay" for k, r in free.items() if "norm" in k or "bias" in k or "_token" in k)


def patterns(path: Path, *more: object) -> dict[str, dict[str, Any]]:
    """Return {pattern, or what is missed: row} of `inspect --no-decay`."""
    answer = vitconv("inspect", path, "--json", *more)
    assert answer.code == 0, answer.text
    return {r["pattern"]: r for s in answer.json["sections"] if s["key"] == "patterns" for r in s["rows"]}


def test_a_pattern_that_takes_in_too_much_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "t.safetensors", rand_t())
    found = patterns(path, "--no-decay", "norm", "--no-decay", "bias", "--no-decay", "proj")
    assert found["beyond the rule"]["which"] == "blocks.{0..1}.attn.proj.weight, patch_embed.proj.weight"
    assert "beyond the rule" not in patterns(path, "--no-decay", "norm", "--no-decay", "bias")
    refused = vitconv("inspect", path, "--no-decay", "")
    assert (refused.code, "is empty" in refused.text) == (2, True)


@pytest.mark.parametrize(
    ("optimiser", "moment", "says"),
    [
        pytest.param(adamw, "exp_avg_sq", "exp_avg_sq of cls_token is [1, 17, 32]", id="L04-own-second-moment-alone"),
        pytest.param(sgd, "momentum_buffer", "number 0 has moments [1, 17, 32]", id="L04-own-momentum"),
        pytest.param(named, "max_exp_avg_sq", "max_exp_avg_sq of head.bias is [5, 32]", id="L04-own-amsgrad"),
    ],
)
def test_moments_of_another_parameter(optimiser: Any, moment: str, says: str, tmp_path: Path) -> None:
    run = Run(tmp_path, optimiser)
    words = ("--to", "hf-vit", "--optimizer", *SETS)
    assert vitconv("convert", run.path, tmp_path / "right.safetensors", *words).code == 0
    held = torch.load(run.path, weights_only=True)
    state = held["optimizer"]["state"]
    one, other = next((a, b) for a in state for b in state if state[a][moment].shape != state[b][moment].shape)
    state[one][moment], state[other][moment] = state[other][moment], state[one][moment]
    torch.save(held, run.path)
    answer = vitconv("convert", run.path, tmp_path / "wrong.safetensors", *words)
    assert answer.code == 3
    assert says in answer.err
    assert not (tmp_path / "wrong.safetensors").exists()


@pytest.mark.parametrize(
    ("preset", "free"),
    [
        pytest.param("mae", {"cls_token": True, "dist_token": False, "pos_embed": True}, id="L05-own-mae"),
        pytest.param("dino", {"cls_token": False, "dist_token": False, "pos_embed": False}, id="L05-own-dino"),
        pytest.param("timm", {"cls_token": True, "dist_token": True, "pos_embed": True}, id="L05-own-timm"),
        pytest.param("deit", {"cls_token": True, "dist_token": False, "pos_embed": True}, id="L05-own-deit"),
        pytest.param("timm-early", {"cls_token": True, "dist_token": True, "pos_embed": True}, id="L05-own-timm-early"),
    ],
)
def test_tokens_by_preset(preset: str, free: dict[str, bool], tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(1)
    state = rand_t() | {"dist_token": torch.randn(1, 1, 32, generator=g)}
    state |= {"pos_embed": torch.randn(1, 18, 32, generator=g)}
    state |= {"head_dist.weight": torch.randn(5, 32, generator=g), "head_dist.bias": torch.randn(5, generator=g)}
    found = rows(save(tmp_path / "t.safetensors", state), "--preset", preset)
    assert {key: found[key]["decay"] == "no decay" for key in free} == free


def schedules() -> dict[str, dict[str, Any]]:
    """Return the states of schedulers and of what else a training keeps, as their own classes make them.

    Each has tensors: rates that are tensors (as `capturable` optimisers keep them), master copies, orders of examples.
    """
    optim = torch.optim.lr_scheduler
    made = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=torch.tensor(1e-3), capturable=True)
    cosine = optim.CosineAnnealingLR(made, 10)
    warm = optim.SequentialLR(made, [optim.LinearLR(made, 0.1, total_iters=2), optim.ExponentialLR(made, 0.9)], [2])
    once = optim.OneCycleLR(made, 0.1, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    masters = [t.clone() for t in rand_t(5).values()]
    ema = {"decay": torch.tensor(0.9999), "num_updates": torch.tensor(17)}
    return {
        "cosine": {"lr_scheduler": cosine.state_dict()},
        "in sequence": {"lr_schedulers": [warm.state_dict()]},
        "one cycle": {"scheduler": once.state_dict()},
        "loss scale": {"scaler": scaler.state_dict() | {"found_inf": torch.zeros(1)}},
        "apex and random state": {"amp": {"masters": masters}, "rng_state": torch.get_rng_state()},
        "counters of an average": {"ema_state": ema, "epoch": torch.tensor(3), "best_acc": 0.5},
        "a sampler of several processes": {"sampler": {"order": torch.randperm(50).float()}, "world_size": 8},
        "moments of the network": {"optimizer_state": moments_of(rand_t(3))},
    }


def moments_of(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the state of AdamW by name, whose moments have the names and shapes of the network."""
    return {"exp_avg": {n: 0.1 * t for n, t in state.items()}, "exp_avg_sq": {n: t * t for n, t in state.items()}}


@pytest.mark.parametrize("kind", schedules())
def test_what_a_training_keeps_beside_the_weights(kind: str, tmp_path: Path) -> None:
    state, run = rand_t(3), adamw(nn.Linear(4, 4))
    contents = {"model": state, "optimizer": run.state_dict(), **schedules()[kind]}
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", contents), out, "--to", "timm", "--prove")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    looked = vitconv("inspect", tmp_path / "s.pth", "--json")
    assert looked.code == 0
    # The network is the one set of weights in the file, and all of it is what was trained.
    assert looked.json["facts"]["tensors"] == len(state)
    assert not [s for s in looked.json["sections"] if s["key"] == "branches" and len(s["rows"]) > 1]


def test_a_schedulers_own_function_is_never_run(tmp_path: Path) -> None:
    made = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    state = torch.optim.lr_scheduler.LambdaLR(made, Halving()).state_dict()
    source = save(tmp_path / "s.pth", {"model": rand_t(3), "lr_scheduler": {**state, "itself": Halving()}})
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t(3))
    looked = vitconv("inspect", source)
    assert looked.code == 0
    assert "not run: " in looked.text and "Halving" in looked.text
    assert ran == []
    # A loader that trusts the file runs it: that is what would be seen.
    torch.load(source, weights_only=False)
    assert ran == [{"by": 2}]
    ran.clear()


ran: list[object] = []


class Halving:
    """A function that halves the rate each epoch, and tells when it is unpickled or called."""

    def __call__(self, epoch: int) -> float:
        return 0.5**epoch

    def __setstate__(self, state: object) -> None:
        ran.append(state)

    def __getstate__(self) -> dict[str, int]:
        return {"by": 2}


def test_a_larger_batch_loses_more_of_its_gradients_in_half_precision() -> None:
    """A mean over more images makes every gradient smaller: what is seen of one process holds for one process."""
    lost = []
    for batch in (2, 32):
        sets = ("depth=3", "dim=48", "heads=3", "image=16", "patch=4", "classes=10")
        context = context_of("vit_tiny", Wanted(sets, plan=Plan(batch=batch)))
        lost.append(run_one(context, load(CHECKS, "fp16-gradients")).findings[0].figures["subnormal_unscaled"])
    assert lost[1] > 3 * lost[0] > 0
