"""Look at a checkpoint: what it is, what it holds, what it does not say; its health on request."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitconv.conversion.backbone import backbone_hash, heads_of
from vitconv.conversion.crowd import fewer
from vitconv.conversion.facts import Wishes
from vitconv.conversion.recognise import Recognised, recognise_open
from vitconv.errors import NotRecognised, Refused
from vitconv.io.envelope import Branch, branches
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass


@dataclass(frozen=True)
class BranchInfo:
    """One set of tensors in the file.

    `distance` is the relative distance ||here - first|| / ||first|| over the tensors both have, None when not measured.
    """

    name: str
    tensors: int
    elements: int
    taken: bool
    steps: tuple[str, ...]
    distance: float | None = None


@dataclass(frozen=True)
class Health:
    """What reading every element found, by key: NaN and Inf counts, all-zero and constant tensors, and the verdict."""

    nan: Mapping[str, int]
    inf: Mapping[str, int]
    zero: tuple[str, ...]
    constant: tuple[str, ...]
    fresh: str = ""


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        path / format / files / nbytes: the file(s); `nbytes` is tensor data of the branch taken.
        branches: every set of tensors, the one taken first.
        dtypes: {dtype: number of tensors} of the branch taken.
        recognised: the dialect, variant, sizes and facts, or None; `problem` then says why, with exit code.
        unknown_facts: facts that nothing states.
        health: None unless asked for.
        heads: which heads stand on the backbone, in words; "" when nothing was recognised.
        backbone: SHA-256 of all but the heads, the same in every layout; "" unless health was asked for.
    """

    path: Path
    format: str
    files: tuple[Path, ...]
    nbytes: int
    elements: int
    branches: tuple[BranchInfo, ...]
    dtypes: Mapping[str, int]
    metadata: Mapping[str, str]
    foreign: tuple[str, ...]
    notes: tuple[str, ...]
    recognised: Recognised | None = None
    problem: NotRecognised | Refused | None = None
    unknown_facts: tuple[str, ...] = ()
    health: Health | None = None
    heads: str = ""
    backbone: str = ""

    @property
    def exit_code(self) -> int:
        """0 when recognised, else the code of the problem."""
        return self.problem.exit_code if self.problem else 0


def inspect(path: str | Path, wishes: Wishes | None = None, *, health: bool = False) -> Inspection:
    """Inspect a checkpoint; only headers are read unless `health` is asked for.

    Raises:
        UsageError: no such file, or an unknown wish.
        BadFile: the file cannot be read safely.
    """
    wishes = wishes or Wishes()
    with open_checkpoint(path, ignore_index=wishes.ignore_index) as checkpoint:
        recognised: Recognised | None = None
        problem: NotRecognised | Refused | None = None
        try:
            recognised = recognise_open(checkpoint, wishes)
        except (NotRecognised, Refused) as e:
            problem = e
        # What is no network for some of very many tensors has the branches that these have.
        some = None if recognised or health else fewer(checkpoint)
        found = branches(some or checkpoint)
        taken = _taken(found, recognised, wishes)
        tensors = list(recognised.stored.values()) if recognised else list(taken.tensors.values()) if taken else []
        tensors = list(checkpoint.tensors) if some else tensors
        infos = tuple(_info(b, taken, checkpoint, measure=health) for b in found)
        return Inspection(
            path=Path(path),
            format=checkpoint.format,
            files=checkpoint.files,
            nbytes=sum(t.nbytes for t in tensors),
            elements=sum(t.numel for t in tensors),
            branches=tuple(sorted(infos, key=lambda b: not b.taken)),
            dtypes=dict(Counter(t.dtype for t in tensors)),
            metadata=checkpoint.metadata,
            foreign=checkpoint.foreign,
            notes=recognised.notes if recognised else checkpoint.notes,
            recognised=recognised,
            problem=problem,
            unknown_facts=_unknown(recognised),
            health=examine(checkpoint, taken) if health and taken else None,
            heads=heads_of(recognised) if recognised else "",
            backbone=backbone_hash(recognised) if recognised and health else "",
        )


def _taken(found: list[Branch], recognised: Recognised | None, wishes: Wishes) -> Branch | None:
    name = recognised.branch.name if recognised else wishes.branch
    return next((b for b in found if b.name == name), found[0] if found else None)


def _unknown(r: Recognised | None) -> tuple[str, ...]:
    if r is None:
        return ()
    known = set(r.facts.known()) | {k for k, v in r.match.variant.implies.items() if not isinstance(v, tuple)}
    plain = r.match.dialect.family == "plain"
    sizes = ("heads", "grid") if plain else ("stage_heads", "image_size", *_of_windows(r))
    wanted = (*sizes, "norm_eps", "activation", "norm_placement", "kv_normalised", "pooling")
    return tuple(f.name for f in dataclasses.fields(Semantics) if f.name in wanted and f.name not in known)


def _of_windows(r: Recognised) -> tuple[str, ...]:
    """Return the facts of windows that this network of stages computes with."""
    names = [name for b in r.match.bound for name in b.parts]
    if any(name.endswith(".attn.logit_scale") for name in names):
        return ("window", "pretrained_window")
    return ("window",) if any(name.endswith(".attn.table") for name in names) else ()


def _info(b: Branch, taken: Branch | None, checkpoint: Checkpoint, *, measure: bool) -> BranchInfo:
    first = taken or b
    distance = _distance(checkpoint, first, b) if measure and b.name != first.name else None
    steps = tuple(f"{s.kind} {s.text}" for s in b.steps)
    return BranchInfo(
        b.name, len(b.tensors), sum(t.numel for t in b.tensors.values()), b.name == first.name, steps, distance
    )


def _floats(checkpoint: Checkpoint, b: Branch) -> Iterator[tuple[str, Any]]:
    from vitconv.layout.arith import to_float
    from vitconv.layout.network import FLOATS

    for key, t in b.tensors.items():
        if t.dtype in FLOATS and t.numel:
            yield key, to_float(checkpoint.read(t), t.dtype, t.shape)


def _distance(checkpoint: Checkpoint, a: Branch, b: Branch) -> float | None:
    import numpy as np

    other = dict(_floats(checkpoint, b))
    gap = norm = 0.0
    shared = 0
    for key, x in _floats(checkpoint, a):
        y = other.get(key)
        if y is not None and y.shape == x.shape:
            shared += 1
            gap += float(np.sum((x.astype(np.float64) - y) ** 2))
            norm += float(np.sum(x.astype(np.float64) ** 2))
    return (gap / norm) ** 0.5 if shared and norm else None


def examine(checkpoint: Checkpoint, b: Branch) -> Health:
    """Read every float tensor of a branch and count what should not be there."""
    import numpy as np

    nan: dict[str, int] = {}
    inf: dict[str, int] = {}
    zero: list[str] = []
    constant: list[str] = []
    biases = trained = 0
    for key, x in _floats(checkpoint, b):
        if n := int(np.isnan(x).sum()):
            nan[key] = n
        if n := int(np.isinf(x).sum()):
            inf[key] = n
        flat = bool((x == x.flat[0]).all()) and x.size > 1
        if flat and x.flat[0] == 0:
            zero.append(key)
        elif flat:
            constant.append(key)
        if x.ndim == 1:
            biases += 1
            trained += not flat
    fresh = ""
    if biases and trained * 10 <= biases:
        # Some libraries draw the bias of the patch projection, and nothing else that is a vector.
        fresh = "every vector (norms, biases) is constant, as at initialisation: this looks never trained"
        fresh = fresh.replace("every", "nearly every") if trained else fresh
    return Health(nan, inf, tuple(zero), tuple(constant), fresh)
