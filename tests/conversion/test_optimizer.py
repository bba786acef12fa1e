"""Moments travel with the weights: training goes on in the other codebase as if nothing had happened."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conversion_kit import timm_vit
from optimizer_kit import (
    SETS,
    Run,
    adamw,
    call,
    data,
    decay_first,
    head_only,
    lightning,
    named,
    sgd,
    timm_groups,
    timm_layers,
    train,
    without_positions,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

import vitconv

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

MAKERS: list[Callable[[nn.Module], torch.optim.Optimizer]] = [
    adamw,
    named,
    sgd,
    timm_groups,
    timm_layers,
    decay_first,
]


@pytest.mark.parametrize("make", MAKERS, ids=[m.__name__ for m in MAKERS])
def test_training_goes_on_in_transformers(tmp_path: Path, capsys, make: Callable[..., Any]) -> None:
    first = Run(tmp_path, make)
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    assert "of the optimizer were matched by" in capsys.readouterr().out
    module = vitconv.load(tmp_path / "hf", "transformers")
    kind = torch.optim.SGD if make is sgd else torch.optim.AdamW
    optimizer = _alike(first, module, kind)
    assert vitconv.load_optimizer(tmp_path / "hf" / "optimizer.pt", module, optimizer) == []
    assert train(module, optimizer, data(6)[3:]) == pytest.approx(first.losses, rel=1e-10)


def _alike(first: Run, module: nn.Module, kind: Any) -> torch.optim.Optimizer:
    """Make groups by the settings that each parameter had, in another order than the first optimizer."""
    groups = torch.load(first.path.parent / "hf" / "optimizer.pt", weights_only=True)["param_groups"]
    if len(groups) == 1:
        return kind(list(module.parameters())[::-1], lr=7.0, **({"amsgrad": True} if groups[0].get("amsgrad") else {}))
    again = _regrouped(groups, module)
    return kind([{"params": ps[::-1], "lr": 7.0} for ps in again[::-1]], lr=7.0)


def _regrouped(groups: Any, module: nn.Module) -> list[list[nn.Parameter]]:
    old = {_old(n): p for n, p in module.named_parameters()}
    return [[old[n] for n in g["params"]] for g in groups]


def _old(name: str) -> str:
    """Return transformers 4's name of a parameter of transformers 5."""
    for new, old in (
        ("vit.layers.", "vit.encoder.layer."),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ):
        name = name.replace(new, old)
    return name


def test_the_test_would_see_moments_in_the_wrong_place(tmp_path: Path) -> None:
    """Planted: the moments of two parameters of one shape are exchanged."""
    first = Run(tmp_path, adamw)
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    path = tmp_path / "hf" / "optimizer.pt"
    held = torch.load(path, weights_only=True)
    a, b = (f"vit.encoder.layer.{i}.attention.attention.key.weight" for i in (0, 1))
    held["state"][a], held["state"][b] = held["state"][b], held["state"][a]
    torch.save(held, path)
    module = vitconv.load(tmp_path / "hf", "transformers")
    optimizer = torch.optim.AdamW(module.parameters())
    vitconv.load_optimizer(path, module, optimizer)
    assert train(module, optimizer, data(6)[3:]) != pytest.approx(first.losses, rel=1e-6)


def test_torch_s_own_tool_loads_it(tmp_path: Path) -> None:
    first = Run(tmp_path, timm_groups)
    out = tmp_path / "out.safetensors"
    assert call(first.path, out, "--to", "timm", "--optimizer", *SETS) == 0
    module = copy.deepcopy(first.module)
    optimizer = timm_groups(module)
    state = torch.load(tmp_path / "out.optimizer.pt", weights_only=True)
    set_optimizer_state_dict(module, optimizer, state)
    assert train(module, optimizer, data(6)[3:]) == first.losses


def test_there_and_back_is_bit_equal(tmp_path: Path) -> None:
    first = Run(tmp_path, timm_layers)
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    names = ("--optimizer-from", tmp_path / "hf" / "optimizer.pt")
    assert call(tmp_path / "hf", tmp_path / "back.safetensors", "--to", "timm", *names) == 0
    back = torch.load(tmp_path / "back.optimizer.pt", weights_only=True)
    own = first.optimizer.state_dict()
    parameters = {id(p): n for n, p in first.module.named_parameters()}
    order = [parameters[id(p)] for g in first.optimizer.param_groups for p in g["params"]]
    for number, name in enumerate(order):
        for kind, value in own["state"][number].items():
            assert torch.equal(back["state"][name][kind], value), (name, kind)
    for mine, theirs in zip(back["param_groups"], own["param_groups"], strict=True):
        assert {k: v for k, v in mine.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}
        assert sorted(mine["params"]) == sorted(order[n] for n in theirs["params"])


