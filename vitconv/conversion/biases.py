"""Biases of q, k and v said twice, or under a mask: settled before the layout is looked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from vitconv.errors import Refused
from vitconv.io.envelope import Branch
from vitconv.io.tensor import Stored
from vitconv.layout.arith import FLOATS, to_float
from vitconv.layout.match import collapse

_FUSED = re.compile(r"(?P<stem>^|.*\.)qkv\.bias$")
Read = Callable[[Stored], Any]


def settled_biases(branch: Branch, read: Read) -> Branch:
    """Return the branch without masks of ones, and without q_bias and v_bias that a layer's qkv.bias says again.

    Raises:
        Refused: a mask holds NaN, or a layer has two biases that differ.
    """
    stems = {m["stem"]: key for key in branch.tensors if (m := _FUSED.match(key))}
    twice: list[str] = []
    zeros = _zero_key_biases(branch, read)
    masks: list[str] = []
    hidden: list[str] = []
    for stem, key in stems.items():
        apart = [f"{stem}q_bias", f"{stem}v_bias"]
        if all(k in branch.tensors for k in apart):
            _check_equal(branch.tensors, key, apart, read)
            twice += apart
        if f"{stem}qkv.bias_mask" in branch.tensors and _is_ones(branch.tensors, f"{stem}qkv.bias_mask", read):
            masks.append(f"{stem}qkv.bias_mask")
        elif _hidden(branch.tensors, key, read):
            hidden += [key, f"{key}_mask"]
    gone = {*twice, *masks, *zeros, *hidden}
    if not gone:
        return branch
    notes = [branch.note] if branch.note else []
    if twice:
        notes.append(f"the same as the layer's qkv.bias, and left out: {', '.join(collapse(twice))}")
    if zeros:
        notes.append(f"key biases of zeros, as the code makes up itself, and left out: {', '.join(collapse(zeros))}")
    if masks:
        notes.append(f"masks of ones, which change nothing, and left out: {', '.join(collapse(masks))}")
    if hidden:
        notes.append(
            f"biases under masks of zeros, which the code multiplies: no part of the function, and left out:"
            f" {', '.join(collapse(hidden))}"
        )
    return dataclasses.replace(
        branch,
        tensors={k: t for k, t in branch.tensors.items() if k not in gone},
        note="; ".join(notes),
        left=(*branch.left, *sorted(gone)),
    )


def _hidden(tensors: Mapping[str, Stored], key: str, read: Read) -> bool:
    """Say whether a bias lies under a mask of zeros and is not zero itself."""
    pair = [tensors[k] for k in (f"{key}_mask", key) if k in tensors]
    if len(pair) < 2 or any(t.dtype not in FLOATS for t in pair):
        return False
    mask, bias = (_values(t, read) for t in pair)
    return not mask.any() and bool(bias.any())


def _zero_key_biases(branch: Branch, read: Read) -> list[str]:
    """Return the key biases of zeros beside q_bias and v_bias: a buffer of BEiT and EVA that some writers keep."""
    keys = [k for k in branch.tensors if k.endswith("k_bias") and k.removesuffix("k_bias")[-1:] in ("", ".")]
    beside = [k for k in keys if f"{k[: -len('k_bias')]}q_bias" in branch.tensors]
    return [k for k in beside if branch.tensors[k].dtype in FLOATS and not any(bytes(read(branch.tensors[k])))]


def zero_lines(stored: Mapping[str, Stored], read: Read) -> list[str]:
    """Say when a network's biases of q, k and v are all zero, as where they were never loaded."""
    keys = [k for k in stored if _FUSED.match(k) and stored[k].dtype in FLOATS]
    # Bytes, and no numpy: this is looked at in every conversion.
    if not keys or any(any(bytes(read(stored[k]))) for k in keys):
        return []
    return [f"all zero: {', '.join(collapse(keys))}; never trained, or never loaded?"]


def _values(t: Stored, read: Read) -> Any:
    return to_float(read(t), t.dtype, t.shape)


def _check_equal(tensors: Mapping[str, Stored], key: str, apart: list[str], read: Read) -> None:
    import numpy as np

    if any(tensors[k].dtype not in FLOATS for k in (key, *apart)):
        return
    fused, parts = _values(tensors[key], read), [_values(tensors[k], read) for k in apart]
    size = len(fused) // 3
    pairs = ((fused[:size], parts[0]), (fused[2 * size :], parts[1]))
    if not all(a.shape == b.shape and np.array_equal(a, b) for a, b in pairs):
        raise Refused(
            f"one layer has two biases that differ: {key}, and {' with '.join(apart)}; drop one of them with --drop"
        )


def _is_ones(tensors: Mapping[str, Stored], key: str, read: Read) -> bool:
    import numpy as np

    if tensors[key].dtype not in FLOATS:
        return False
    mask = _values(tensors[key], read)
    if np.isnan(mask).any():
        raise Refused(
            f"{key} holds NaN: it was never initialised, and a bias times it is NaN; a network of facebookresearch has"
            " ones over q and v and zeros over k there"
        )
    return bool((mask == 1).all())
