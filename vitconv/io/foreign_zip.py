"""Zip files that hold no weights in a form that is read: what they are, by the names of their members."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vitconv.io.contents import some

_EXPORTED = (
    "a program of torch.export (.pt2); save its weights by themselves:"
    " torch.save(torch.export.load(FILE).state_dict, 'weights.pth'), and name that file"
)
_KINDS: tuple[tuple[str, str], ...] = (
    (r"(.*/)?(archive_format|serialized_exported_program\.json)", _EXPORTED),
    (r"(.*/)?model\.weights\.h5", "a model of Keras (.keras); save the weights as .npz or safetensors"),
    (r"(.*/)?com\.apple\.CoreML/.*", "a model of Core ML; take the checkpoint that it was made from"),
    (r"(.*/)?saved_model\.pb", "a SavedModel of TensorFlow, packed; save the weights as .npz or safetensors"),
    (r"(.*/)?_CHECKPOINT_METADATA", "a checkpoint of Orbax, packed; save the weights as .npz"),
    (r"(.*/)?\.zgroup", "a store of Zarr, packed; save the weights as .npz"),
    (r".*\.(safetensors|pth|pt|bin|ckpt|npz|onnx|distcp)", "a zip with checkpoints in it; unpack it first"),
)


def what_it_is(members: Iterable[str]) -> str:
    """Say of a zip that is neither torch's nor numpy's what it is, and what to do."""
    names = [*members]
    for pattern, what in _KINDS:
        found = [name for name in names if re.fullmatch(pattern, name)]
        if found:
            return f"this is {what} (it holds {some(found)})"
    return f"a zip that is neither a torch file nor an npz file; it holds {some(names) or 'nothing'}"
