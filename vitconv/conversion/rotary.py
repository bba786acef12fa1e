"""What stored waves of rotary positions prove: their grid, the size places are numbered to, the head width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vitconv.errors import Refused
from vitconv.io.tensor import Stored
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics

_WAVES = ("rope-cos", "rope-sin")


def proven_by_waves(
    match: Match, facts: Semantics, stored: Mapping[str, Stored], read: Callable[[Stored], Any]
) -> tuple[Semantics, list[str]]:
    """Fill in the facts that stored waves hold, and say when stored periods are rounded.

    Raises:
        Refused: the waves disagree with each other, with the position table, or with what was told.
    """
    notes = _rounded_periods(match, stored)
    facts, more = _base(match, facts, stored, read)
    notes += more
    keys = [key for key, const in match.consts.items() if const.value in _WAVES]
    if not keys:
        return facts, notes
    found = {key: _wave(str(match.consts[key].value), stored[key], read) for key in keys}
    odd = [key for key, wave in found.items() if wave is None]
    if odd:
        raise Refused(f"{odd[0]} holds no waves of rotary positions of base 10000 that are known here")
    kinds = {wave for wave in found.values() if wave is not None}
    if len(kinds) > 1:
        said = "; ".join(f"{key}: {_said(wave)}" for key, wave in found.items() if wave)
        raise Refused(f"the stored waves of rotary positions are not of one kind: {said}")
    grid, reference = next(iter(kinds))
    width, n, a = stored[keys[0]].shape[-1], match.sizes.get("n"), match.sizes["a"]
    if n is not None and grid[0] * grid[1] != n:
        raise Refused(
            f"{keys[0]} holds waves of a grid of {_by(grid)}, {grid[0] * grid[1]} places; the position table has {n}:"
            " a file of two image sizes"
        )
    if a % width:
        raise Refused(f"{keys[0]} is for heads {width} wide, which do not divide the attention width {a}")
    held: dict[str, Any] = {"grid": grid, "rope_reference": (reference, reference), "heads": a // width}
    held["position"] = "rope"
    held |= _precision(str(match.consts[keys[0]].value), grid, reference, stored[keys[0]], read)
    for name, value in held.items():
        told = getattr(facts, name)
        if told is not None and told != value:
            raise Refused(f"{name}={_word(told)} was said, and the stored waves ({keys[0]}) hold {_word(value)}")
    notes += [
        f"{name}: {_word(value)}, which the stored waves hold"
        + ("; EVA-02's code calls it pt_seq_len, timm's ref_feat_shape" if name == "rope_reference" else "")
        for name, value in held.items()
        if getattr(facts, name) is None and name not in ("position", "rope_precision")
    ]
    return facts.filled(held), notes


def _wave(value: str, stored: Stored, read: Callable[[Stored], Any]) -> tuple[tuple[int, int], int] | None:
    from vitconv.layout.arith import FLOATS, to_float
    from vitconv.layout.buffers import CLOSE
    from vitconv.layout.token_buffers import wave_of

    if stored.dtype not in FLOATS:
        return None
    slack = {"F16": 1e-3, "BF16": 1e-2}.get(stored.dtype, CLOSE)
    return wave_of(value, to_float(read(stored), stored.dtype, stored.shape), slack)


def _precision(
    value: str, grid: tuple[int, int], reference: int, stored: Stored, read: Callable[[Stored], Any]
) -> dict[str, str]:
    """Return the precision that waves stored in float64 were computed in, if it is less."""
    if stored.dtype != "F64":
        return {}
    import numpy as np

    from vitconv.layout.arith import to_float
    from vitconv.layout.token_buffers import angles

    held = to_float(read(stored), stored.dtype, stored.shape)
    exact = (np.cos if value == "rope-cos" else np.sin)(angles(grid, held.shape[-1], reference))
    if np.abs(held.reshape(exact.shape) - exact).max() < 1e-12:
        return {}
    return {"rope_precision": "float32" if (held == held.astype(np.float32)).all() else "float32-frequencies"}


def _base(
    match: Match, facts: Semantics, stored: Mapping[str, Stored], read: Callable[[Stored], Any]
) -> tuple[Semantics, list[str]]:
    """Fill in the base of stored periods base^(k/n), k = 0 to n - 1, and say when they have none."""
    from vitconv.layout.arith import FLOATS, to_float

    key = next((b.key for b in match.bound if "rope.periods" in b.parts), None)
    if key is None or stored[key].dtype not in FLOATS or facts.rope_theta is not None:
        return facts, []
    import numpy as np

    periods = to_float(read(stored[key]), stored[key].dtype, stored[key].shape).astype(np.float64)
    n = len(periods)
    if n < 2 or not (periods > 0).all():
        return facts, []
    slack = 2.0**-6 if stored[key].dtype in ("F16", "BF16") else 1e-5
    # Its last period is the least rounded root; a whole number is meant when it is as near.
    exact = float(periods[-1]) ** (n / (n - 1))
    for base in (100.0, float(round(exact)), exact):
        if np.allclose(periods, base ** (np.arange(n) / n), rtol=slack, atol=0):
            found = facts.filled({"rope_theta": base})
            return found, [] if base == 100.0 else [f"rope_theta: {base:g}, which the stored periods are of"]
    return facts, [f"{key} holds periods of no base: they were configured by the shortest and the longest"]


def _rounded_periods(match: Match, stored: Mapping[str, Stored]) -> list[str]:
    keys = [b.key for b in match.bound if "rope.periods" in b.parts and stored[b.key].dtype in ("BF16", "F16")]
    return [
        f"{key} is {stored[key].dtype}: the periods of the rotary positions are rounded, and every angle with them;"
        " code that makes them in float32 computes otherwise"
        for key in keys
    ]


def _said(wave: tuple[tuple[int, int], int]) -> str:
    return f"a grid of {_by(wave[0])} numbered to {wave[1]}"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _word(value: Any) -> str:
    return _by(value) if isinstance(value, tuple) else str(value)
