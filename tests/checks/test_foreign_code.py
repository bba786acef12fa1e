"""Networks, factories and init functions that are the user's own, and do what vitconv never would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitconv.cli.main import run

FACTORIES = """
import sys

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.embed, self.head = how, nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)

    def forward(self, x):
        y = self.head(self.embed(x).flatten(2).mean(-1))
        if self.how == "raises":
            raise RuntimeError("what the user wrote")
        if self.how == "key":
            return {}["missing"]
        if self.how == "exits":
            sys.exit(7)
        if self.how == "stops":
            raise StopIteration
        if self.how == "shapes":
            return self.head(x.flatten(1))
        if self.how == "recurses":
            return self.forward(x)
        if self.how == "mutates":
            x.zero_()
        if self.how == "prints":
            print("what the user prints")
        return {"scalar": y.sum(), "none": None, "empty": y[:0], "complex": torch.complex(y, y)}.get(self.how, y)


def __getattr__(how):
    return lambda: Network(how)


def factory_raises():
    raise ValueError("the factory fails")


def init_prints(network):
    print("what the user prints")


def factory_exits():
    sys.exit(5)


def lazy():
    return nn.Sequential(nn.LazyConv2d(8, 4), nn.Flatten())


class Bare(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def bare():
    return Bare()


def scripted():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3))


class Packed(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "dtype"] = torch.qint8


def quantised():
    return Packed(48, 10)


def twice():
    import timm

    made = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=10, embed_dim=48, num_heads=3)
    made.blocks[1] = made.blocks[0]
    return made
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return path


def answer(capsys: Any, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "RuntimeError: what the user wrote"),
        ("key", "KeyError: 'missing'"),
        ("exits", "SystemExit: 7"),
        ("stops", "StopIteration"),
        ("shapes", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("recurses", "RecursionError"),
        ("mutates", "modified by an inplace operation"),
        ("scalar", "a float32 tensor of shape []"),
        ("empty", "a float32 tensor of shape [0, 10]"),
        ("complex", "a complex64 tensor of shape"),
        ("none", "gives NoneType"),
    ],
)
def test_a_network_that_fails_is_undecided(how: str, says: str, factories: Path, capsys: Any) -> None:
    code, found = answer(capsys, f"python:{factories}:{how}", "--only", "loss-at-init", "--set", "image_size=16")
    assert code == 3
    assert says in json.dumps(found["checks"])
    if how in ("raises", "key"):
        assert f"{factories}, line " in json.dumps(found["checks"])


def test_a_network_without_parameters_is_told_so(factories: Path, capsys: Any) -> None:
    code, found = answer(capsys, f"python:{factories}:bare", "--only", "signals", "--set", "image_size=16")
    assert code == 1
    assert "the network has no parameters" in json.dumps(found["checks"])


def test_what_a_network_prints_is_beside_the_result(factories: Path, capsys: Any) -> None:
    target = f"python:{factories}:prints"
    for words in ((target,), ("vit_tiny", "--set", "depth=2", "--init-fn", f"python:{factories}:init_prints")):
        run(["check", *words, "--only", "loss-at-init", "--set", "image_size=16", "--json"])
        told = capsys.readouterr()
        assert "what the user prints" in told.err, words
        json.loads(told.out)


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("factory_raises", 2, "ValueError: the factory fails"),
        ("factory_exits", 2, "SystemExit: 5"),
        ("lazy", 3, "lazy modules"),
        ("scripted", 3, "a TorchScript module cannot be looked into"),
        ("quantised", 3, "entries that are no tensors"),
    ],
)
def test_a_factory_that_gives_nothing_to_look_at(how: str, code: int, says: str, factories: Path, capsys: Any) -> None:
    got, found = answer(capsys, f"python:{factories}:{how}", "--only", "signals")
    assert got == code
    assert says in found["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("def f(:\n", "SyntaxError"), ("raise RuntimeError('at import')\n", "at import"), ("exit(9)\n", "SystemExit: 9")],
    ids=["syntax", "raises", "exits"],
)
@pytest.mark.parametrize("as_function", [False, True], ids=["network", "init-fn"])
def test_a_file_that_cannot_be_imported(text: str, says: str, as_function: bool, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    words = ("vit_tiny", "--set=depth=1", "--init-fn", f"python:{path}:f") if as_function else (f"python:{path}:f",)
    code, found = answer(capsys, *words)
    assert code == 2
    assert "cannot be imported" in found["verdict"]["sentence"]
    assert says in found["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("target", "sets"),
    [
        ("timm:vit_tiny_patch16_224", ("embed_dim=7",)),
        ("timm:vit_tiny_patch16_224", ("depth=0",)),
        ("transformers:vit", ("hidden_size=abc",)),
        ("transformers:vit", ("hidden_size=7",)),
        ("torchvision:VisionTransformer", ("image_size=30", "patch_size=16", "num_layers=1", "num_heads=1",
                                           "hidden_dim=8", "mlp_dim=8")),
    ],
)  # fmt: skip
def test_sizes_that_a_library_cannot_build(target: str, sets: tuple[str, ...], capsys: Any) -> None:
    pytest.importorskip(target.partition(":")[0])
    code, found = answer(capsys, target, "--only", "signals", *(f"--set={text}" for text in sets))
    assert code in (2, 3)
    assert found["schema"] == "vitconv.error"


def test_a_block_that_stands_twice_is_checked(factories: Path, capsys: Any) -> None:
    pytest.importorskip("timm")
    code, found = answer(capsys, f"python:{factories}:twice")
    assert code in (0, 1, 3)
    assert found["schema"] == "vitconv.check"


def test_a_module_in_the_folder_one_is_in_is_found(factories: Path) -> None:
    # The command vitconv, unlike `python -m`, does not have that folder on its path.
    words = ["check", "python:factories:fine", "--only", "loss-at-init", "--set", "image_size=16"]
    code = (
        f"import sys; sys.path = [p for p in sys.path if p]; from vitconv.cli.main import run; sys.exit(run({words}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=factories.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
