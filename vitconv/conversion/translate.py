"""Translate tensors in memory: weights, gradients or optimiser moments travel by the same permutations."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from vitconv.conversion.recognise import candidates
from vitconv.errors import Refused, UsageError
from vitconv.layout.canonical import template_of
from vitconv.layout.detect import detect
from vitconv.layout.match import collapse
from vitconv.layout.network import decode
from vitconv.layout.plan import Plan, Target, plan, prove
from vitconv.layout.recipe import Piece
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load

Array = TypeVar("Array")
KINDS = ("weights", "gradients", "moments")


def translate(
    tensors: Mapping[str, Array],
    from_: str | None,
    to: str,
    kind: Literal["weights", "gradients", "moments"] = "weights",
    *,
    facts: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
    axes: Mapping[str, int] | None = None,
    drop: Sequence[str] = (),
) -> dict[str, Array]:
    """Return the tensors under the names and shapes of another dialect; nothing is shared with the input.

    A mapping rule is a permutation of elements, hence its own adjoint's inverse: gradients (with respect to each
    tensor) and per-element optimiser moments (Adam's `exp_avg`, `exp_avg_sq`) travel by the rules of the weights.
    Where a dialect names one tensor twice, gradients of both names are summed, and weights must be equal.

    Args:
        tensors: {key: torch.Tensor or numpy.ndarray} of one kind and one dtype per joined tensor.
        from_: source dialect, or None to detect it.
        to: target dialect.
        kind: what the tensors are.
        facts: facts that decide whether the target computes the same function, such as `kv_normalised`.
        choices: options of the target dialect, {choice: option}.
        axes: axis sizes that no tensor states, such as {"h": 12}.
        drop: patterns of canonical names that may be left out.

    Raises:
        NotRecognised / Ambiguous / Refused: as for a file; Refused when a tensor has no place in the target.
        UsageError: an unknown kind or dialect.
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    tensors = dict(tensors)
    shapes = {k: tuple(int(n) for n in v.shape) for k, v in tensors.items()}  # type: ignore[attr-defined]
    known = Semantics(**(facts or {}))
    match = detect(shapes, candidates(from_), given=axes, facts=known.known())
    for key, of in match.copies.items():
        if kind == "gradients":
            tensors[of] = tensors[of] + tensors[key]  # type: ignore[operator]
        elif not _equal(tensors[key], tensors[of]):
            raise Refused(f"{key} must be a copy of {of}, and is not")
    network = decode(match, {k: str(getattr(v, "dtype", "")) for k, v in tensors.items()}, known)
    p = plan(match, network, load(DIALECTS, to), wanted=choices, given=axes, order=list(tensors))
    lost = [
        c.name
        for c in p.residue
        if not any(fnmatch.fnmatchcase(n, x) for x in drop for n in (c.name, template_of(c.name)))
    ]
    if lost:
        raise Refused(f"{to} has no place for {', '.join(collapse(lost))}; leave them out with drop=[...]")
    prove(p)
    return {t.key: _build(p, t, tensors, kind) for t in p.targets if t.const is None or kind == "weights"}


def _build(p: Plan, t: Target, tensors: Mapping[str, Any], kind: str) -> Any:
    like = next(iter(tensors.values()))
    if t.const is not None:
        from vitconv.conversion.stream import constant_bytes

        return _from_bytes(like, constant_bytes(t.const, t.shape), t.const.dtype, t.shape)
    first = next((tensors[x.source] for x in t.pieces if x.source in tensors), like)
    out = first.new_empty(t.shape) if hasattr(first, "new_empty") else _empty(first, t.shape)
    flat = out.reshape(-1)
    for x in t.pieces:
        if x.source.startswith("="):
            value = p.network.made[x.source].compute([]) if kind == "weights" else 0.0
            _strided(flat, x.dst, [(n, d) for n, _, d in x.dims])[...] = float(getattr(value, "flat", [value])[0])
        else:
            _copy(flat, tensors[x.source], x)
    return out


def _copy(flat: Any, source: Any, x: Piece) -> None:
    dense = source.contiguous().view(-1) if hasattr(source, "contiguous") else source.reshape(-1)
    view = _strided(dense, x.src, [(n, s) for n, s, _ in x.dims])
    _strided(flat, x.dst, [(n, d) for n, _, d in x.dims])[...] = view


def _strided(flat: Any, offset: int, dims: list[tuple[int, int]]) -> Any:
    sizes, strides = [n for n, _ in dims], [s for _, s in dims]
    if hasattr(flat, "as_strided"):
        return flat.detach().as_strided(sizes, strides, flat.storage_offset() + offset)
    import numpy as np

    return np.lib.stride_tricks.as_strided(flat[offset:], sizes, [s * flat.itemsize for s in strides])


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.empty(shape, like.dtype)


def _from_bytes(like: Any, data: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy as np

    array = np.frombuffer(data, {"I64": "<i8", "F32": "<f4"}[dtype]).reshape(shape).copy()
    return like.new_tensor(array.tolist(), dtype=None) if hasattr(like, "new_tensor") else array


def _equal(a: Any, b: Any) -> bool:
    return bool((a == b).all()) and tuple(a.shape) == tuple(b.shape)
