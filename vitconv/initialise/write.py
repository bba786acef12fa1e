"""Draw a network by role and write it in a dialect."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconv.conversion.convert import Done, convert
from vitconv.conversion.facts import FACTS, Wishes
from vitconv.conversion.prepare import Order, Prepared
from vitconv.errors import UsageError
from vitconv.initialise.network import Job, architecture
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.change import changed
from vitconv.inits.base.deepnet import bound
from vitconv.inits.base.distribution import Distribution
from vitconv.inits.base.draw import sample, seed_of
from vitconv.inits.base.scheme import Scheme
from vitconv.io.sink import Out, write_file
from vitconv.registry import DIALECTS, INITS, load


@dataclass(frozen=True)
class Initialised:
    """What was written.

    Attributes:
        arch: the network.
        declared: {canonical name: distribution}.
        stds: {canonical name: std of the values drawn}.
        changes: what was changed in the architecture, in sentences.
        notes: what to know before training.
        bound: DeepNet's bound of the values drawn, of a post-norm stack.
    """

    scheme: Scheme
    arch: Architecture
    declared: Mapping[str, Distribution]
    stds: Mapping[str, float]
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    bound: float | None
    prepared: Prepared
    done: Done


def initialise(
    what: str, out: str | Path, job: Job, *, progress: Callable[[int, int], None] | None = None
) -> Initialised:
    """Draw the network by role and write it in the target dialect.

    The canonical tensors are drawn first and then converted, so the network is the same in every dialect, bit for bit.

    Raises:
        Refused: the scheme does not go with the network, or the target dialect has no place for a tensor.
        UsageError: as `architecture`.
    """
    scheme: Scheme = load(INITS, job.scheme)
    arch, own = architecture(what, job)
    to = job.to or own
    load(DIALECTS, to)
    arch, changes = changed(arch, job.changes)
    notes = scheme.check(arch)
    declared = scheme.declared(arch)
    stds: dict[str, float] = {}
    family = "canonical-stages" if arch.staged else "canonical"
    order = Order(
        to=to,
        wishes=Wishes(from_=family, facts=arch.facts.known(), axes=job.source.axes),
        choices=job.choices,
        dtype=job.dtype,
    )
    place = Path(out).absolute().parent
    if not place.is_dir():
        raise UsageError(f"the folder {place} does not exist")
    with tempfile.TemporaryDirectory(prefix=".vitconv-init-", dir=place) as folder:
        drawn = Path(folder) / "drawn.safetensors"
        record = json.dumps({"scheme": scheme.name, "seed": job.seed, "network": Path(what).name})
        metadata = {"format": "pt", FACTS: arch.facts.to_json(), "init": record}
        write_file(drawn, _outs(arch, declared, job.seed, stds), metadata, durable=False)
        prepared, done = convert(drawn, out, order, progress=progress)
    found = bound(arch, stds)
    return Initialised(scheme, arch, declared, stds, changes, notes, found, prepared, done)


def _outs(arch: Architecture, declared: Mapping[str, Distribution], seed: int, stds: dict[str, float]) -> list[Out]:
    def chunks(name: str, shape: tuple[int, ...]) -> Callable[[], Iterable[Any]]:
        def drawn() -> Iterable[Any]:
            value = sample(declared[name], shape, seed_of(seed, name))
            stds[name] = float(value.double().std(correction=0)) if value.numel() else 0.0
            return [memoryview(value.numpy()).cast("B")]

        return drawn

    return [Out(name, "F32", tuple(shape), chunks(name, tuple(shape))) for name, shape in arch.shapes.items()]
