"""The checks against one forward and backward pass, and the audit of a file against reading it, in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from vitconv.checks.base.context import Context
from vitconv.checks.base.passes import loss_of
from vitconv.checks.base.run import chosen, run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.initialise.audit import audit_file
from vitconv.initialise.network import Job
from vitconv.initialise.write import initialise
from vitconv.io.source import open_checkpoint


@dataclass(frozen=True)
class Spent:
    """Seconds of processor time of one round, and of the baseline right beside it."""

    own: float
    base: float

    @property
    def ratio(self) -> float:
        """Return own / base."""
        return self.own / self.base


@dataclass(frozen=True)
class Measured:
    """What the benchmark found.

    Attributes:
        checks: {check: seconds of processor time}, of the round whose sum is the median.
        statics: one entry per round: all static checks, against one forward and backward pass of the same batch.
        audits: one entry per round: the audit of a file, against reading its tensors one by one, each into the memory
            of the one before.
        whole: the same, against reading the file into memory at once.
    """

    checks: dict[str, float]
    statics: tuple[Spent, ...]
    audits: tuple[Spent, ...]
    whole: tuple[Spent, ...]


def bench(size: str, file_size: str, folder: Path, repeat: int) -> Measured:
    """Measure the static checks of a network by name, and the audit of a file that is drawn in `folder`.

    In one thread: torch's threads that wait for each other spend processor time too, on a busy machine most of it.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(size, file_size, folder, repeat)
    finally:
        torch.set_num_threads(threads)


def _measured(size: str, file_size: str, folder: Path, repeat: int) -> Measured:
    rounds: list[tuple[Spent, dict[str, float]]] = []
    for _ in range(repeat):
        # Anew each time: what the checks share is worked out once per context.
        context = context_of(size, Wanted())
        _pass(context)
        before = _spent(partial(_pass, context))
        parts = {check.id: _spent(partial(run_one, context, check)) for check in chosen()}
        after = _spent(partial(_pass, context))
        rounds.append((Spent(sum(parts.values()), (before + after) / 2), parts))
    path = folder / f"{file_size}.safetensors"
    initialise(file_size, path, Job("timm", to="timm"))
    # Once ahead, so that the file is in memory and torch is warm.
    audit_file(path)
    audits, whole = [], []
    for _ in range(repeat):
        own = _spent(partial(audit_file, path))
        audits.append(Spent(own, _spent(partial(_read, path))))
        whole.append(Spent(own, _spent(path.read_bytes)))
    rounds.sort(key=lambda r: r[0].ratio)
    return Measured(rounds[len(rounds) // 2][1], tuple(s for s, _ in rounds), tuple(audits), tuple(whole))


def typical(spent: tuple[Spent, ...]) -> float:
    """Return the median ratio."""
    return median(s.ratio for s in spent)


def _pass(context: Context) -> None:
    """Run forward and backward once, as the training would."""
    built = context.network
    images, labels = context.data.batch(context.plan.batch)
    built.module.zero_grad(set_to_none=True)
    loss_of(built.run(built.module, images), labels).backward()
    built.module.zero_grad(set_to_none=True)


def _read(path: Path) -> None:
    """Read the file tensor by tensor, each into the same memory: of all that copy it, nothing is faster."""
    with open_checkpoint(path) as checkpoint:
        memory = memoryview(bytearray(max(stored.nbytes for stored in checkpoint.tensors)))
        for stored in checkpoint.tensors:
            checkpoint.read_into(stored, memory)


def _spent(work: Callable[[], object]) -> float:
    """Return the seconds of processor time: on a machine that others use, the wall clock is theirs too."""
    started = time.process_time()
    work()
    return time.process_time() - started
