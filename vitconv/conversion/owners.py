"""The layouts of a library's own classes, and the first of them that has a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconv.errors import Refused
from vitconv.registry import DIALECTS, load

if TYPE_CHECKING:
    from vitconv.conversion.prepare import Order, Prepared

# {library: layouts that its classes load, the usual one first}.
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "timm": (
        "timm", "timm-eva", "beit", "timm-swin", "timm-swinv2", "timm-naflex", "timm-naflex-eva", "timm-parallel",
    ),
    "transformers": (
        "hf-vit", "hf-deit", "hf-dinov2", "hf-dinov2-registers", "hf-dinov3", "hf-beit", "hf-ijepa", "hf-clip-vision",
        "hf-siglip", "hf-siglip2", "hf-mae", "hf-swin", "hf-swinv2",
    ),
    "torchvision": ("torchvision", "torchvision-swin", "torchvision-swinv2"),
    "open_clip": ("open-clip",),
    "xformers": ("xformers", "xformers-fused"),
    "vitconv": ("canonical", "canonical-stages"),
}  # fmt: skip

# What only training uses, and the file that keeps it in a folder for a library that has no place for it.
_TRAINING = re.compile(r"(embed\.mask$|decoder\.|mim\.)")
TRAINING_FILE = "training.safetensors"
# What a layout is chosen for, when none is named.
_OWN: Mapping[str, str] = {"beit": "rel_pos"}


def first(
    src: str | Path,
    order: Order,
    dialects: Sequence[str],
    prepare: Callable[[str | Path, Order], Prepared],
) -> Prepared:
    """Plan the conversion into the first of `dialects` that has the network; the source's own, or its kin, comes first.

    Raises:
        Refused: none has; the reason is that of the usual one of the source's family.
    """
    reasons: dict[str, Refused] = {}
    for name in dialects:
        try:
            found = prepare(src, _opened(name, order))
        except Refused as error:
            if str(error) in map(str, reasons.values()):
                # Of the source, whatever the target.
                raise
            reasons[name] = error
            continue
        if reasons and not _fits(found, name):
            found.close()
            continue
        source = found.source.match.dialect
        own = source.name.removesuffix("-5")
        if own != name and own in dialects and source.library == load(DIALECTS, name).library:
            found.close()
            return prepare(src, _opened(own, order))
        return found
    kin = {n: e for n, e in reasons.items() if "their networks are not built alike" not in str(e)} or reasons
    usual, *others = kin
    lines = [f"  {name}: {' '.join(str(kin[name]).splitlines()[:2])}" for name in others]
    if lines and dialects == LAYOUTS["timm"]:
        text = "\n".join([str(kin[usual]), "nor do the other layouts of timm have it:", *lines])
        raise type(kin[usual])(text)
    raise kin[usual]


def _opened(name: str, order: Order) -> Order:
    """Return the order for a layout, without the buffers that its library makes and opens no file with."""
    has = any(c.name == "buffers" for c in load(DIALECTS, name).choices)
    choices = {"buffers": "left-out", **order.choices} if has else order.choices
    return replace(order, to=name, choices=choices)


def with_training_parts(src: str | Path, file: Path, order: Order, dialects: Sequence[str]) -> Prepared | None:
    """Plan a conversion that keeps in `file` what only training uses, such as a mask token or a decoder.

    Returns None where something else would be kept: a part of the function is never set aside unasked.
    """
    from vitconv.conversion.prepare import prepare, unclaimed

    for name in dialects:
        try:
            found = prepare(src, replace(_opened(name, order), residue=file))
        except Refused:
            continue
        kept = tuple(c.name for c in found.plan.residue)
        # A second network is left to the refusal that names it: the residue would keep it, and here nothing does.
        alone = not unclaimed(found.source, order.drop)
        if alone and kept and all(_TRAINING.match(n) for n in kept) and _fits(found, name):
            briefly = dict.fromkeys(n if n.startswith("embed.") else f"{n.partition('.')[0]}.*" for n in kept)
            said = f"{file} keeps what only training uses: {', '.join(briefly)}; --restore puts it back"
            # A text tower is left aside as ever, not kept.
            return replace(found, source=replace(found.source, aside=()), notes=(*found.notes, said))
        found.close()
    return None


def _fits(found: Prepared, name: str) -> bool:
    """Say whether a network has what a layout is for: those that hold more than a library's class are for no others."""
    own = _OWN.get(name)
    return own is None or any(own in cell for cell in found.plan.network.cells)
