"""Weights of a checkpoint as canonical tensors, and what the file says about its function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitconv.conversion.facts import Wishes
from vitconv.conversion.recognise import recognise
from vitconv.errors import Refused, UsageError
from vitconv.layout.network import decode
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import DTYPES, Bridge


@dataclass(frozen=True)
class Weights:
    """Canonical weights and where they come from.

    Attributes:
        origin: the file, or in words.
        tensors: {canonical name: tensor} as stored, bit for bit.
        dialect: the dialect of the file, or "canonical".
        facts: what is known about the function.
        sources: {fact: where it comes from}.
        sizes: {axis: size}; depth is the number of blocks.
        digest: sha256 of the file's header, or "".
    """

    origin: str
    tensors: Mapping[str, Tensor]
    dialect: str
    facts: Semantics
    sources: Mapping[str, str]
    sizes: Mapping[str, int]
    depth: int
    digest: str = ""
    notes: tuple[str, ...] = ()


def load_weights(path: str | Path, wishes: Wishes | None = None) -> Weights:
    """Read a checkpoint's weights.

    Raises:
        UsageError / BadFile / NotRecognised / Refused: as `vitconv.conversion.recognise.recognise`.
        Refused: the file's configuration says that it cannot be carried, or it holds a dtype torch lacks.
    """
    found = recognise(path, wishes)
    with found.checkpoint:
        if found.refusals:
            raise Refused(f"{path} cannot be carried: {'; '.join(found.refusals)}")
        tensors: dict[str, Tensor] = {}
        for key, stored in found.stored.items():
            if stored.dtype not in DTYPES:
                raise Refused(f"{path}: {key} is {stored.dtype}, which torch has not")
            data = bytearray(found.checkpoint.read(stored))
            flat = torch.frombuffer(data, dtype=DTYPES[stored.dtype]) if data else torch.empty(0)
            tensors[key] = flat.view(stored.shape)
        network = decode(found.match, found.dtypes, found.facts)
        return Weights(
            origin=str(path),
            tensors=Bridge(found.match, network).read(tensors),
            dialect=found.match.dialect.name,
            facts=network.facts,
            sources=found.sources,
            sizes=found.match.sizes,
            depth=found.match.depth,
            digest=found.checkpoint.digest,
            notes=found.notes,
        )


def given(bridge: Bridge, tensors: Mapping[str, Tensor], origin: str) -> Weights:
    """Return the weights that a live network has."""
    match = bridge.match
    facts = bridge.network.facts
    return Weights(origin, bridge.read(tensors), match.dialect.name, facts, {}, match.sizes, match.depth)


def check_file(path: str) -> Path:
    """Return the path, or raise UsageError when there is nothing."""
    if not Path(path).exists():
        raise UsageError(f"{path}: no such file or folder")
    return Path(path)
