"""Measure whole processes: wall clock, processor time and peak memory, from fork to reap."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What one process cost: wall clock and processor seconds, peak resident memory in bytes."""

    wall: float
    cpu: float
    memory: int


@dataclass(frozen=True)
class Timing:
    """Repeated runs of one command."""

    name: str
    costs: tuple[Cost, ...]

    @property
    def best(self) -> float:
        """Return the fastest wall clock, in seconds: the least disturbed run."""
        return min(c.wall for c in self.costs)

    @property
    def median(self) -> float:
        """Return the median wall clock, in seconds."""
        return statistics.median(c.wall for c in self.costs)

    @property
    def memory(self) -> int:
        """Return the largest peak memory, in bytes."""
        return max(c.memory for c in self.costs)


def run(command: Sequence[str], env: dict[str, str] | None = None) -> Cost:
    """Run one command and return its cost.

    Raises:
        RuntimeError: it failed; the message has its last output.
    """
    # An installed package has its bytecode; without it, a tenth of a second of every run would be compiling.
    env = {k: v for k, v in (os.environ if env is None else env).items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.monotonic()
    # The commands are this benchmark's own.
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = output.decode(errors="replace").strip().splitlines()[-8:]
        raise RuntimeError(f"{command[0]} ... failed with exit code {process.returncode}:\n" + "\n".join(tail))
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def rounds(
    jobs: dict[str, Callable[[Path], Sequence[str]]], folder: Path, repeat: int, env: dict[str, str] | None = None
) -> dict[str, Timing]:
    """Run every job `repeat` times, in turn, each time to a fresh name, and return {job: timing}.

    Interleaving makes a ratio of two jobs fair on a machine that is not quiet; the output is removed, and the
    disk's queue emptied, before the next job starts.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    for r in range(repeat):
        for name, job in jobs.items():
            out = folder / f"{name.replace(' ', '-').replace('/', '-')}-{r}.safetensors"
            os.sync()
            costs[name].append(run(job(out), env))
            out.unlink(missing_ok=True)
    return {name: Timing(name, tuple(c)) for name, c in costs.items()}
