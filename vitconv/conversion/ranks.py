"""The processes that torchrun started, when a conversion runs in several of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from vitconv.errors import Refused, UsageError, VitconvError

T = TypeVar("T")


class Ranks:
    """This process's number, how many there are, and the group they speak through."""

    def __init__(self, group: Any, *, ours: bool) -> None:
        import torch.distributed as dist

        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.group = group
        self.ours = ours

    @property
    def first(self) -> bool:
        """Say whether this process speaks for all."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def told(self, value: Any) -> Any:
        """Return what the first process has."""
        return self.gather(value if self.first else None)[0]

    def together(self, do: Callable[[], T]) -> T:
        """Do something on every process, and fail on all when it fails on one.

        Raises:
            VitconvError: this process's own error, or Refused with that of another.
        """
        error: VitconvError | None = None
        value: Any = None
        try:
            value = do()
        except VitconvError as caught:
            error = caught
        except OSError as caught:
            error = Refused(f"{caught.filename or 'a file'}: {caught.strerror or caught}")
        texts = self.gather(None if error is None else str(error))
        if error is not None:
            raise error
        bad = [f"process {rank}: {text}" for rank, text in enumerate(texts) if text is not None]
        if bad:
            raise Refused(bad[0])
        return value  # type: ignore[no-any-return]

    def share(self, sizes: list[int]) -> list[int]:
        """Return the indexes of the parts that are this process's: the largest first, each to who has least."""
        loads = [0] * self.size
        mine: list[int] = []
        for index in sorted(range(len(sizes)), key=lambda j: (-sizes[j], j)):
            least = loads.index(min(loads))
            loads[least] += sizes[index]
            if least == self.rank:
                mine.append(index)
        return sorted(mine)

    def close(self) -> None:
        """Leave the group, if it was made here."""
        if self.ours:
            import torch.distributed as dist

            # Whoever leaves first would break off what the others still have to say.
            with contextlib.suppress(RuntimeError):
                self.gather(None)
            # A group that is still held when Python ends takes the process down with it.
            self.group = None
            dist.destroy_process_group()


def ranks_here() -> Ranks | None:
    """Join the other processes of torchrun; None when there is only this one.

    Raises:
        UsageError: the environment speaks of several processes, and they cannot be reached.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("several processes were started (WORLD_SIZE), and this torch has no torch.distributed")
    ours = not dist.is_initialized()
    try:
        if ours:
            dist.init_process_group("gloo")
        group = dist.group.WORLD if ours else dist.new_group(backend="gloo")
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the other processes cannot be reached: {str(error).splitlines()[0]}") from error
    return Ranks(group, ours=ours)
