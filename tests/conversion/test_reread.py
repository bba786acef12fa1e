"""--prove: what was written is read again, and any byte, name, dtype or shape that is not as planned is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitconv.conversion.convert import convert
from vitconv.conversion.prepare import Order
from vitconv.conversion.reread import compare
from vitconv.errors import LayoutError
from vitconv.io.sink import Out, write_file
from vitconv.io.source import open_checkpoint

VALUES = np.arange(600, dtype="<f4")


def outs(values: np.ndarray, key: str = "w", dtype: str = "F32", shape: tuple[int, ...] = (600,)) -> list[Out]:
    return [Out(key, dtype, shape, lambda: [memoryview(values.tobytes())])]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_file(tmp_path / "w.safetensors", outs(VALUES), None)
    return tmp_path / "w.safetensors"


def test_the_same_is_accepted(written: Path) -> None:
    with open_checkpoint(written) as file, open_checkpoint(written) as again:
        compare(file, outs(VALUES))
        compare(file, [Out("w", "F32", (600,), lambda: [again.segment(again.tensors[0])])])


@pytest.mark.parametrize("at", [0, 1, 2399])
@pytest.mark.parametrize("range_", [False, True], ids=["values", "byte range"])
def test_one_byte_is_seen(written: Path, tmp_path: Path, at: int, range_: bool) -> None:
    damaged = bytearray(VALUES.tobytes())
    damaged[at] ^= 1
    other = outs(np.frombuffer(bytes(damaged), "<f4"))
    write_file(tmp_path / "other.safetensors", other, None)
    with open_checkpoint(written) as file, open_checkpoint(tmp_path / "other.safetensors") as source:
        if range_:
            other = [Out("w", "F32", (600,), lambda: [source.segment(source.tensors[0])])]
        with pytest.raises(LayoutError, match="w differs from the plan after byte"):
            compare(file, other)


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        (outs(VALUES, key="v"), "v is not there"),
        (outs(VALUES, dtype="I32"), "w is F32"),
        (outs(VALUES, shape=(6, 100)), r"planned was F32 \(6, 100\)"),
        ([Out("w", "F32", (600,), lambda: [bytes(VALUES.tobytes()[:-4])])], "w has 2400 bytes, planned were 2396"),
    ],
    ids=["name", "dtype", "shape", "size"],
)
def test_what_is_not_as_planned_is_told(written: Path, planned: list[Out], message: str) -> None:
    with open_checkpoint(written) as file, pytest.raises(LayoutError, match=message):
        compare(file, planned)


def test_a_byte_that_changes_while_it_is_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with a disk that keeps one byte wrong."""
    import vitconv.conversion.convert as module

    source = Path(__file__).parents[2] / "fixtures" / "digits"
    found = next(source.glob("**/*.safetensors"))

    def damaging(path: Path, *args: object, **kwargs: object) -> None:
        write_file(path, *args, **kwargs)  # type: ignore[arg-type]
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(module, "write_file", damaging)
    convert(found, tmp_path / "quiet.safetensors", Order(to="xformers"))
    with pytest.raises(LayoutError, match="differs from the plan after byte"):
        convert(found, tmp_path / "told.safetensors", Order(to="xformers", prove=True))
