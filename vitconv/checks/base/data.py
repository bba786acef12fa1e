"""Images and labels to check with: the user's, scikit-learn's digits, or pictures made up by a seed."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitconv.checks.base.check import Undecided
from vitconv.errors import BadFile, UsageError
from vitconv.hosts.base.host import Inputs
from vitconv.parity.probe import probe_images

HELD_OUT = 360
# Where images come from that are what a network takes, whatever is known of it.
GIVEN = "given"
# Bytes of images in memory at a network's own size; pictures read from a folder, and their side in pixels.
FITTED = 1 << 28
PICTURES, SIDE = 2048, 64
# More than any set of labelled pictures has.
CLASSES = 1 << 20
# torchvision's ImageFolder reads these.
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# The largest of 16 bits over that of 8.
_WIDE = 257.0


@dataclass(frozen=True, eq=False)
class Data:
    """Examples: images [n c height width] or tokens [n t d], float32, labels [n], int64, and where they come from.

    `whole`: what these were resized from, all of them; `notes`: what was noticed in reading them.
    """

    images: Tensor
    labels: Tensor
    origin: str
    real: bool = False
    whole: Data | None = None
    notes: tuple[str, ...] = ()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the first `size` examples."""
        return self.images[:size], self.labels[:size]

    @property
    def classes(self) -> int:
        """Return the number of classes: one more than the largest label."""
        return int(self.labels.max()) + 1

    @property
    def guess(self) -> float:
        """Return the loss of guessing: the entropy of the labels, ln C where every class is as frequent."""
        share = self.labels.bincount().double() / len(self.labels)
        return float(torch.special.entr(share).sum())

    def fitted(self, inputs: Inputs) -> Data:
        """Return the examples resized, and their channels repeated, for what a network takes: as many as fit 256 MB."""
        if (
            self.origin == GIVEN
            or inputs.kind != "images"
            or self.images.dim() != 4
            or tuple(self.images.shape[1:]) == inputs.shape
        ):
            return self
        channels, *size = inputs.shape
        most = max(16, FITTED // (4 * prod(inputs.shape)))
        x, labels = self.images[:most], self.labels[:most]
        if tuple(x.shape[2:]) != tuple(size):
            x = functional.interpolate(x, size=tuple(size), mode="bilinear", antialias=True)
        if x.shape[1] != channels:
            x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()
        return Data(x, labels, self.origin, self.real, self.whole or self, self.notes)


def made_up(inputs: Inputs, count: int, classes: int, seed: int = 0) -> Data:
    """Return pictures of plane waves, standardised, with labels that mean nothing."""
    x = torch.cat([probe_images(inputs, seed + k)["coloured"] for k in range(-(-count // 2))])[:count].float()
    dims = tuple(range(1, x.dim()))
    x = (x - x.mean(dims, keepdim=True)) / x.std(dims, keepdim=True)
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed + 1))
    return Data(x, labels, "made up")


def digits() -> tuple[Data, Data]:
    """Return scikit-learn's 8x8 digits, scaled to -1..1, shuffled: 1437 to train on and 360 held out.

    Raises:
        Undecided: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise Undecided("the digits come with scikit-learn, which is not installed; give --data") from None
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(raw.target)[order]
    held, rest = slice(None, HELD_OUT), slice(HELD_OUT, None)
    return (
        Data(images[rest], labels[rest], "scikit-learn's digits", True),
        Data(images[held], labels[held], "scikit-learn's digits, held out", True),
    )


def read_data(path: str | Path, inputs: Inputs | None = None) -> Data:
    """Read a `.npz` with `images` and `labels`, or a folder with one folder of pictures per class, at any depth in it.

    Images of 0..255 are scaled to -1..1, pictures of 16 bits from 0..65535; channels may come first or last. The order
    is drawn by a fixed seed: files are often sorted by class.

    Raises:
        UsageError: there is nothing, the parts do not fit together or are of another kind, or all are of one class.
        BadFile: an archive or a picture cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path, inputs)
    if not path.is_file():
        raise UsageError(f"{path}: no such data; expected a .npz with images and labels, or a folder of class folders")
    images, labels = _arrays(path)
    x = torch.from_numpy(images.astype(np.float32))
    if images.dtype.kind in "iu" and x.min() >= 0 and x.max() <= 255:
        x = x / 127.5 - 1
    if x.dim() == 3:
        x = x[:, None]
    if x.dim() == 4 and x.shape[1] > 4 and x.shape[-1] <= 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    if x.dim() != 4 or labels.shape != (len(x),):
        raise UsageError(f"{path}: images {list(images.shape)} and labels {list(labels.shape)} do not fit together")
    _several(path, labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return Data(x[order], torch.from_numpy(labels.astype(np.int64))[order], str(path), True)


def _arrays(path: Path) -> tuple[Any, Any]:
    """Return images and labels of a .npz, of the kinds that they have to be."""
    try:
        # numpy leaves a file open that it opened itself and cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as raw:
            lacking = [name for name in ("images", "labels") if name not in raw]
            if lacking:
                raise UsageError(f"{path}: found {', '.join(raw) or 'nothing'}; expected images and labels")
            images, labels = np.asarray(raw["images"]), np.asarray(raw["labels"])
    # One array of numpy's own form is no archive and has no such context.
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise BadFile(f"{path}: not a .npz of plain arrays, such as numpy.savez writes: {e}") from None
    if images.dtype.kind not in "buif" or not images.size:
        raise UsageError(f"{path}: images are {images.dtype} {list(images.shape)}; expected numbers [n c height width]")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise UsageError(f"{path}: some images hold NaN or infinity; leave them out")
    if labels.dtype.kind not in "iu" or (labels.size and not 0 <= labels.min() <= labels.max() < CLASSES):
        span = f" from {labels.min()} to {labels.max()}" if labels.dtype.kind in "iuf" and labels.size else ""
        raise UsageError(
            f"{path}: labels are {labels.dtype} {list(labels.shape)}{span}; expected whole numbers [n], from 0 to the "
            "number of classes less one"
        )
    return images, labels


def _several(path: Path, labels: Any) -> None:
    if len(np.unique(labels)) < 2:
        raise UsageError(f"{path}: all images are of one class; expected two classes or more")


def _folder(path: Path, inputs: Inputs | None) -> Data:
    """Read at most `PICTURES` pictures, in an order drawn by a fixed seed, at the network's size or at `SIDE`."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(f"{path}: reading pictures needs pillow") from None
    # A folder without pictures is no class: editors and archives leave some behind.
    found = {p: _pictures(p) for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")}
    found = {p: files for p, files in found.items() if files}
    _one_level(path, found)
    shape = inputs.shape if inputs is not None and inputs.kind == "images" else (3, SIDE, SIDE)
    mode = "L" if shape[0] == 1 else "RGB"
    files = [(file, label) for label, inside in enumerate(found.values()) for file in inside]
    _several(path, [label for _, label in files])
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()[:PICTURES]
    images, labels = [], []
    for file, label in (files[i] for i in order):
        try:
            with Image.open(file) as picture:
                plain = _eight_bits(picture, file)
                pixels = np.asarray(plain.convert(mode).resize((shape[2], shape[1])), dtype=np.float32)
        # Pillow ends with SyntaxError at some broken files.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as e:
            raise BadFile(f"{file}: a picture that cannot be read: {e}; replace it, or take it away") from None
        images.append(torch.from_numpy(pixels / 127.5 - 1).reshape(shape[1], shape[2], -1).permute(2, 0, 1))
        labels.append(label)
    origin = str(path) if len(order) == len(files) else f"{path}, {len(order)} of {len(files)} pictures"
    counts = np.bincount(labels, minlength=len(found))
    few = [folder.name for folder, count in zip(found, counts, strict=True) if count < 2]
    notes = (f"classes with fewer than two pictures among those read: {', '.join(few)}",) if few else ()
    return Data(torch.stack(images).contiguous(), torch.tensor(labels), origin, True, notes=notes)


def _one_level(path: Path, found: dict[Path, list[Path]]) -> None:
    """Refuse a folder whose pictures are elsewhere than in class folders.

    Raises:
        UsageError: there are none, they lie in no class folder, or all lie deeper, as under train and val.
    """
    if found and all(file.parent != folder for folder, inside in found.items() for file in inside):
        raise UsageError(
            f"{path}: the pictures lie two levels down, in {min(found.values())[0].parent}; give one of "
            f"{', '.join(str(p) for p in list(found)[:4])}, with its class folders in it"
        )
    if not found:
        loose = [f.name for f in path.iterdir() if f.suffix.lower() in _PICTURES]
        there = f"found {len(loose)} pictures that are in no class folder" if loose else "no pictures"
        raise UsageError(f"{path}: {there}; expected one folder per class with {', '.join(_PICTURES)} in it")


def _eight_bits(picture: Any, file: Path) -> Any:
    """Return a picture of 8 bits a channel: Pillow cuts off what is above 255, and makes 16 bits white.

    Raises:
        BadFile: its numbers have no range that is known.
    """
    from PIL import Image

    if picture.mode == "F":
        raise BadFile(f"{file}: a picture of floats, whose range nothing says; save it with 8 or 16 bits")
    if not picture.mode.startswith("I"):
        return picture
    wide = np.asarray(picture, dtype=np.float64)
    if wide.min() < 0 or wide.max() > 65535:
        raise BadFile(f"{file}: values from {wide.min():g} to {wide.max():g}; expected 16 bits, 0 to 65535")
    return Image.fromarray((wide / _WIDE).round().astype(np.uint8))


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures below a folder, but for hidden files, which archives of macOS leave beside each."""
    found = []
    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(where, n) for n in names if n.lower().endswith(_PICTURES) and not n.startswith(".")]
    return sorted(found)
