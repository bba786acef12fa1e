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


def odd(folder: Path) -> Path:
    """Save one picture, a bright square on a dark one, in every form that collections have."""
    folder.mkdir(parents=True)
    eight = np.full((12, 10), 30, dtype=np.uint8)
    eight[3:9, 2:8] = 220
    grey = Image.fromarray(eight)
    full = Image.fromarray(np.full_like(eight, 255))
    forms = {
        "grey.png": grey, "colour.JPEG": grey.convert("RGB"), "palette.png": grey.convert("P"),
        "alpha.png": Image.merge("RGBA", [grey, grey, grey, full]), "grey-alpha.png": Image.merge("LA", [grey, full]),
        "print.jpg": grey.convert("RGB").convert("CMYK"), "large.webp": grey.convert("RGB").resize((90, 108)),
        "sixteen.png": Image.fromarray(eight.astype(np.uint16) * 257),
        "sixteen.tif": Image.fromarray(eight.astype(np.uint16) * 257),
        "map.pgm": grey, "whole.bmp": grey,
    }  # fmt: skip
    for name, picture in forms.items():
        picture.save(folder / name, **({"quality": 100} if "j" in name.lower() else {}))
    return folder


def test_pictures_of_every_form_are_the_same_picture(tmp_path: Path) -> None:
    odd(tmp_path / "d" / "a")
    pictures(tmp_path / "d", "b")
    data = read_data(tmp_path / "d")
    same = data.images[data.labels == 0]
    assert same.shape == (11, 3, 64, 64)
    assert float(same.std(0).max()) < 0.1, "one of them is another picture"
    assert float(same.mean()) == pytest.approx(-0.32, abs=0.05)


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        (np.linspace(0, 1, 81, dtype=np.float32), "a picture of floats"),
        (np.linspace(0, 90_000, 81).astype(np.int32), "values from 0 to 90000; expected 16 bits"),
    ],
    ids=["floats", "more-than-16-bits"],
)
def test_pictures_without_a_known_range_are_named(pixels: Any, says: str, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "d")
    Image.fromarray(pixels.reshape(9, 9)).save(folder / "a" / "odd.tif")
    with pytest.raises(BadFile, match=rf"odd\.tif: {says}"):
        read_data(folder)


def test_tiny_lone_hidden_and_deeper_pictures(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "d", "ab")
    pictures(folder, "c", count=1)
    Image.fromarray(np.zeros((1, 1), np.uint8)).save(folder / "a" / "tiny.png")
    (folder / "a" / "._tiny.png").write_bytes(b"Mac OS X")
    (folder / "a" / "notes.txt").write_text("no picture")
    pictures(folder / "b", "x", count=2)
    data = read_data(folder)
    assert data.labels.bincount().tolist() == [4, 5, 1]
    assert data.notes == ("classes with fewer than two pictures among those read: c",)


@pytest.mark.parametrize("levels", ["two", "none"])
def test_pictures_that_lie_elsewhere_are_refused_with_the_folder(levels: str, tmp_path: Path) -> None:
    if levels == "two":
        pictures(tmp_path / "d" / "train", "ab")
        pictures(tmp_path / "d" / "val", "ab")
        says = r"two levels down, .*train.a; give one of .*train, .*val"
    else:
        pictures(tmp_path, "d")
        says = "found 3 pictures that are in no class folder"
    with pytest.raises(UsageError, match=says):
        read_data(tmp_path / "d")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_training_on_data_of_ones_own_comes_to_a_verdict(kind: str, tmp_path: Path, capsys: Any) -> None:
    """Bright pictures against dark ones, through the command line, are learnt in forty steps; shuffled they are not."""
    found = {}
    for name, told in (("own", True), ("shuffled", False)):
        label = np.arange(60) % 2
        shown = label if told else RANDOM.permutation(label)
        bright = (60 + 120 * shown)[:, None, None, None] + RANDOM.integers(0, 20, (60, 8, 8, 3))
        if kind == "archive":
            path = archive(tmp_path / f"{name}.npz", images=bright.astype(np.uint8), labels=label)
        else:
            path = tmp_path / name
            for i, (x, y) in enumerate(zip(bright.astype(np.uint8), label, strict=True)):
                (path / f"class {y}").mkdir(parents=True, exist_ok=True)
                Image.fromarray(x).save(path / f"class {y}" / f"{i}.{'png' if i % 3 else 'JPG'}")
            if told:
                odd(path / "class 2")
        found[name] = probe(path, 3, capsys)["findings"]
    assert [f["figures"]["verdict"] for f in found["own"]] == ["trains", "trains"]
    assert found["shuffled"][0]["figures"]["verdict"] != "trains"
    assert str(tmp_path) in found["own"][0]["text"]


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


def test_what_the_most_frequent_class_gives_is_not_learnt(tmp_path: Path, capsys: Any) -> None:
    """Nine in ten are of one class, whatever the images show: a bias reaches .33, and ln 2 is .69."""
    labels = (np.arange(200) % 10 == 0).astype(int)
    images = RANDOM.normal(size=(200, 3, 8, 8)).astype("float32")
    found = probe(archive(tmp_path / "d.npz", images=images, labels=labels), 2, capsys)["findings"]
    assert {f["figures"]["verdict"] for f in found} <= {"stuck", "collapses"}
    assert "guessing 0.325" in found[0]["text"]
