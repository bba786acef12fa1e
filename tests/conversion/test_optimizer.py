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
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

import vitconv
from vitconv.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "grid=4x4", "pooling=token")
SETS = [word for fact in (*FACTS, "mean=0.5", "std=0.5") for word in ("--set", fact)]


def call(*words: object) -> int:
    return run(["convert", *map(str, words)])


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)


def named(module: nn.Module) -> torch.optim.Optimizer:
    """With names, and in an order of its own."""
    return torch.optim.AdamW(list(module.named_parameters())[::-1], lr=1e-2, amsgrad=True)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)


def timm_groups(module: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(module, "adamw", lr=1e-2, weight_decay=0.05)


def timm_layers(module: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(module, "adamw", lr=1e-2, weight_decay=0.05, layer_decay=0.7)


def decay_first(module: nn.Module) -> torch.optim.Optimizer:
    """As transformers' Trainer and DINO sort them: tokens decay, biases and norms come second."""
    ps = list(module.parameters())
    groups = [{"params": [p for p in ps if p.ndim > 1]}, {"params": [p for p in ps if p.ndim <= 1], "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)


def head_only(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.head.parameters(), lr=1e-2)


def without_positions(module: nn.Module) -> torch.optim.Optimizer:
    """As MAE, whose sincos table is no trained parameter."""
    return torch.optim.AdamW([p for n, p in module.named_parameters() if n != "pos_embed"], lr=1e-2)


MAKERS: list[Callable[[nn.Module], torch.optim.Optimizer]] = [
    adamw,
    named,
    sgd,
    timm_groups,
    timm_layers,
    decay_first,
]


def data(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    gen = torch.Generator().manual_seed(5)
    return [
        (torch.randn(4, 3, 16, 16, generator=gen, dtype=torch.float64), torch.randint(0, 5, (4,), generator=gen))
        for _ in range(count)
    ]


def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> list[float]:
    module.train()
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        out = module(x)
        loss = nn.functional.cross_entropy(getattr(out, "logits", out), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Run:
    """A tiny network trained for three steps, its checkpoint, and the losses of the next three."""

    def __init__(self, folder: Path, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        self.module = timm_vit().double()
        self.optimizer = make(self.module)
        train(self.module, self.optimizer, data(3))
        self.path = folder / "train.pth"
        contents = {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 1}
        torch.save(contents, self.path)
        module = copy.deepcopy(self.module)
        optimizer = make(module)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        self.losses = train(module, optimizer, data(6)[3:])


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


def test_l04_moments_of_reordered_parameters_are_refused(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    state = held["optimizer"]["state"]
    state[2], state[3] = state[3], state[2]
    torch.save(held, first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 3
    err = capsys.readouterr().err
    assert "number 2 has moments [32]" in err
    assert not (tmp_path / "o.safetensors").exists()
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm") == 0
    assert "left out" in capsys.readouterr().out


def _ema(held: dict[str, Any]) -> None:
    held["model_ema"] = {k: v + 1 for k, v in held["model"].items()}


def _factored(held: dict[str, Any]) -> None:
    for s in held["optimizer"]["state"].values():
        s["exp_avg_sq_row"] = torch.zeros(3, dtype=torch.float64)


def _two(held: dict[str, Any]) -> None:
    held["optimizer_d"] = copy.deepcopy(held["optimizer"])


def _none(held: dict[str, Any]) -> None:
    del held["optimizer"]


def _stranger(held: dict[str, Any]) -> None:
    group = held["optimizer"]["param_groups"][0]
    group["param_names"] = [f"other.{i}" for i in group["params"]]


def _more(held: dict[str, Any]) -> None:
    held["optimizer"]["param_groups"][0]["params"].append(999)


REFUSED = [
    (_ema, 3, "stepped the raw weights"),
    (_factored, 3, "not one number per element"),
    (_two, 2, "2 optimizers (optimizer, optimizer_d)"),
    (_none, 2, "holds no state of an optimizer"),
    (_stranger, 3, "parameters that the weights do not have"),
    (_more, 3, "no known way of numbering"),
]


@pytest.mark.parametrize(("change", "code", "words"), REFUSED, ids=[c.__name__.strip("_") for c, _, _ in REFUSED])
def test_what_cannot_be_carried(tmp_path: Path, capsys, change: Any, code: int, words: str) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    change(held)
    torch.save(held, first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "hf-vit", "--optimizer") == code
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.pth"]


def test_raw_weights_are_taken_when_asked_for(tmp_path: Path) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    _ema(held)
    torch.save(held, first.path)
    out = tmp_path / "o.safetensors"
    assert call(first.path, out, "--to", "timm", "--optimizer", "--branch", "model") == 0


@pytest.mark.parametrize("option", [("--dtype", "BF16"), ("--edit", "change-classes:to=3")], ids=["cast", "classes"])
def test_edits_that_make_new_parameters(tmp_path: Path, capsys, option: tuple[str, ...]) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer", *option) in (2, 3)
    assert not (tmp_path / "o.safetensors").exists()
    capsys.readouterr()


def test_parameters_of_different_groups_cannot_become_one(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    path = tmp_path / "hf" / "optimizer.pt"
    held = torch.load(path, weights_only=True)
    group = held["param_groups"][0]
    key = next(n for n in group["params"] if "key.weight" in n)
    group["params"].remove(key)
    held["param_groups"].append({**group, "params": [key], "weight_decay": 0.5})
    torch.save(held, path)
    args = (tmp_path / "hf", tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "different groups (weight_decay 0.1 and 0.5)" in capsys.readouterr().err
    held["param_groups"].pop()
    group["params"].append(key)
    held["state"][key]["step"] += 1
    torch.save(held, path)
    assert call(*args) == 3
    assert "different step" in capsys.readouterr().err


def test_a_sorted_file_does_not_number_parameters(tmp_path: Path, capsys) -> None:
    """transformers' Trainer: model.safetensors and optimizer.pt with numbers."""
    first = Run(tmp_path, adamw)
    folder = tmp_path / "trainer"
    folder.mkdir()
    from safetensors.torch import save_file

    save_file(first.module.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(first.optimizer.state_dict(), folder / "optimizer.pt")
    args = (folder, tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "--optimizer-names" in capsys.readouterr().err
    (tmp_path / "names.txt").write_text("\n".join(n for n, _ in first.module.named_parameters()))
    assert call(*args, "--optimizer-names", tmp_path / "names.txt") == 0
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)
    for number, name in enumerate(dict(first.module.named_parameters())):
        assert torch.equal(got["state"][name]["exp_avg"], first.optimizer.state_dict()["state"][number]["exp_avg"])


def test_what_is_dropped_takes_its_moments_along(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    out = tmp_path / "o.safetensors"
    assert call(first.path, out, "--to", "hf-vit", "--optimizer", "--drop", "head*", *SETS) in (0, 2)
    text = capsys.readouterr()
    if out.exists():
        assert "left out: head" in text.out
        assert not any("classifier" in n for n in torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"])


def test_an_optimizer_that_is_there_is_not_replaced(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    (tmp_path / "o.optimizer.pt").write_bytes(b"mine")
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 3
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()


def _lightning(held: dict[str, Any]) -> dict[str, Any]:
    state = {f"model.{k}": v for k, v in held["model"].items()}
    more = {"epoch": 1, "global_step": 3, "pytorch-lightning_version": "2.5", "callbacks": {}, "loops": {}}
    return {**more, "state_dict": state, "optimizer_states": [held["optimizer"]], "lr_schedulers": []}


def test_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    first = Run(tmp_path, timm_groups)
    torch.save(_lightning(torch.load(first.path, weights_only=True)), first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 0
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)["state"]
    state = first.optimizer.state
    assert all(torch.equal(got[n]["exp_avg"], state[p]["exp_avg"]) for n, p in first.module.named_parameters())


def test_averaged_weights_of_lightning_have_no_moments(tmp_path: Path, capsys) -> None:
    """WeightAveraging: state_dict is the average, current_model_state what was stepped."""
    first = Run(tmp_path, adamw)
    held = _lightning(torch.load(first.path, weights_only=True))
    held["current_model_state"] = {k: v + 1 for k, v in held["state_dict"].items()}
    torch.save(held, first.path)
    args = (first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "current_model_state" in capsys.readouterr().err
    assert call(*args, "--branch", "current_model_state") == 0


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


def test_a_dry_run_plans_the_moments_too(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, "--to", "hf-vit", "--optimizer", "--dry-run") == 0
    assert "matched by their order" in capsys.readouterr().out
    held = torch.load(first.path, weights_only=True)
    _factored(held)
    torch.save(held, first.path)
    assert call(first.path, "--to", "hf-vit", "--optimizer", "--dry-run") == 3
    assert "not one number per element" in capsys.readouterr().err
