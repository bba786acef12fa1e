"""Files of very many tensors: that they are no network is told by some of those whose names differ in numbers alone."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from vitconv.errors import Ambiguous, NotRecognised, VitconvError
from vitconv.io.source import Checkpoint

# No network has so many tensors, nor so many layers.
MANY = 20_000
ALIKE = 200
_NUMBER = re.compile(r"\d+")


def fewer(checkpoint: Checkpoint) -> Checkpoint | None:
    """Return a checkpoint of the first ALIKE of tensors of alike names, or None where none or few are left out."""
    if len(checkpoint.tensors) <= MANY:
        return None
    seen: Counter[tuple[object, ...]] = Counter()
    taken = []
    for t in checkpoint.tensors:
        kind = (t.path[:-1], _NUMBER.sub("#", t.key))
        seen[kind] += 1
        if seen[kind] <= ALIKE:
            taken.append(t)
    if 2 * len(taken) > len(checkpoint.tensors):
        return None
    some = copy.copy(checkpoint)
    some.tensors = tuple(taken)
    return some


def refuse_crowd(checkpoint: Checkpoint, recognise: Callable[[Checkpoint], Any]) -> None:
    """Raise NotRecognised for a file of very many tensors if those of it that stand for all are no network."""
    some = fewer(checkpoint)
    if some is None:
        return
    try:
        recognise(some)
    except Ambiguous:
        return
    except NotRecognised as e:
        rest = len(checkpoint.tensors) - len(some.tensors)
        raise NotRecognised(f"{e}\n  not looked at: {rest} more tensors, whose names differ in numbers alone") from e
    except VitconvError:
        # What is wrong with the rest may say more.
        return
