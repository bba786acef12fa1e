"""Faults of the input: how images are normalised and turned before the network sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnImages

# Mean and standard deviation per channel in the 0..1 range: torchvision's ImageNet recipe, OpenAI's CLIP, Google's ViT.
STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


def _affine(gain: Sequence[float], shift: Sequence[float]) -> OnImages:
    def change(x: Tensor) -> Tensor:
        return x * x.new_tensor(gain).reshape(-1, 1, 1) + x.new_tensor(shift).reshape(-1, 1, 1)

    return change


def _renormalised(given: str, used: str) -> OnImages:
    """Undo the normalisation `given` and make `used`."""
    (m, s), (n, t) = STATISTICS[given], STATISTICS[used]
    return _affine(
        [a / b for a, b in zip(s, t, strict=True)],
        [(a - c) / b for a, b, c in zip(m, t, n, strict=True)],
    )


def _entries() -> Iterator[Fault]:
    def colour(c: ViTConfig) -> bool:
        return c.channels == 3

    def square(c: ViTConfig) -> bool:
        return c.channels > 0 and c.image_size[0] == c.image_size[1]

    words = {"imagenet": "ImageNet's", "clip": "CLIP's", "half": "0.5 and 0.5", "none": "no"}
    for used, given in permutations(STATISTICS, 2):
        # Normalised by `used` after `given` was undone; "none" as given means that it is done twice.
        again = given == "none"
        title = f"images are normalised with {words[used]} mean and deviation" + (
            ", though they are normalised already" if again else f" in place of {words[given]}"
        )
        yield Fault(
            f"input-{used}-for-{given}" if not again else f"input-{used}-again",
            title,
            "input",
            images=_renormalised(given, used),
            when=colour,
            facts=("mean", "std"),
        )
    yield Fault(
        "input-255",
        "images are 255 times too large",
        "input",
        images=lambda x: x * 255,
        when=lambda c: c.channels > 0,
        facts=("mean", "std"),
    )
    yield Fault(
        "input-by-255",
        "images are 255 times too small",
        "input",
        images=lambda x: x / 255,
        when=lambda c: c.channels > 0,
        facts=("mean", "std"),
    )
    yield Fault(
        "input-transposed",
        "height and width of the images are exchanged",
        "input",
        images=lambda x: x.transpose(2, 3),
        when=square,
    )
    yield Fault(
        "input-mirrored",
        "images are mirrored left to right",
        "input",
        images=lambda x: x.flip(3),
        when=lambda c: c.channels > 0,
    )


FAULTS = tuple(_entries())
