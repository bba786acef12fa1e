"""Images of the user's own: what no training can use is refused, with the file or the array that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitconv.checks.base.data import read_data
from vitconv.cli.main import run
from vitconv.errors import BadFile, UsageError

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.normal(size=(12, 3, 8, 8)).astype("float32"), RANDOM.integers(0, 3, 12)


def archive(path: Path, **changed: Any) -> Path:
    np.savez(path, **{"images": IMAGES, "labels": LABELS, **changed})
    return path


def pictures(folder: Path, classes: str = "ab", count: int = 3) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(RANDOM.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"labels": LABELS[:-1]}, "do not fit together"),
        ({"labels": -LABELS - 1}, "labels are int64 .* from -3 to -1; expected whole numbers"),
        ({"labels": LABELS * 10**9}, "labels are int64"),
        ({"labels": LABELS.astype(float)}, "labels are float64"),
        ({"labels": np.eye(3)[LABELS]}, "labels are float64"),
        ({"labels": LABELS * 0}, "all images are of one class"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images are float32 .0, 3, 8, 8.; expected numbers"),
        ({"images": IMAGES.astype("complex64")}, "images are complex64"),
        ({"images": np.array(["x"] * 12)}, "images are <U1"),
        ({"images": np.where(IMAGES > 2, np.nan, IMAGES)}, "NaN or infinity"),
    ],
)
def test_arrays_that_no_training_can_use(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read_data(archive(tmp_path / "d.npz", **changed))


@pytest.mark.parametrize("kind", ["junk", "cut", "one-array", "objects"])
def test_archives_that_are_none(kind: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "d.npz")
    if kind == "junk":
        path.write_bytes(b"PK\x03\x04junk")
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:600])
    elif kind == "one-array":
        np.save(tmp_path / "a.npy", IMAGES)
        path.write_bytes((tmp_path / "a.npy").read_bytes())
    else:
        archive(path, images=np.array([{}] * 12, dtype=object))
    with pytest.raises(BadFile, match=r"d\.npz: not a \.npz of plain arrays"):
        read_data(path)


@pytest.mark.parametrize("kind", ["junk", "cut"])
def test_a_picture_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "d")
    bad = folder / "b" / "1.png"
    bad.write_bytes(b"no picture" if kind == "junk" else bad.read_bytes()[:60])
    with pytest.raises(BadFile, match=r"b.1\.png: a picture that cannot be read"):
        read_data(folder)


def test_folders_without_pictures_are_no_classes(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "d", "bc")
    (folder / ".cache").mkdir()
    assert read_data(folder).classes == 2
    with pytest.raises(UsageError, match="all images are of one class"):
        read_data(pictures(tmp_path / "one", "a"))


def test_whole_numbers_up_to_255_are_scaled_whatever_their_type(tmp_path: Path) -> None:
    whole = RANDOM.integers(0, 256, (12, 3, 8, 8))
    as_bytes = read_data(archive(tmp_path / "a.npz", images=whole.astype("uint8"))).images
    assert as_bytes.equal(read_data(archive(tmp_path / "b.npz", images=whole)).images)


def probe(path: Path, classes: int, capsys: Any) -> dict[str, Any]:
    sizes = [f"--set={text}" for text in ("depth=1", "dim=48", "image=8", "patch=4", f"classes={classes}")]
    run(["check", "vit_tiny", *sizes, "--only", "training-probe", "--data", str(path), "--steps", "41", "--json"])
    return json.loads(capsys.readouterr().out)["checks"][0]


def test_labels_that_the_network_has_no_output_for_are_refused(tmp_path: Path, capsys: Any) -> None:
    found = probe(archive(tmp_path / "d.npz"), 2, capsys)
    assert "go up to 2 and the network has 2 outputs" in found["skipped"]
    assert "--set classes=3" in found["skipped"]


def test_a_head_of_more_outputs_than_classes_does_not_diverge_by_starting_high(tmp_path: Path, capsys: Any) -> None:
    found = probe(archive(tmp_path / "d.npz"), 5000, capsys)
    assert {f["figures"]["verdict"] for f in found["findings"]} <= {"trains", "stuck"}
