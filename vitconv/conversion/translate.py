"""Translate tensors in memory: weights, gradients or optimiser moments travel by the same permutations."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from vitconv.conversion.candidates import Candidates
from vitconv.conversion.readings import flat_names
from vitconv.errors import Refused, UsageError
from vitconv.layout.buffers import CLOSE, agrees, buffer, is_buffer
from vitconv.layout.canonical import template_of
from vitconv.layout.detect import detect
from vitconv.layout.match import Match, collapse
from vitconv.layout.network import decode
from vitconv.layout.plan import Plan, plan
from vitconv.layout.proof import prove
from vitconv.layout.recipe import Piece, compose, view_of
from vitconv.layout.rule import Const
from vitconv.layout.semantics import Semantics, fact_value
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
    source_choices: Mapping[str, str] | None = None,
    axes: Mapping[str, int] | None = None,
    drop: Sequence[str] = (),
) -> dict[str, Array]:
    """Return the tensors under the names and shapes of another dialect; nothing is shared with the input.

    A mapping rule is a permutation of elements, hence its own adjoint's inverse: gradients (with respect to each
    tensor) and per-element optimiser moments (Adam's `exp_avg`, `exp_avg_sq`) travel by the rules of the weights.
    Where the source names one tensor twice, weights and moments must be equal, and gradients are summed, unless both
    names are the same memory, as with a tied parameter; the target gets a gradient under its first name only. Where the
    target holds several tensors as one, weights must be equal and gradients are summed. Blocks that DINOv2's training
    keeps in chunks are taken out of them.

    Args:
        tensors: {key: torch.Tensor or numpy.ndarray} of one kind and one dtype per joined tensor.
        from_: source dialect, or None to detect it.
        to: target dialect.
        kind: what the tensors are.
        facts: facts that decide whether the target computes the same function, such as `kv_normalised`.
        choices: options of the target dialect, {choice: option}.
        source_choices: options of the source dialect that no shape tells, {choice: option}.
        axes: axis sizes that no tensor states, such as {"h": 12}.
        drop: patterns of canonical names that may be left out.

    Raises:
        NotRecognised / Ambiguous / Refused: as for a file; Refused when a tensor has no place in the target.
        UsageError: an unknown kind or dialect.
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    _check_tensors(tensors)
    out_of_chunks = flat_names(tensors)
    tensors = {out_of_chunks.get(k, k): v for k, v in tensors.items()}
    shapes = {k: tuple(int(n) for n in v.shape) for k, v in tensors.items()}  # type: ignore[attr-defined]
    known = Semantics(**{name: fact_value(name, value) for name, value in (facts or {}).items()})
    match = detect(shapes, Candidates(from_).every(), choices=source_choices, given=axes, facts=known.known())
    for key, of in match.copies.items():
        if kind == "gradients":
            if not _same_memory(tensors[key], tensors[of]):
                tensors[of] = tensors[of] + tensors[key]  # type: ignore[operator]
        elif not _same_bits(tensors[key], tensors[of]):
            raise Refused(f"{key} must be a copy of {of}, and is not")
    if kind == "weights":
        _check_consts(match, tensors)
    elif match.variant.ties:
        raise Refused(f"{match.dialect.name} holds several tensors as one; its {kind} do not say what each of them has")
    network = decode(match, {k: str(getattr(v, "dtype", "")) for k, v in tensors.items()}, known)
    target = load(DIALECTS, to)
    if match.dialect.family != target.family:
        raise Refused(
            f"{match.dialect.name} is of the {match.dialect.family} family and {to} of the {target.family} family: no"
            " layout says both"
        )
    p = plan(
        match,
        network,
        target,
        wanted=choices,
        given=axes,
        order=list(tensors),
        spare=lambda c: not _among(c.name, drop),
    )
    if kind == "weights":
        _check_derived(p, tensors)
    lost = [c.name for c in p.residue if not _among(c.name, drop)]
    if lost:
        raise Refused(f"{to} has no place for {', '.join(collapse(lost))}; leave them out with drop=[...]")
    prove(p)
    made = {t.key: _build(p, t.pieces, t.shape, tensors, kind) for t in p.targets if t.const is None}
    if p.equal:
        _join_ties(p, tensors, made, kind)
    if kind == "gradients":
        return {key: x for key, x in made.items() if key not in p.target.copies}
    like = next(iter(tensors.values()))
    consts = {t.key: _constant(like, t.const, t.shape) for t in p.targets if t.const and kind == "weights"}
    return {t.key: {**made, **consts}[t.key] for t in p.targets if t.key in made or t.key in consts}


def _check_tensors(tensors: Mapping[str, Any]) -> None:
    for name, value in tensors.items():
        if not isinstance(name, str) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
            found = type(value).__name__
            raise UsageError(f"{name!r}: found {found}; expected a torch.Tensor or numpy.ndarray under a name")


def _among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(n, x) for x in patterns for n in (name, template_of(name)))


def _check_derived(p: Plan, tensors: Mapping[str, Any]) -> None:
    """Refuse to leave out what the target's library makes up with other values."""
    from vitconv.layout.derived import wrong

    for cell, how in p.derived:
        dims = [f for axis in cell.view.dims for f in axis]
        values = _strided(_dense(tensors[cell.view.tensor]), cell.view.offset, dims).reshape(cell.shape)
        if text := wrong(how, values.detach().double().numpy() if hasattr(values, "detach") else values):
            raise Refused(
                f"{p.target.variant.dialect.name} does not store {cell.name}, which is {text}; leave it out with"
                " drop=[...]"
            )


