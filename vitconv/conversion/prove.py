"""Proof from the data before writing: tied tensors are the same bits, constants have the value they should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitconv.errors import BadFile, Refused
from vitconv.io.contents import some
from vitconv.layout.arith import FLOATS
from vitconv.layout.buffers import CLOSE, agrees, is_buffer
from vitconv.layout.match import collapse
from vitconv.layout.plan import Plan

if TYPE_CHECKING:
    from vitconv.conversion.stream import Sources
    from vitconv.io.source import Checkpoint


def check_sums(checkpoint: Checkpoint, *, prove: bool) -> list[str]:
    """Compare an npz file's bytes with its checksums, and with `prove` a torch file's; return what is to be said.

    torch itself does not compare them, and can be told not to write them, so there they are no more than a sign.

    Raises:
        BadFile: an npz file is damaged.
    """
    npz = checkpoint.format == "npz"
    wrong = checkpoint.damaged() if npz or prove else []
    if npz and wrong:
        raise BadFile(
            f"{checkpoint.path}: {some(wrong)}: damaged, since the bytes are not those of the file's checksum; "
            "get the file again"
        )
    if not wrong:
        return []
    return [f"{some(wrong)}: not the bytes of the file's checksum; damaged, or torch was told to write none"]


def check_equal(p: Plan, sources: Sources) -> None:
    """Check that tensors which are one in a dialect are the same bits, and that constants have their value.

    Raises:
        Refused: they differ; the message names the tensors and by how much.
    """
    differ = [
        f"{key} is not a copy of {of}{_distance(sources, key, of)}"
        for key, of in p.source.copies.items()
        if sources.where[key][1].blob != sources.where[of][1].blob and not _same_bytes(sources, key, of)
    ]
    if differ:
        raise Refused("names that must be one tensor hold different values:\n  " + "\n  ".join(differ[:8]))
    from vitconv.conversion.stream import cell_array, constant_bytes

    for key, const in p.source.consts.items():
        stored = sources.where[key][1]
        if is_buffer(const.value):
            held = _is_buffer(sources, key, str(const.value))
        else:
            held = bytes(sources.read(key)) == constant_bytes(const, stored.shape, stored.dtype)
        if not held and not _masks_nothing(sources, key):
            raise Refused(f"{key} should be the constant {const.value}, and is not; it cannot be left out")
    _check_derived(p, sources)
    untied = []
    for name, of in p.equal:
        a, b = (cell_array(p, p.network.cells[n], sources) for n in (name, of))
        if a.tobytes() != b.tobytes():
            untied.append(name)
    if untied:
        raise Refused(
            f"{p.target.variant.dialect.name} holds these only once, and here they differ from the one it would keep:"
            f" {', '.join(collapse(untied))}; choose another variant with --set"
        )


def _masks_nothing(sources: Sources, key: str) -> bool:
    """Say whether a mask is of zeros, and the bias under it too, as in the published files of DINOv3."""
    masked = key.removesuffix("_mask")
    if masked == key or masked not in sources.where:
        return False
    from vitconv.layout.arith import to_float

    pair = [(sources.read(k), sources.where[k][1]) for k in (key, masked)]
    return not any(to_float(raw, t.dtype, t.shape).any() for raw, t in pair)


def _is_buffer(sources: Sources, key: str, value: str) -> bool:
    import numpy as np

    from vitconv.layout.arith import to_float

    stored, raw = sources.where[key][1], sources.read(key)
    if stored.dtype in FLOATS:
        found = to_float(raw, stored.dtype, stored.shape)
    else:
        found = np.frombuffer(raw, {"I64": "<i8", "I32": "<i4"}.get(stored.dtype, "u1"))
    # Rounded to 16 bits it is still the same table.
    slack = {"F16": 1e-3, "BF16": 1e-2}.get(stored.dtype, CLOSE)
    return found.size == stored.numel and agrees(value, found.reshape(stored.shape), slack)


def _check_derived(p: Plan, sources: Sources) -> None:
    """Check that what the target's library makes up itself is what would be left out.

    Raises:
        Refused: it is not.
    """
    if not p.derived:
        return
    from vitconv.conversion.stream import cell_array
    from vitconv.layout.arith import to_float
    from vitconv.layout.derived import wrong

    faults: dict[str, list[str]] = {}
    for cell, how in p.derived:
        values = to_float(cell_array(p, cell, sources), cell.dtype, cell.shape)
        if text := wrong(how, values):
            faults.setdefault(text, []).append(cell.name)
    if faults:
        lines = [f"{', '.join(collapse(names))}: {text}" for text, names in faults.items()]
        why = ""
        if any("attn.k.bias" in n for names in faults.values() for n in names):
            why = "; softmax attention does not feel a key bias"
        raise Refused(
            f"{p.target.variant.dialect.name} does not store these and computes as if they had another value:\n  "
            + "\n  ".join(lines)
            + f"\nkeep them beside the output with --residue FILE, or consent to the loss with --drop PATTERN{why}"
        )


def derived_lines(p: Plan, sources: Sources) -> list[str]:
    """Return one line per kind of tensor that is left out because the target's library makes it up."""
    from vitconv.conversion.stream import cell_array
    from vitconv.layout.arith import to_float
    from vitconv.layout.derived import WORDS, rounded

    kinds: dict[str, list[str]] = {}
    for cell, how in p.derived:
        more = rounded(how, to_float(cell_array(p, cell, sources), cell.dtype, cell.shape))
        text = WORDS[how.partition(":")[0]] + (f"; {more}" if more else "")
        kinds.setdefault(text, []).append(cell.name)
    return [
        f"{', '.join(collapse(names))}: not stored by {p.target.variant.dialect.name}: {text}"
        for text, names in kinds.items()
    ]


def _same_bytes(sources: Sources, a: str, b: str) -> bool:
    return sources.where[a][1].dtype == sources.where[b][1].dtype and bytes(sources.read(a)) == bytes(sources.read(b))


def _distance(sources: Sources, a: str, b: str) -> str:
    """Return ", the largest difference being ..." for two float tensors."""
    import numpy as np

    from vitconv.layout.arith import to_float

    (_, x), (_, y) = sources.where[a], sources.where[b]
    if x.dtype != y.dtype:
        return f" ({x.dtype} and {y.dtype})"
    both = [to_float(sources.read(k), s.dtype, s.shape) for k, s in ((a, x), (b, y))]
    return f" (largest difference {float(np.max(np.abs(both[0] - both[1]))):.3g})"
