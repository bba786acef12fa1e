from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import BadFile
from vitconv.io.records import External, Global, Mapping, Record
from vitconv.io.source import open_checkpoint
from vitconv.io.unpickle import Truncated, unpickle


def same(ours: object, theirs: object) -> bool:
    """Compare what we make of a pickle with what Python makes of it, for plain values."""
    if isinstance(theirs, dict):
        return isinstance(ours, Mapping) and all(
            same(a, b) and same(c, d) for (a, c), (b, d) in zip(ours.pairs, theirs.items(), strict=True)
        )
    if isinstance(theirs, set | frozenset):
        assert isinstance(ours, Record)
        items = ours.items or (ours.args if isinstance(ours.args[:1], tuple) else ())
        if len(items) == 1 and isinstance(items[0], list | tuple):
            items = items[0]
        return set(items) == set(theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return type(ours) is type(theirs) and ours == theirs


VALUE = {
    "ints": [0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**63, -(2**80)],
    "floats": (0.0, -0.0, 1e300, float("inf")),
    "texts": ["", "a", "é\n'\"\\", "x" * 300, "\u2028"],
    "bytes": [b"", b"\x00\xff", b"y" * 300],
    "plain": (None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "deep": {"a": {"b": [{"c": ()}]}, 3: "int key", None: 1},
    "sets": [{1, 2, 3}, frozenset((4, 5))],
}
VALUE["shared"] = [VALUE["texts"], VALUE["texts"]]


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_are_what_python_reads(protocol) -> None:
    value = VALUE if protocol >= 3 else {key: part for key, part in VALUE.items() if key not in ("bytes", "sets")}
    data = pickle.dumps(value, protocol)
    done = unpickle(data + b"rest", "test")
    assert done.end == len(data)
    assert same(done.root, value)
    shared = done.root.get("shared")
    assert shared[0] is shared[1]


def test_objects_become_records() -> None:
    value = collections.OrderedDict([("a", 1)])
    root = unpickle(pickle.dumps(value, 2), "test").root
    assert isinstance(root, Record)
    assert root.kind == "collections.OrderedDict"
    done = unpickle(b"\x80\x02(U\x07storagectorch\nFloatStorage\ntQ.", "test")
    assert isinstance(done.root, External)
    assert done.root.pid == ("storage", Global("torch", "FloatStorage"))
    assert done.externals == (done.root,)


def test_every_opcode_of_python_is_known_or_refused_on_purpose() -> None:
    refused = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
    for opcode in pickletools.opcodes:
        code = ord(opcode.code)
        try:
            unpickle(bytes([code]) + b"\x01\x00\x00\x00\x00\x00\x00\x00\n\n", "test")
            text = ""
        except BadFile as error:
            text = str(error)
        assert (f"opcode {code:#04x} is not allowed" in text) == (opcode.name in refused), opcode.name


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x04" + b"(" * 400_000 + b".", id="a stack of marks"),
        pytest.param(b"\x80\x04\x8b\xff\xff\xff\x7f" + b"\x01" * 5000 + b".", id="a long number"),
        pytest.param(b"L" + b"9" * 100_000 + b"L\n.", id="a long decimal number"),
        pytest.param(b"\x80\x04\x8d" + b"\xff" * 8 + b"a.", id="a text of 2^64 bytes"),
        pytest.param(b"\x80\x09N.", id="protocol 9"),
        pytest.param(b"0.", id="pop from nothing"),
        pytest.param(b"(.", id="stop at a mark"),
        pytest.param(b"t.", id="tuple without a mark"),
        pytest.param(b"h\x05.", id="never stored"),
        pytest.param(b"}K\x01s.", id="a key without a value"),
        pytest.param(b"K\x01K\x02a.", id="append to a number"),
        pytest.param(b"K\x01}b.", id="state for a number"),
        pytest.param(b"K\x01K\x02\x93.", id="a global named by numbers"),
        pytest.param(b"cos\nsystem\nK\x01R.", id="arguments that are no tuple"),
        pytest.param(b"Fabc\n.", id="no float"),
        pytest.param(b"Iabc\n.", id="no int"),
        pytest.param(b"Sabc\n.", id="no quotes"),
        pytest.param(b"X\x02\x00\x00\x00\xff\xfe.", id="no text"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_malformed_pickles_are_refused(data) -> None:
    with pytest.raises(BadFile):
        unpickle(data, "test")


def test_a_pickle_cut_short_says_so() -> None:
    data = pickle.dumps(VALUE, 4)
    for stop in range(0, len(data) - 1, 7):
        with pytest.raises(Truncated, match="cut short"):
            unpickle(data[:stop], "test")


class Payload:
    """Pickles as a call, as an attacker's object does."""

    def __init__(self, call: Any, *args: object) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call, self.args


def in_args(call: object) -> object:
    return {"model": {"w": torch.ones(2)}, "args": {"deep": [[("x", call)]]}}


def in_rebuild(call: object) -> object:
    return {"model": {"w": torch.ones(2), "evil": Payload(torch._utils._rebuild_parameter, call, False, {})}}


def in_state(call: object) -> object:
    holder = collections.OrderedDict(w=torch.ones(2))
    holder.extra = call  # type: ignore[attr-defined]
    return holder


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", [in_args, in_rebuild, in_state])
@pytest.mark.parametrize(
    ("call", "args", "name"),
    [
        pytest.param(os.system, ("touch ran",), "system", id="os.system"),
        pytest.param(os.mkdir, ("ran",), "mkdir", id="os.mkdir"),
        pytest.param(exec, ("open('ran', 'w')",), "exec", id="exec"),
        pytest.param(eval, ("open('ran', 'w')",), "eval", id="eval"),
        pytest.param(open, ("ran", "w"), "open", id="open"),
        pytest.param(subprocess.Popen, (["touch", "ran"],), "Popen", id="subprocess"),
        pytest.param(__import__, ("antigravity",), "__import__", id="import"),
        pytest.param(pickle.loads, (b"cposix\nmkdir\n(U\x03rantR.",), "loads", id="a pickle in a pickle"),
    ],
)
def test_payload_is_refused_by_name_and_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped, place, call, args, name
) -> None:
    path = tmp_path / "evil.pth"
    torch.save(place(Payload(call, *args)), path, _use_new_zipfile_serialization=zipped)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadFile) as caught:
        open_checkpoint(path)
    assert name in str(caught.value).replace("_io.open", "open")
    assert "Nothing of it was run" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_the_payloads_do_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker is worth something: Python's own unpickler leaves it."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload(os.mkdir, "ran")))
    assert (tmp_path / "ran").exists()


def test_an_unknown_callable_is_listed_not_run_and_not_imported(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "strange_module.py").write_text("open('ran', 'w')\ndef call(): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.ones(2)}, "x": [1.5]}, buffer)
    source = zipfile.ZipFile(buffer)
    with zipfile.ZipFile(tmp_path / "file.pth", "w") as target:
        for info in source.infolist():
            data = source.read(info)
            if info.filename.endswith("data.pkl"):
                # The list becomes the result of a call with a list as its argument.
                assert data.count(b"]") == 1
                data = data.replace(b"]", b"cstrange_module\ncall\n)R]")
                data = data[: data.index(b"X", data.index(b"call\n)R"))] if False else data
                data = data.replace(b")R]", b")R0]")
            target.writestr(info.filename, data)
    with open_checkpoint(tmp_path / "file.pth") as ckpt:
        assert "strange_module.call" in ckpt.foreign
        assert np.frombuffer(ckpt.read(ckpt.tensors[0]), np.float32).tolist() == [1.0, 1.0]
    assert "strange_module" not in sys.modules
    assert not (tmp_path / "ran").exists()


def laughs(levels: int, width: int) -> bytes:
    """Return a pickle of lists that refer to each other: width ** levels paths in a few hundred bytes."""
    body = b"\x80\x02]q\x00"
    for level in range(levels):
        body += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * (width - 1) + b"e" + b"q" + bytes([level + 1])
    return body + b"."


@pytest.mark.parametrize("levels", [8, 30, 100])
def test_repeated_parts_cannot_make_a_small_file_endless(survives, levels) -> None:
    data = laughs(levels, 10)
    unpickle(data, "test")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", data)
    assert not survives(buffer.getvalue())


def test_a_list_in_itself_ends(survives) -> None:
    value: list[object] = [torch.ones(2)]
    value.append(value)
    buffer = io.BytesIO()
    torch.save({"model": value}, buffer)
    assert survives(buffer.getvalue())


def test_one_array_met_many_times_is_held_once(tmp_path: Path) -> None:
    array = np.ones(100_000, np.float32)
    torch.save({"all": [array] * 2000}, tmp_path / "file.pth")
    with open_checkpoint(tmp_path / "file.pth") as ckpt:
        assert len(ckpt.tensors) == 2000
        assert len({stored.blob for stored in ckpt.tensors}) == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"]" * 60_000, id="a stack of lists"),
        pytest.param(b"N" + b"\x94" * 60_000, id="memoised again and again"),
        pytest.param(b"N" + b"\x85" * 60_000, id="tuples in tuples"),
        pytest.param(b"]" + b"]2" * 30_000 + b"a" * 30_000, id="lists in lists"),
    ],
)
def test_objects_without_end_stay_within_a_multiple_of_the_file(survives, data) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x04" + data + b".")
    survives(buffer.getvalue())


@pytest.mark.parametrize("code", [b"]", b"(", b"}", b"\x94", b"\x85", b"G" + bytes(8), b"X\x01\x00\x00\x00a", b"\x8f"])
def test_objects_are_counted(monkeypatch, code) -> None:
    monkeypatch.setattr("vitconv.io.machine._MAX_OBJECTS", 100)
    unpickle(b"(N" + code * 90 + b"tN.", "test") if code != b"(" else unpickle(
        b"N" + code * 90 + b"1" * 90 + b".", "test"
    )
    with pytest.raises(BadFile, match="far more objects"):
        unpickle(b"N" + code * 102 + b".", "test")


def test_deep_nesting_is_refused_or_read_without_recursion_trouble(survives) -> None:
    for depth in (50, 500, 20_000):
        data = b"\x80\x02" + b"}X\x01\x00\x00\x00a" * depth + b"K\x01" + b"s" * depth + b"."
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a/data.pkl", data)
        survives(buffer.getvalue())