def test_a_distributed_checkpoint_holds_both(tmp_path: Path) -> None:
    first = Run(tmp_path, adamw)
    folder = tmp_path / "d"
    assert call(first.path, folder, "--to", "hf-vit", "--format", "dcp", "--optimizer", *SETS) == 0
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    want = torch.load(tmp_path / "hf" / "optimizer.pt", weights_only=True)["state"]
    have = {n: {k: torch.full_like(v, -1) for k, v in held.items()} for n, held in want.items()}
    dcp.load({"optim": {"state": have}}, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(have[n][k], v) for n, held in want.items() for k, v in held.items())
    # And from there once more, by name.
    assert call(folder, tmp_path / "t.safetensors", "--to", "timm", "--optimizer", *SETS) == 0
    again = torch.load(tmp_path / "t.optimizer.pt", weights_only=True)
    for number, name in enumerate(dict(first.module.named_parameters())):
        for kind, value in first.optimizer.state_dict()["state"][number].items():
            assert torch.equal(again["state"][name][kind], value)


def test_what_is_dropped_takes_its_moments_along(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    out = tmp_path / "o.safetensors"
    assert call(first.path, out, "--to", "hf-vit", "--optimizer", "--drop", "head*", *SETS) in (0, 2)
    text = capsys.readouterr()
    if out.exists():
        assert "left out: head" in text.out
        assert not any("classifier" in n for n in torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"])


def test_a_checkpoint_oflightning(tmp_path: Path) -> None:
    first = Run(tmp_path, timm_groups)
    torch.save(lightning(torch.load(first.path, weights_only=True)), first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 0
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"]
    state = first.optimizer.state
    assert all(torch.equal(got[n]["exp_avg"], state[p]["exp_avg"]) for n, p in first.module.named_parameters())


def test_the_counts_of_a_metric_beside_the_network_are_no_parameters(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, timm_groups)
    held = lightning(torch.load(first.path, weights_only=True))
    held["state_dict"]["train_accuracy.total"] = torch.tensor(3.0)
    torch.save(held, first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 0
    assert "taken for no parameters" in capsys.readouterr().out
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"]
    state = first.optimizer.state
    assert all(torch.equal(got[n]["exp_avg"], state[p]["exp_avg"]) for n, p in first.module.named_parameters())


def test_a_folder_of_accelerate(tmp_path: Path) -> None:
    """save_state: model.safetensors, and optimizer.bin with numbers, which the weights' names do not order."""
    from safetensors.torch import save_file

    first = Run(tmp_path, named)
    folder = tmp_path / "accelerate"
    folder.mkdir()
    save_file(first.module.state_dict(), folder / "model.safetensors")
    torch.save(first.optimizer.state_dict(), folder / "optimizer.bin")
    for name in ("scheduler.bin", "random_states_0.pkl"):
        torch.save({"step": 3}, folder / name)
    assert call(folder, tmp_path / "o.safetensors", "--to", "hf-vit", "--optimizer") == 0
    assert len(torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"]) == 40


@pytest.mark.parametrize("make", [head_only, without_positions], ids=lambda m: m.__name__)
def test_frozen_parameters_have_no_moments(tmp_path: Path, capsys, make: Callable[..., Any]) -> None:
    first = Run(tmp_path, make)
    out = tmp_path / "o.safetensors"
    assert call(first.path, out, "--to", "timm", "--optimizer") == 0
    assert "frozen" in capsys.readouterr().out
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)
    names = {id(p): n for n, p in first.module.named_parameters()}
    want = {names[id(p)]: s for p, s in first.optimizer.state.items()}
    assert got["state"].keys() == want.keys() == set(got["param_groups"][0]["params"])
    assert all(torch.equal(got["state"][n][k], v) for n, held in want.items() for k, v in held.items())


def test_a_tied_parameter_is_one(tmp_path: Path) -> None:
    module = timm_vit().double()
    module.blocks[1].norm1 = module.blocks[0].norm1
    optimizer = adamw(module)
    train(module, optimizer, data(2))
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "t.pth")
    assert call(tmp_path / "t.pth", tmp_path / "o.safetensors", "--to", "hf-vit", "--optimizer") == 0
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"]
    names = [f"vit.encoder.layer.{i}.layernorm_before.weight" for i in (0, 1)]
    want = optimizer.state[module.blocks[0].norm1.weight]["exp_avg"]
    assert all(torch.equal(got[name]["exp_avg"], want) for name in names)
