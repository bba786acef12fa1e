"""Signs that a set of weights has lost tensors, though a layout explains what is left of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from vitconv.conversion.asides import training_keys
from vitconv.errors import Ambiguous, Refused, shown
from vitconv.io.envelope import Branch
from vitconv.io.tensor import Stored
from vitconv.io.wrappers import names_copy
from vitconv.layout.match import Match, collapse
from vitconv.layout.network import FLOATS
from vitconv.layout.semantics import Semantics

_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?![A-Za-z\d])")
_FINAL_NORMS = {"norm.weight", "pool.norm.weight", "trunk_norm.weight", "norm_cls.weight"}
# Their encoders of pre-norm blocks have no final norm by default.
_NONE_BY_DEFAULT = {"torch", "xformers"}
# A class token; with a distillation token; with four registers.
_TOKENS = (1, 2, 5)
# Positions of which nobody wonders whether they are one row.
_FEW = 4
_ANCHORS = 8
# Trained gains lie around one, or well above zero; stored less one they lie around zero.
_LESS_ONE = 0.25
_WEIGHT = re.compile(r"(^|\.)(weight|bias)$")
# Containers of settings and of what was trained on, which may hold tensors too.
_SETTINGS = frozenset(
    ("args", "config", "cfg", "hyper_parameters", "hparams", "opt", "history", "log", "stats", "meta")
)

Read = Callable[[Stored], memoryview]


def lost_parts(match: Match, facts: Semantics) -> list[str]:
    """Return a warning for each part that networks of this kind have and this one has not."""
    names = {part for b in match.bound for part in b.parts}
    out = []
    pre = "pre" in _values(facts.norm_placement or match.variant.implies.get("norm_placement"))
    plain = match.dialect.family == "plain" and match.dialect.library not in _NONE_BY_DEFAULT
    if plain and pre and "blocks.0.norm1.weight" in names and not names & _FINAL_NORMS:
        out.append(
            "warning: there is no norm after the last block, which nearly every pre-norm network has: was it lost?"
        )
    n = match.sizes.get("n", 0)
    if "embed.pos" in names and "embed.cls" not in names and facts.grid is None and not _square(n):
        fewer = [n - k for k in _TOKENS if _square(n - k)]
        if fewer:
            out.append(
                f"warning: {n} positions make no square grid, {fewer[0]} beside {n - fewer[0]} for tokens would, and"
                " there is no class token: was it lost? --set grid=HxW says that it was not"
            )
        elif _prime(n):
            out.append(
                f"warning: {n} positions make no grid of several rows, {n - 1} beside one for a token might, and there"
                " is no class token: was it lost, or does the code add its row to all others (as ViTPose does)?"
                " --set grid=HxW says that it is neither"
            )
    return out


def refuse_shard(match: Match, told: Mapping[str, int]) -> None:
    """Refuse what looks like one shard of tensor parallelism: its attention is a fraction of the width.

    Every shape of such a shard is that of a narrower network.

    Raises:
        Refused: and nobody told the attention width.
    """
    a, d = match.sizes.get("a") or match.sizes.get("h", 0) * match.sizes.get("e", 0), match.sizes.get("d", 0)
    if match.dialect.name not in ("megatron", "transformer-engine") or "a" in told or not a or a >= d or d % a:
        return
    raise Refused(
        f"the attention is {a} wide and the network {d}: this looks like one of {d // a} shards of tensor parallelism,"
        f" which are to be joined first; say --axis a={a} if it is whole"
    )


def centred_norms(match: Match, stored: Mapping[str, Stored], read: Read) -> list[str]:
    """Return a warning when the norms' weights lie around zero in a layout whose code may store them less one.

    No key and no shape tells. The weights are read, of these layouts only.
    """
    if match.dialect.library not in ("megatron", "transformer_engine"):
        return []
    from vitconv.layout.arith import to_float
    from vitconv.layout.canonical import role_of

    norms = [b.key for b in match.bound if len(b.parts) == 1 and role_of(b.parts[0]) == "norm.weight"]
    means = sorted(
        float(to_float(read(t), t.dtype, t.shape).mean()) for key in norms if (t := stored[key]).dtype in FLOATS
    )
    middle = means[len(means) // 2] if means else 1.0
    if middle >= _LESS_ONE:
        return []
    told = f"the weights of the norms lie around {middle:.2g}: stored less one (layernorm_zero_centered_gamma)?"
    return [f"warning: {told} --edit add-one-to-norms puts it back"]


def _values(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ("pre", "post") if value is None else (value,)


def _prime(n: int) -> bool:
    return n > _FEW and all(n % k for k in range(2, math.isqrt(n) + 1))


def _square(n: int) -> bool:
    return n >= 4 and math.isqrt(n) ** 2 == n


def lost_beside(taken: Branch, chosen: Branch, others: Iterable[Branch]) -> list[str]:
    """Return a warning for each other copy of the network that holds more of it.

    Raises:
        Ambiguous: it holds layers that are not in the set that was taken.
    """
    forms = {_NUMBER.sub("#", key) for key in taken.tensors}
    out = []
    for other in others:
        extra = _extra(taken, chosen, other)
        deeper = [key for key in extra if _NUMBER.search(key) and _NUMBER.sub("#", key) in forms]
        if deeper:
            raise Ambiguous(
                f"{shown(chosen.name)} would be taken by default, but lacks layers that {shown(other.name)} holds:"
                f" {', '.join(collapse(deeper)[:4])}; say which is meant with --branch NAME"
            )
        if extra:
            out.append(
                f"warning: {shown(chosen.name)} lacks {', '.join(collapse(extra)[:4])}, which"
                f" {shown(other.name)} holds: was it saved in part?"
            )
    return out


def check_alike(taken: Branch, chosen: Branch, others: Iterable[Branch], read: Read) -> None:
    """Refuse to choose between two plain sets of one network that differ: no rule says which is meant.

    Raises:
        Ambiguous: there is such a set.
    """
    for other in others:
        names = _copy(taken, other)
        shared = [key for key in taken.tensors if key in names]
        if 10 * len(shared) < 9 * len(taken.tensors):
            continue
        if any(not _same(taken.tensors[key], other.tensors[names[key]], read) for key in shared):
            why = f" ({other.note})" if other.note else ""
            raise Ambiguous(
                f"two sets of weights of one network are in this file, {shown(chosen.name)} and"
                f" {shown(other.name)}, and no rule says which is meant{why}; say so with --branch NAME"
            )


def parts_elsewhere(taken: Branch, others: Iterable[Branch]) -> list[Branch]:
    """Return the other sets that are no copy of the network and no part of training: a classifier, another network."""
    return [
        other
        for other in others
        if not (_SETTINGS & set(other.name.split(".")))
        and any(_WEIGHT.search(key) and stored.dtype in FLOATS for key, stored in other.tensors.items())
        and not (names_copy(other.name) or _copy(taken, other))
        and not _of_training(other)
    ]


def _of_training(other: Branch) -> bool:
    keys = [f"{name}.{key}" for name in other.name.split(".")[-1:] for key in other.tensors]
    rest = set(keys) - set(training_keys(other, keys))
    inner = {f"{other.name.rpartition('.')[2]}.{key}" for key in training_keys(other)}
    return not rest - inner


def _same(one: Stored, two: Stored, read: Read) -> bool:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    return (one.blob, one.start, one.strides) == (two.blob, two.start, two.strides) or read(one) == read(two)


def _extra(taken: Branch, chosen: Branch, other: Branch) -> list[str]:
    """Return the keys of `other`, as the taken set calls them, that are missing; none when it is no copy."""
    held = _copy(taken, other)
    extra = [key for key in held if key not in taken.tensors]
    training = {*training_keys(other, extra), *(key for key in extra if any(k.endswith(key) for k in chosen.tensors))}
    return [key for key in extra if key not in training]


def _copy(taken: Branch, other: Branch) -> dict[str, str]:
    """Return the keys of another copy of a network, by the name each has in the one taken."""
    anchors = sorted(taken.tensors, key=len)[-_ANCHORS:]
    prefixes = {key.removesuffix(a) for a in anchors for key in other.tensors if f".{key}".endswith(f".{a}")}
    best: dict[str, str] = {}
    for prefix in prefixes:
        names = {key.removeprefix(prefix): key for key in other.tensors if key.startswith(prefix)}
        if sum(key in names for key in taken.tensors) > sum(key in best for key in taken.tensors):
            best = names
    shared = [key for key in taken.tensors if key in best]
    return best if 2 * len(shared) > len(taken.tensors) else {}
