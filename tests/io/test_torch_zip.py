from __future__ import annotations

import argparse
import collections
import io
import pathlib
import zipfile
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import BadFile
from vitconv.io.source import open_checkpoint


class Sub(torch.Tensor):
    """A subclass without data of its own."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, 3))
        self.blocks = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
        self.head = torch.nn.Linear(3, 2, bias=False)
        self.tied = self.blocks[0]
        self.register_buffer("ids", torch.arange(4))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)) + self.cls_token.sum() + self.ids.sum() + self.tied(x).sum()


def save(tmp_path: Any, value: object, **options: Any) -> Any:
    path = tmp_path / "file.pth"
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("container", [(), ("model",), ("a", "b")], ids=["bare", "one deep", "two deep"])
def test_state_dicts_keep_every_bit(tmp_path, state, assert_holds, zipped, container) -> None:
    value: Any = collections.OrderedDict(state)
    for name in reversed(container):
        value = {name: value, "epoch": 3}
    with open_checkpoint(save(tmp_path, value, _use_new_zipfile_serialization=zipped)) as ckpt:
        assert ckpt.format == ("torch-zip" if zipped else "torch-legacy")
        assert_holds(ckpt, state, container)
        assert ckpt.foreign == ()
        assert (((*container, "base"), (*container, "tied"))) in ckpt.ties
        assert not any((*container, "cut.0") in tie for tie in ckpt.ties)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickle_protocols(tmp_path, state, assert_holds, protocol, zipped) -> None:
    path = save(tmp_path, state, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    with open_checkpoint(path) as ckpt:
        assert_holds(ckpt, state)


def test_versions_of_modules_are_no_settings(tmp_path, assert_holds) -> None:
    net = torch.nn.BatchNorm1d(2)
    with open_checkpoint(save(tmp_path, {"model": net.state_dict(), "n": 1})) as ckpt:
        assert_holds(ckpt, net.state_dict(), ("model",))
        assert ckpt.scalars == {("n",): 1}


def test_harmless_strangers_are_listed_and_tensors_come_out(tmp_path, assert_holds) -> None:
    weights = {"w": torch.randn(2, 3), "sub": torch.randn(3).as_subclass(Sub)}
    tagged = torch.nn.Parameter(torch.randn(2))
    tagged.tag = "kept by torch, of no use here"
    weights["tagged"] = tagged
    value = {
        "model": weights,
        "args": argparse.Namespace(lr=0.5, name="vit", out=pathlib.PosixPath("/data/x"), sizes=[1, 2]),
        "best": np.float32(0.25),
        "counts": collections.defaultdict(int, {"seen": 7}),
        "history": list(range(1000)),
        "device": torch.device("cpu"),
        "none": None,
    }
    with open_checkpoint(save(tmp_path, value)) as ckpt:
        assert_holds(ckpt, {k: v.as_subclass(torch.Tensor) for k, v in weights.items()}, ("model",))
        assert ckpt.scalars[("args", "lr")] == 0.5
        assert ckpt.scalars[("args", "name")] == "vit"
        assert ckpt.scalars[("args", "out")] == "/data/x"
        assert ckpt.scalars[("args", "sizes")] == [1, 2]
        assert ckpt.scalars[("best",)] == 0.25
        assert ckpt.scalars[("counts", "seen")] == 7
        assert ckpt.scalars[("none",)] is None
        assert ("history",) not in ckpt.scalars
        for name in ("argparse.Namespace", "collections.defaultdict", "pathlib.PosixPath"):
            assert name in ckpt.foreign
        assert any(name.endswith("multiarray.scalar") for name in ckpt.foreign)
        assert any(name.endswith(".Sub") for name in ckpt.foreign)
        assert not any(name.startswith(("torch._utils", "collections.OrderedDict")) for name in ckpt.foreign)


@pytest.mark.parametrize("protocol", [2, 5])
def test_numpy_arrays_become_tensors(tmp_path, protocol) -> None:
    arrays = {"c": np.arange(6, dtype=np.float32).reshape(2, 3), "f": np.asfortranarray(np.arange(6.0).reshape(2, 3))}
    arrays["again"] = arrays["c"]
    with open_checkpoint(save(tmp_path, {"model": arrays}, pickle_protocol=protocol)) as ckpt:
        assert {stored.key for stored in ckpt.tensors} == set(arrays)
        for stored in ckpt.tensors:
            assert bytes(ckpt.read(stored)) == arrays[stored.key].tobytes("C")
            assert stored.shape == (2, 3)


@pytest.mark.parametrize("container", [(), ("model",)], ids=["the file is the module", "the module lies in a dict"])
def test_whole_module_gives_its_state_dict(tmp_path, assert_holds, container) -> None:
    net = Net()
    with open_checkpoint(save(tmp_path, {"model": net, "epoch": 1} if container else net)) as ckpt:
        assert_holds(ckpt, net.state_dict(), container)
        assert ckpt.scalars[(*container, "num_heads")] == 4
        assert ckpt.scalars[(*container, "blocks.0.in_features")] == 2
        assert any("state dict was read off" in note for note in ckpt.notes)
        assert any(name.endswith("Net") for name in ckpt.foreign)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_gives_its_state_dict(tmp_path, assert_holds) -> None:
    net = Net()
    net.scratch = None
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.trace(net, torch.randn(1, 2), check_trace=False), path)
    with open_checkpoint(path) as ckpt:
        assert ckpt.format == "torchscript"
        assert_holds(ckpt, net.state_dict())
        assert ckpt.foreign == ()


class Layout(Enum):
    """What a module may hold as a setting."""

    CHANNELS_FIRST = "NCHW"


class WithSetting(torch.nn.Module):
    """A module of one weight, with an enum member among its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(3))
        self.layout = Layout.CHANNELS_FIRST

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + w."""
        return x + self.w if self.layout == Layout.CHANNELS_FIRST else x


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_module_with_an_enum_gives_its_state_dict(tmp_path, assert_holds) -> None:
    module = WithSetting()
    torch.jit.script(module).save(tmp_path / "scripted.pt")
    with open_checkpoint(tmp_path / "scripted.pt") as ckpt:
        assert ckpt.format == "torchscript"
        assert_holds(ckpt, dict(module.state_dict()))


def rezip(path: Any, method: int, drop: str = "", root: bool = True, change: Any = None) -> None:
    """Write a zip again as a person would: packed, or without one member, or without its top folder."""
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts.items():
            if drop and name.endswith(drop):
                continue
            data = change(name, data) if change else data
            archive.writestr(name if root else name.partition("/")[2], data)


@pytest.mark.parametrize("root", [True, False], ids=["folder", "bare"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_zipped_again(tmp_path, state, assert_holds, method, root) -> None:
    path = save(tmp_path, state)
    rezip(path, method, root=root)
    with open_checkpoint(path) as ckpt:
        assert_holds(ckpt, state)
        packed = [stored for stored in ckpt.tensors if stored.blob.member]
        assert bool(packed) == (method == zipfile.ZIP_DEFLATED)
        assert all(ckpt.segment(stored) is None for stored in packed)


def test_damage_in_a_packed_member_is_noticed(tmp_path) -> None:
    path = save(tmp_path, {"w": torch.randn(1000)})
    rezip(path, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("file/data/0")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 200] ^= 0x10
    path.write_bytes(data)
    with open_checkpoint(path) as ckpt, pytest.raises(BadFile, match=r"'w'.*damaged|'w'.*cannot be inflated"):
        ckpt.read(ckpt.tensors[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(lambda: {"a": {"s": torch.eye(3).to_sparse()}}, ["'a.s'", "sparse", "to_dense"], id="sparse"),
        pytest.param(
            lambda: {"q": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)},
            ["'q'", "quantised", "dequantize"],
            id="quantised",
        ),
        pytest.param(lambda: {"m": torch.ones(2, device="meta")}, ["'m'", "meta"], id="meta"),
        pytest.param(lambda: {"c": torch.ones(2, dtype=torch.complex64).conj()}, ["'c'", "resolve_conj"], id="conj"),
        pytest.param(lambda: {"z": torch.ones(2, dtype=torch.complex128)}, ["'z'", "ComplexDouble"], id="complex128"),
        pytest.param(lambda: {"b": np.ones(3, ">f4")}, ["'b'", "big-endian"], id="big-endian array"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_refused_with_what_to_do(tmp_path, value, words) -> None:
    with pytest.raises(BadFile) as caught:
        open_checkpoint(save(tmp_path, value()))
    for word in words:
        assert word in str(caught.value)


def test_unreadable_optimizer_state_does_not_stand_in_the_way(tmp_path) -> None:
    value = {"model": {"w": torch.ones(2)}, "optimizer": {"state": {0: {"m": torch.eye(3).to_sparse()}}}}
    with open_checkpoint(save(tmp_path, value)) as ckpt:
        assert [stored.path for stored in ckpt.tensors] == [("model", "w")]
        assert any("sparse" in note and "optimizer" in note for note in ckpt.notes)


def test_arrays_of_texts_and_objects_are_left_out_aloud(tmp_path) -> None:
    value = {"w": torch.ones(2), "classes": np.array(["cat", "dog"]), "things": np.array([{}], dtype=object)}
    with open_checkpoint(save(tmp_path, value)) as ckpt:
        assert [stored.path for stored in ckpt.tensors] == [("w",)]
        assert [name for name in ("classes", "things") if any(name in note for note in ckpt.notes)] == [
            "classes",
            "things",
        ]


def test_big_endian_file_is_refused(tmp_path) -> None:
    path = save(tmp_path, {"w": torch.ones(2)})
    rezip(path, 0, change=lambda name, data: b"big" if name.endswith("byteorder") else data)
    with pytest.raises(BadFile, match=r"byte order 'big'|byte order b'big'"):
        open_checkpoint(path)


def test_missing_storage_names_the_tensor(tmp_path) -> None:
    path = save(tmp_path, {"w": torch.ones(2), "v": torch.zeros(3)})
    rezip(path, 0, drop="/data/1")
    with pytest.raises(BadFile, match=r"'v'.*missing"):
        open_checkpoint(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_cut_short(tmp_path, share) -> None:
    path = save(tmp_path, {"w": torch.ones(2000)})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadFile, match="cut short"):
        open_checkpoint(path)


def test_expanded_bomb_is_refused(tmp_path) -> None:
    path = save(tmp_path, {"w": torch.ones(1).expand(1 << 30)})
    with pytest.raises(BadFile, match=r"far more room.*'w'"):
        open_checkpoint(path)


def test_view_outside_its_storage_is_refused(tmp_path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(4)}, buffer)
    data = buffer.getvalue().replace(b"K\x00K\x04\x85", b"K\x02K\x04\x85")
    assert data != buffer.getvalue()
    path = tmp_path / "file.pth"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=r"'w': it reaches to byte 24 of a storage of 16"):
        open_checkpoint(path)
