"""Write the state of the target's optimizer, by parameter names, as torch's own tools load it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.home import SOURCE
from vitconv.conversion.moments import Moments, check_written, moments, open_optimizer, read_names
from vitconv.conversion.place import where
from vitconv.errors import Refused, VitconvError
from vitconv.io.atomic import replacing
from vitconv.io.header import Out
from vitconv.io.source import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from vitconv.conversion.convert import Done, Progress
    from vitconv.conversion.prepare import Prepared

NAME = "optimizer.pt"
TREE = "optim"


@contextlib.contextmanager
def optimizer_of(prepared: Prepared) -> Iterator[Moments | None]:
    """Give the target's optimizer state while the files it is read from are open; None when it was not asked for.

    Raises:
        VitconvError: see `open_optimizer` and `moments`.
    """
    order = prepared.order
    if not order.optimizer:
        yield None
        return
    told = None if order.optimizer_names is None else read_names(order.optimizer_names)
    state, checkpoint = open_optimizer(prepared.source, order.optimizer_from)
    try:
        made = moments(prepared, state, checkpoint, told)
        check_written({t.key for t in prepared.plan.targets}, made)
        yield made
    finally:
        if checkpoint is not prepared.source.checkpoint:
            checkpoint.close()


def place_for(file: Path, folder: Path | None, source: Checkpoint) -> Path:
    """Return where the optimizer goes beside the weights: `optimizer.pt` in a folder, else `NAME.optimizer.pt`.

    One that is there is replaced together with weights beside it that were made of the same source: a conversion that
    is run again, with a fact more.

    Raises:
        Refused: there is one already, beside no weights or others.
    """
    path = folder / NAME if folder is not None else file.with_name(f"{file.stem}.{NAME}")
    if path.exists() and not _made_of(source, file):
        raise Refused(f"{path} is there already, the state of another optimizer; choose another name or remove it")
    return path


def _made_of(source: Checkpoint, file: Path) -> bool:
    """Say whether the weights at the output's place came from the source in an earlier conversion."""
    # A folder of shards is never written into again.
    try:
        there = open_checkpoint(file)
        with contextlib.closing(there):
            return bool(json.loads(there.metadata[SOURCE])["header"] == source.digest)
    except (VitconvError, KeyError, TypeError, ValueError):
        return False


def write_optimizer(path: Path, made: Moments, *, durable: bool = True) -> Path:
    """Write the state by torch.save: {"state": {name: {...}}, "param_groups": [...]}, all parameters by name.

    `torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(model, optimizer, torch.load(path))` puts it into
    an optimizer of any grouping and order.
    """
    import torch

    from vitconv.io.dcp_write import tensor_of

    state: dict[str, dict[str, Any]] = {}
    for (key, name), value in made.numbers.items():
        state.setdefault(key, {})[name] = _counter(value)
    for (key, name), out in made.tensors.items():
        state.setdefault(key, {})[name] = tensor_of(out)
    with replacing(path, durable=durable) as fd, open(fd, "wb", closefd=False) as stream:
        torch.save({"state": state, "param_groups": param_groups(made)}, stream)
    return path


def param_groups(made: Moments) -> list[dict[str, Any]]:
    """Return the groups as torch keeps them, parameters by name; groups that nothing is left of are left out."""
    return [
        # torch's betas are a tuple; a pickle walked without running it gives lists.
        {**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}, "params": list(names)}
        for settings, names in made.groups
        if names
    ]


def trees(made: Moments) -> dict[tuple[str, ...], Out]:
    """Return the tensors for a distributed checkpoint: {("optim", "state", name, state name): output}."""
    found: dict[tuple[str, ...], Out] = {}
    found |= {(TREE, "state", key, name): out for (key, name), out in made.tensors.items()}
    for (key, name), value in made.numbers.items():
        tensor = _counter(value)
        data = tensor.numpy().tobytes()
        dtype = {"torch.float32": "F32", "torch.float64": "F64", "torch.int64": "I64"}[str(tensor.dtype)]
        path = (TREE, "state", key, name)
        found[path] = Out(".".join(path), dtype, tuple(tensor.shape), partial(iter, (data,)))
    return found


def _counter(value: object) -> Any:
    """Return a counter such as `step` as the tensor that torch keeps; plain numbers become float32."""
    import torch

    if isinstance(value, tuple):
        dtype, data, shape = value
        kind = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}.get(dtype, torch.float32)
        if dtype not in ("F32", "F64", "I64"):
            raise Refused(f"a counter of the optimizer is {dtype}; expected F32, F64 or I64")
        return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    return torch.tensor(float(value), dtype=torch.float32)  # type: ignore[arg-type]


def write_with_optimizer(prepared: Prepared, dst: Path, *, progress: Progress | None = None) -> Done:
    """Write a prepared conversion and, beside it, the state of the optimizer; nothing when that cannot be carried.

    Raises:
        VitconvError: see `write` and `moments`.
    """
    from vitconv.conversion.convert import write

    file, folder = where(dst, sharded=prepared.order.shard_bytes is not None)
    path = place_for(file, folder, prepared.source.checkpoint)
    with optimizer_of(prepared) as made:
        assert made is not None
        done = write(prepared, dst, progress=progress)
        write_optimizer(path, made, durable=prepared.order.sync)
    return replace(done, files=(*done.files, path), notes=(*done.notes, *made.notes))
