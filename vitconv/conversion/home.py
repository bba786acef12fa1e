"""What a converted file came from: on the way back to that layout, names and buffers are those it had there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vitconv.conversion.recognise import Recognised
from vitconv.layout.chunks import CHUNKS, chunks_of
from vitconv.layout.dialect import Dialect
from vitconv.record import dataclass

# In the metadata of an output.
SOURCE = "vitconv.source"


@dataclass(frozen=True)
class Home:
    """Options of a layout that a file once had, and the sizes that they need."""

    options: Mapping[str, str]
    axes: Mapping[str, int]


def said_of(source: Recognised) -> str:
    """Return what an output says of the file it was made from, as JSON."""
    chunks = chunks_of(t.key for t in source.stored.values())
    said: dict[str, Any] = {
        "dialect": source.match.dialect.name,
        "variant": source.match.variant.names,
        "header": source.checkpoint.digest,
        "branch": source.branch.name,
        "envelope": [[s.kind, s.text] for s in source.branch.steps],
    }
    return json.dumps({**said, CHUNKS: chunks} if chunks else said, separators=(",", ":"))


def home_of(source: Recognised, target: Dialect) -> Home:
    """Return how the target had the network, if the file was made from one of it; nothing where it was not."""
    try:
        said = json.loads(source.checkpoint.metadata.get(SOURCE, "{}"))
        if said.get("dialect") != target.name:
            return Home({}, {})
        count = int(said.get(CHUNKS, 0))
        return Home({str(k): str(v) for k, v in dict(said.get("variant", {})).items()}, {CHUNKS: count})
    except (ValueError, TypeError, AttributeError):
        return Home({}, {})
