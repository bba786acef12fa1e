"""The same small piece of work on many things, by as many threads as there are processors for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

# The work is reading, and copies from memory: more threads than this wait for the same memory.
MOST = 4


def in_threads(work: Callable[[Item], object], items: Sequence[Item]) -> None:
    """Call `work` on every item, in any order; after the first error no further item is begun.

    Raises:
        whatever `work` raised first.
    """
    todo = iter(items)  # Of a list or tuple: taking the next one is safe between threads.
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for item in todo:
                if errors:
                    return
                work(item)
        except BaseException as error:
            errors.append(error)

    others = [threading.Thread(target=run, daemon=True) for _ in range(min(processors(), MOST, len(items)) - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
