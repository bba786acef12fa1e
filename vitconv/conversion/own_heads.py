"""Classifiers that a user put in the place of a library's own, as one linear layer alone or in a Sequential."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vitconv.io.tensor import Stored

# {place of the classifier: key of the patch projection under the same prefix}.
_PLACES: Mapping[str, tuple[str, str]] = {
    "heads.head": (r"heads(?:\.head)?", r"conv_proj.weight"),
    "head": (r"head(?:\.fc)?", r"patch_embed.proj.weight"),
    "classifier": (r"classifier", r"(?:vit|deit|dinov2)\.embeddings\.patch_embeddings\.projection.weight"),
}
# Without it, it is no plain network: Swin's own classifier is head.fc.
_PLAIN = re.compile(r"(?:.*\.)?(?:pos_embed|cls_token|class_token|position_embeddings)")
_SAID = "stands in the place of the classifier and is read as it"
_BESIDE = (
    "it is in a Sequential, and no file says what stands beside it there without parameters: a dropout changes nothing,"
    " an activation would"
)


def own_heads(tensors: Mapping[str, Stored]) -> tuple[dict[str, str], str]:
    """Return {key: the library's key} of a classifier that a user put there, and what is to be said of it."""
    for whole, (place, patches) in _PLACES.items():
        stem = next((m[1] for key in tensors if (m := re.fullmatch(rf"((?:.*\.)?){patches}", key))), None)
        if stem is None or not any(_PLAIN.fullmatch(key) for key in tensors):
            continue
        head = re.compile(rf"{re.escape(stem)}(?P<at>{place}(?P<number>\.\d+)?)\.(?P<end>weight|bias)")
        top = f"{stem}{whole.partition('.')[0]}."
        found = {key: m for key in tensors if key.startswith(top) and (m := head.fullmatch(key))}
        # One layer, and nothing else of the head.
        if len({m["at"] for m in found.values()}) != 1 or len(found) < sum(key.startswith(top) for key in tensors):
            continue
        names = {key: f"{stem}{whole}.{m['end']}" for key, m in found.items()}
        layer = next(iter(found.values()))
        weight = tensors.get(f"{stem}{layer['at']}.weight")
        if weight is None or len(weight.shape) != 2 or all(key == name for key, name in names.items()):
            continue
        said = f"{layer['at']} {_SAID}"
        return names, f"{said}; {_BESIDE}" if layer["number"] else said
    return {}, ""
