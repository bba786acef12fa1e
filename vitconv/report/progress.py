"""A progress bar on stderr for work that takes long, and nothing at all elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 0.5


@contextmanager
def progress_bar(label: str, *, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told (bytes done, bytes in all) as work goes on.

    A bar appears when the work has gone on for half a second and the stream, stderr unless given, is a
    terminal; short work and logs see nothing, and rich is imported only then.
    """
    stream = stream if stream is not None else sys.stderr
    if not stream.isatty():
        yield lambda done, total: None
        return
    started = time.monotonic()
    bars: list[Progress] = []

    def told(done: int, total: int) -> None:
        if not bars:
            if time.monotonic() - started < PATIENCE_S or done >= total:
                return
            bar = _bar(stream)
            if bar is None:
                return
            bar.start()
            bar.add_task(label, total=total)
            bars.append(bar)
        bars[0].update(bars[0].task_ids[0], completed=done, total=total)

    try:
        yield told
    finally:
        for bar in bars:
            bar.stop()


def _bar(stream: TextIO) -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