def _join_ties(p: Plan, tensors: Mapping[str, Any], made: dict[str, Any], kind: str) -> None:
    """Compare the tensors that the target holds as one, or add their gradients."""
    homes = {name: b.key for b in p.target.bound if len(b.parts) == 1 for name in b.parts}
    for name, of in p.equal:
        view = next(view_of(b, 0, p.sizes) for b in p.target.bound if b.key == homes[of])
        there = _build(p, (compose(p.network.cells[name].view, view),), tuple(made[homes[of]].shape), tensors, kind)
        if kind == "gradients":
            made[homes[of]] = made[homes[of]] + there
        elif not _same_bits(there, made[homes[of]]):
            raise Refused(f"{p.target.variant.dialect.name} holds {name} and {of} as one, and here they differ")


def _check_consts(match: Match, tensors: Mapping[str, Any]) -> None:
    for key, const in match.consts.items():
        shape = tuple(int(n) for n in tensors[key].shape)
        if is_buffer(const.value):
            held = agrees(str(const.value), _as_array(tensors[key]), _slack(tensors[key]))
        else:
            held = _same_bits(tensors[key], _constant(tensors[key], const, shape))
        if not held:
            raise Refused(f"{key} should be the constant {const.value}, and is not; it cannot be left out")


def _as_array(tensor: Any) -> Any:
    if not hasattr(tensor, "new_tensor"):
        return tensor
    import torch

    return (tensor.detach().cpu().to(torch.float64) if tensor.is_floating_point() else tensor.cpu()).numpy()


def _slack(tensor: Any) -> float:
    width = tensor.element_size() if hasattr(tensor, "element_size") else tensor.itemsize
    return CLOSE if width > 2 else 1e-2


def _build(p: Plan, pieces: Sequence[Piece], shape: tuple[int, ...], tensors: Mapping[str, Any], kind: str) -> Any:
    like = next((tensors[x.source] for x in pieces if x.source in tensors), next(iter(tensors.values())))
    out = like.new_empty(shape) if hasattr(like, "new_empty") else _empty(like, shape)
    flat = out.reshape(-1)
    for x in pieces:
        if x.source.startswith("="):
            _fill(flat, x, p.network.made[x.source].compute([]) if kind == "weights" else None)
        else:
            _copy(flat, tensors[x.source], x)
    return out


def _fill(flat: Any, x: Piece, made: Any) -> None:
    into = _strided(flat, x.dst, [(n, d) for n, _, d in x.dims])
    values = [0.0] if made is None else made.ravel().tolist()
    if len(set(values)) == 1:
        into[...] = values[0]
    else:
        for j, value in enumerate(values):
            flat[x.dst + j] = value


def _copy(flat: Any, source: Any, x: Piece) -> None:
    view = _strided(_dense(source), x.src, [(n, s) for n, s, _ in x.dims])
    _strided(flat, x.dst, [(n, d) for n, _, d in x.dims])[...] = view


def _dense(source: Any) -> Any:
    """Return the elements in order, next to each other; reshape alone may leave gaps between them."""
    if hasattr(source, "contiguous"):
        return source.contiguous().view(-1)
    import numpy as np

    return np.ascontiguousarray(source).reshape(-1)


def _strided(flat: Any, offset: int, dims: list[tuple[int, int]]) -> Any:
    sizes, strides = [n for n, _ in dims], [s for _, s in dims]
    if hasattr(flat, "as_strided"):
        return flat.detach().as_strided(sizes, strides, flat.storage_offset() + offset)
    import numpy as np

    return np.lib.stride_tricks.as_strided(flat[offset:], sizes, [s * flat.itemsize for s in strides])


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.empty(shape, like.dtype)


def _constant(like: Any, const: Const, shape: tuple[int, ...]) -> Any:
    """Return a constant of a dialect as an array of the kind of `like`, of the constant's own dtype."""
    if const.dtype == "float" and not isinstance(const.value, str):
        out = like.new_empty(shape) if hasattr(like, "new_empty") else _empty(like, shape)
        values = const.value if isinstance(const.value, tuple) else (const.value,)
        for j, value in enumerate(values):
            rows = shape[0] // len(values)
            out[j * rows : (j + 1) * rows] = value
        return out
    import numpy as np

    from vitconv.conversion.stream import constant_bytes

    if is_buffer(const.value):
        made = buffer(str(const.value), shape)
        if not hasattr(like, "new_tensor"):
            return made.astype(like.dtype) if const.dtype == "float" else made
        import torch

        return torch.from_numpy(made).to(like.device, like.dtype if const.dtype == "float" else torch.int64)
    kinds = {"I64": "<i8", "I32": "<i4", "F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "?", "U8": "u1"}
    array = np.frombuffer(constant_bytes(const, shape), kinds[const.dtype]).reshape(shape).copy()
    if not hasattr(like, "new_tensor"):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)


def _same_memory(a: Any, b: Any) -> bool:
    if hasattr(a, "untyped_storage"):
        return bool(a.data_ptr() == b.data_ptr() and a.stride() == b.stride())
    return bool(a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides)


def _same_bits(a: Any, b: Any) -> bool:
    """Compare shape, dtype and bytes; a NaN equals itself, -0.0 is not 0.0."""
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
        return False
    if not hasattr(a, "new_tensor"):
        return bool(a.tobytes() == b.tobytes())
    import torch

    x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(x, y))
