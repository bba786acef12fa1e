"""Keys that are in a training file and are no part of the network that is carried: left aside, and always said."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from vitconv.io.envelope import Branch
from vitconv.layout.match import collapse

# Heads that self-supervised training throws away: DINO and iBOT (head.mlp, last_layer), DINOv2 (dino_head, ibot_head),
# MoCo-v3 and SimSiam (predictor, projector), SwAV (projection_head, prototypes).
TRAINING_HEADS = re.compile(
    r"^(head\.(mlp|last_layer|projection_head|prototypes)\.|(dino|ibot|koleo)_head\.|predictor\.|projector\."
    r"|projection_head\.|prototypes\.)"
)


def without_training_heads(branch: Branch) -> Iterator[Branch]:
    """Yield the branch without the heads of self-supervised training, if it has any beside a network."""
    gone = [k for k in branch.tensors if TRAINING_HEADS.search(k)]
    if gone and len(gone) < len(branch.tensors):
        yield _without(branch, gone, "a head of self-supervised training, no part of the network, is left aside")


def without_dropped(branch: Branch, patterns: Sequence[str]) -> tuple[Branch, tuple[str, ...]]:
    """Return the branch without the keys that match `patterns`, and those patterns that matched."""
    from vitconv.layout.edits.drop import matches

    used = tuple(x for x in patterns if any(matches(x, k) for k in branch.tensors))
    gone = [k for k in branch.tensors if any(matches(x, k) for x in used)]
    return (_without(branch, gone, "dropped with your consent") if gone else branch), used


def _without(branch: Branch, gone: Sequence[str], why: str) -> Branch:
    left = set(gone)
    note = f"{why}: {', '.join(collapse(gone))}"
    return dataclasses.replace(
        branch,
        tensors={k: t for k, t in branch.tensors.items() if k not in left},
        note="; ".join(x for x in (branch.note, note) if x),
        left=(*branch.left, *gone),
    )
