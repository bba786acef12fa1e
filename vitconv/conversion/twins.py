"""The names that the tensors of a file have in the other epoch of their library: on disk, or in memory.

transformers 5 writes the names of 4.x to disk and holds others in memory; what is made of a live model, such as an
adapter of PEFT, has those.
"""

from __future__ import annotations

from collections.abc import Mapping

from vitconv.errors import VitconvError
from vitconv.io.tensor import Stored
from vitconv.layout.detect import detect
from vitconv.layout.network import decode
from vitconv.layout.plan import plan
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, folder_names, load

_EPOCH = "-5"


def twin_names(tensors: Mapping[str, Stored]) -> dict[str, str]:
    """Return {name in the other epoch: name here} of the tensors that are the same elements in the same order."""
    known = folder_names(DIALECTS)
    both = [n for n in known if n.endswith(_EPOCH) or f"{n}{_EPOCH}" in known]
    try:
        match = detect({key: t.shape for key, t in tensors.items()}, [load(DIALECTS, n) for n in both])
        name = match.dialect.name
        other = name.removesuffix(_EPOCH) if name.endswith(_EPOCH) else f"{name}{_EPOCH}"
        network = decode(match, {key: t.dtype for key, t in tensors.items()}, Semantics())
        targets = plan(match, network, load(DIALECTS, other)).targets
    except VitconvError:
        return {}
    found: dict[str, str] = {}
    for t in targets:
        if t.const is None and len(t.pieces) == 1:
            piece = t.pieces[0]
            here = tensors.get(piece.source)
            if here is not None and here.shape == t.shape and piece.run == piece.numel:
                found[t.key] = piece.source
    return found
