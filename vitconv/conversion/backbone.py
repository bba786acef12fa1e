"""One number for a network without its heads, the same in every layout, and for a probe and what it was put on."""

from __future__ import annotations

import hashlib
import re

from vitconv.conversion.diff import bits_of, ranges_of
from vitconv.conversion.recognise import Recognised
from vitconv.layout.network import decode

# Classifiers, heads of pretraining and decoders.
HEADS = re.compile(r"^(head|head_dist|mim|decoder|norm_local)\.")


def backbone_hash(r: Recognised) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bits of all canonical tensors but the heads, by name.

    Every byte of the backbone is read. What a layout makes up instead of storing it (a key bias of zeros) counts only
    where it is stored.
    """
    digest = hashlib.sha256()
    cells = decode(r.match, r.dtypes, r.facts).cells
    for name in sorted(n for n in cells if not HEADS.match(n)):
        cell = cells[name]
        digest.update(f"{name}\0{cell.dtype}\0{'x'.join(map(str, cell.shape))}\0".encode())
        windows = ranges_of(r, cell)
        for part in windows if windows is not None else (bits_of(r, cell).tobytes(),):
            digest.update(part)
    return digest.hexdigest()


def heads_of(r: Recognised) -> str:
    """Return in words which heads stand on the backbone: `classifier, 1000 classes`, or `none`."""
    cells = decode(r.match, r.dtypes, r.facts).cells
    titles = {
        "head.weight": "classifier, {} classes",
        "head_dist.weight": "distillation classifier, {} classes",
        "mim.weight": "masked image modelling, {} words",
    }
    found = [title.format(cells[name].shape[0]) for name, title in titles.items() if name in cells]
    return "; ".join(found + (["decoder"] if any(n.startswith("decoder.") for n in cells) else [])) or "none"
