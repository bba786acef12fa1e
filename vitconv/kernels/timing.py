"""Time a call on a card by events, or on the CPU by the clock.

On a card the host may hand over a call more slowly than the card runs it: then two events measure the host. So calls
are queued in batches behind a pause of the card, long enough for the host to hand over the whole batch, and the host's
own time stands beside the card's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

# More than the last-level cache of any current GPU, so that rotating buffers cannot be served from it.
CACHE = 180 * 2**20
# A card's queue holds about a thousand launches of some five microseconds each; a batch stays below that.
QUEUE_SECONDS = 3e-3
# Clock cycles per second of a pause: no current card runs faster, and on a slower one the pause is longer.
CYCLES = 2e9


class Times(NamedTuple):
    """Hold the times of single calls in microseconds, sorted, and the host's time to hand one over."""

    samples: list[float]
    host: float

    @property
    def median(self) -> float:
        """Return the median in microseconds."""
        return statistics.median(self.samples)


def measure(call: Callable[[], object], device: torch.device, budget: float) -> Times:
    """Time a call repeatedly, for about `budget` seconds on a card, three times on a CPU."""
    call()
    return _on_card(call, budget) if device.type == "cuda" else _on_host(call)


def _on_host(call: Callable[[], object]) -> Times:
    samples = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    return Times(sorted(samples), statistics.median(samples))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _on_card(call: Callable[[], object], budget: float) -> Times:
    # What compiles, picks an algorithm or asks the card for memory does so here.
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        call()
    host = (time.perf_counter() - start) / 3
    torch.cuda.synchronize()
    whole = (time.perf_counter() - start) / 3
    repeats = max(10, min(200, int(budget / max(whole, 1e-6))))
    batch = max(1, min(repeats, int(QUEUE_SECONDS / max(host, 1e-6))))
    samples: list[float] = []
    while len(samples) < repeats:
        events = [(_event(), _event()) for _ in range(batch)]
        # Not public, and what torch's own benchmarks pause a card with.
        torch.cuda._sleep(int(1.5 * host * batch * CYCLES))  # noqa: SLF001
        for before, after in events:
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        samples += [before.elapsed_time(after) * 1e3 for before, after in events]
    return Times(sorted(samples), host * 1e6)


def rotating(make: Callable[[], Sequence[Any]], nbytes: int, device: torch.device) -> Callable[[], Any]:
    """Return a function that hands out ready inputs in turn, enough of them to overflow the cache of a card."""
    count = max(1, min(8, -(-CACHE // max(1, nbytes)))) if device.type == "cuda" else 1
    pool, turn = [make() for _ in range(count)], [0]

    def take() -> Any:
        turn[0] = (turn[0] + 1) % count
        return pool[turn[0]]

    return take
