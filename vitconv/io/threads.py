"""The same small piece of work on many things, by as many threads as there are processors for it."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

# The work is reading, and copies from memory: more threads than this wait for the same memory.
MOST = 4
NAME = "vitconv-worker"


def in_threads(work: Callable[[Item], object], items: Iterable[Item], most: int = MOST) -> None:
    """Call `work` on every item, in any order, from at most `most` threads, of which the calling one is the first.

    Items are taken in order, by one thread at a time, so that they may be made on the way. After the first error no
    further item is begun, and all threads have ended when this returns, also when it is interrupted.

    Raises:
        whatever `work` or the making of an item raised first.
    """
    todo = iter(items)
    taking = threading.Lock()
    errors: list[BaseException] = []
    none = object()

    def run() -> None:
        try:
            while not errors:
                with taking:
                    item = next(todo, none)
                if item is none:
                    return
                work(item)  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)

    count = min(processors(), most, operator.length_hint(items, most)) - 1
    others = [threading.Thread(target=run, name=NAME, daemon=True) for _ in range(count)]
    try:
        for thread in others:
            thread.start()
        run()
        for thread in others:
            thread.join()
    except BaseException as error:
        errors.insert(0, error)
    finally:
        for thread in others:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
