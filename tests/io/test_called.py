from __future__ import annotations

import argparse
import collections
import datetime
import enum
import functools
import pathlib
import pickle
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import BadFile
from vitconv.io.source import open_checkpoint


class Colour(enum.Enum):
    RED = 1


class Reduced:
    """An object whose pickle wants to call something."""

    def __init__(self, called: Any, *args: Any) -> None:
        self.pair = (called, args)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.pair


def notes_of(path: Path, value: object, *, zipped: bool = True) -> tuple[str, ...]:
    torch.save({"w": torch.ones(2, 2), "x": value}, path, _use_new_zipfile_serialization=zipped)
    with open_checkpoint(path) as ckpt:
        assert [t.key for t in ckpt.tensors] == ["w"]
        return tuple(note for note in ckpt.notes if "call" in note or "objects of" in note)


def crafted(path: Path, name: str, *, opcode: str = "R") -> Path:
    """Write a torch file that wants to call `module name` in place of a text; the module need not exist."""
    module, _, attribute = name.rpartition(":")
    torch.save({"w": torch.ones(2, 2), "x": "PLACEHOLDER"}, path)
    reference = f"{module}\n{attribute}\n".encode()
    args = pickle.dumps(("a",), 2)[2:-1]
    text = b"X\x01\x00\x00\x00a"
    call = {"R": b"c" + reference + args + b"R", "i": b"(" + text + b"i" + reference}
    call["o"] = b"(c" + reference + text + b"o"
    with zipfile.ZipFile(path) as source:
        members = {info.filename: source.read(info) for info in source.infolist()}
    with zipfile.ZipFile(path, "w") as target:
        for member, data in members.items():
            target.writestr(member, data.replace(b"X\x0b\x00\x00\x00PLACEHOLDER", call[opcode]))
    return path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_function_that_is_called_is_named_and_not_run(zipped: bool, tmp_path: Path, capsys) -> None:
    [note] = notes_of(tmp_path / "s.pth", Reduced(print, "was run"), zipped=zipped)
    assert note.startswith("warning: the pickle wants to call functions that make no data: '__builtin__.print'")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("opcode", ["R", "i", "o"])
@pytest.mark.parametrize("name", ["mypkg:run", "mypkg.deep:Thing.method", "builtins:print", "torch.fx.graph_module:f"])
def test_functions_of_any_module_by_any_opcode(name: str, opcode: str, tmp_path: Path) -> None:
    with open_checkpoint(crafted(tmp_path / "s.pth", name, opcode=opcode)) as ckpt:
        assert any("wants to call" in note and name.replace(":", ".") in note for note in ckpt.notes)


def test_a_function_within_a_partial_is_named(tmp_path: Path) -> None:
    [note] = notes_of(tmp_path / "s.pth", Reduced(functools.partial(print, "x"), "y"))
    assert "'__builtin__.print'" in note


@pytest.mark.parametrize(
    "name",
    [
        "pathlib:Path.mkdir", "pathlib:PosixPath.unlink", "pathlib._local:Path.touch", "tempfile:mkdtemp",
        "cloudpickle:loads", "types:FunctionType", "logging.config:listen", "atexit:register", "builtins:setattr",
        "threading:Thread", "torch:save", "torch.package:PackageImporter", "numpy:memmap", "codecs:open",
        "zipfile:ZipFile", "operator:methodcaller", "sqlite3:connect",
    ],
)  # fmt: skip
def test_what_does_harm_is_refused(name: str, tmp_path: Path) -> None:
    path = crafted(tmp_path / "s.pth", name)
    with pytest.raises(BadFile, match=name.replace(":", ".").replace(".", r"\.")):
        open_checkpoint(path)


@pytest.mark.parametrize(("called", "args"), [(pathlib.Path.mkdir, (Path("made"),)), (tempfile.mkdtemp, ())])
def test_what_a_real_pickle_would_do_is_not_done(called: Any, args: tuple[Any, ...], tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, 2), "x": Reduced(called, *args)}, tmp_path / "s.pth")
    with pytest.raises(BadFile, match="Nothing of it was run"):
        open_checkpoint(tmp_path / "s.pth")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.pth"]
    assert not Path("made").exists()


@pytest.mark.parametrize(
    "value",
    [
        argparse.Namespace(lr=1.0),
        pathlib.PurePosixPath("a/b"),
        Path("a/b"),
        np.float64(3.0),
        np.arange(3),
        np.random.RandomState(0),
        collections.Counter("ab"),
        collections.defaultdict(list),
        collections.OrderedDict(a=1),
        datetime.datetime(2020, 1, 1),
        types.SimpleNamespace(a=1),
        functools.partial(int, base=2),
        torch.Size([1]),
        torch.float16,
        torch.device("cpu"),
        torch.nn.Linear(2, 2, bias=False).state_dict,
        {1, 2},
        slice(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_are_quiet(value: object, tmp_path: Path) -> None:
    if callable(value) and not isinstance(value, functools.partial):
        value = value()
    torch.save({"w": torch.ones(2, 2), "x": value}, tmp_path / "s.pth")
    with open_checkpoint(tmp_path / "s.pth") as ckpt:
        assert not [note for note in ckpt.notes if "call" in note or "objects of" in note]


def test_a_class_of_others_is_a_short_note(tmp_path: Path) -> None:
    [note] = notes_of(tmp_path / "s.pth", Colour.RED)
    assert note == f"objects of other code were passed over: '{__name__}.Colour'"
