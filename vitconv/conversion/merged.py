"""A checkpoint with a LoRA adapter merged into it: W + B A times its scale, computed when the tensor is read.

DoRA gives the rows of that sum the norms that the adapter holds (Liu et al., 2024, equation 5).

The rule of dtypes: W, A and B are widened to float64, the sum is taken there, and rounded once, to nearest even, to the
dtype of W. PEFT multiplies in the adapter's dtype and adds in that of W, which rounds up to three times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitconv.conversion.adapter import PREFIX, WEIGHTS, Adapter, Config, adapter_of, is_adapter_key, read_config, split
from vitconv.errors import Refused, UsageError, shown
from vitconv.io.envelope import Branch, branches
from vitconv.io.segment import Segment
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import Blob, Stored
from vitconv.layout.arith import FLOATS, from_float, to_float
from vitconv.layout.match import collapse

_SAVED = re.compile(rf"(?:{re.escape(PREFIX)})?(.+)\.modules_to_save\.")
_WRAPPED = re.compile(r"\.(base_layer|original_module)\.")


class Merged(Checkpoint):
    """A checkpoint in which some tensors are computed from several; see `Checkpoint`."""

    def __init__(
        self,
        base: Checkpoint,
        adapter: Checkpoint | None,
        tensors: tuple[Stored, ...],
        made: Mapping[tuple[str, ...], Callable[[], bytes]],
        note: str,
    ) -> None:
        self.path, self.format = base.path, base.format
        self.files = (*base.files, *(adapter.files if adapter else ()))
        self.tensors, self.ties = tensors, ()
        self.metadata, self.scalars, self.foreign = base.metadata, base.scalars, base.foreign
        self.notes = (*base.notes, note)
        self.base, self.adapter = base, adapter
        self._made = made
        self._held: tuple[tuple[str, ...], bytes] | None = None

    @property
    def digest(self) -> str:
        """Return the digests of both files in one."""
        import hashlib

        both = self.base.digest + (self.adapter.digest if self.adapter else "")
        return hashlib.sha256(both.encode()).hexdigest()

    def damaged(self) -> list[str]:
        """Return what the checksums of either file say is damaged."""
        return [*self.base.damaged(), *(self.adapter.damaged() if self.adapter else [])]

    def segment(self, stored: Stored) -> Segment | None:
        """Return the byte range of a tensor, None for a computed one."""
        return None if stored.path in self._made else self.base.segment(stored)

    def read_range(self, stored: Stored, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a tensor in C order."""
        if stored.path not in self._made:
            return self.base.read_range(stored, start, stop)
        if self._held is None or self._held[0] != stored.path:
            self._held = (stored.path, self._made[stored.path]())
        return self._held[1][start:stop]

    def read(self, stored: Stored) -> memoryview:
        """Return the bytes of a tensor in C order."""
        if stored.path not in self._made:
            return self.base.read(stored)
        return memoryview(self.read_range(stored, 0, stored.nbytes))

    def close(self) -> None:
        """Close the files of both."""
        self.base.close()
        if self.adapter is not None:
            self.adapter.close()


def with_adapter(checkpoint: Checkpoint, path: Path, branch: str | None = None) -> Checkpoint:
    """Return the checkpoint with the adapter at `path` merged into one of its branches.

    `path` is a folder of PEFT, its adapter file, or, where the checkpoint holds base and adapter both, the
    adapter_config.json alone.

    Raises:
        UsageError / BadFile: no adapter there, or damaged.
        Refused: of a kind that is not merged, or it does not fit the weights.
    """
    config = read_config(path)
    found = branches(checkpoint)
    taken = next((b for b in found if branch is None or branch in (b.name, *b.name.split("."))), None)
    if taken is None:
        names = ", ".join(shown(b.name) for b in found)
        raise UsageError(f"no branch {shown(str(branch))!r} in this file; it has: {names}")
    if any(is_adapter_key(key) for key in taken.tensors):
        base, own = split(taken.tensors)
        return _merged(checkpoint, None, taken, base, adapter_of(own, str(checkpoint.path)), config)
    file = _file_of(path)
    other = open_checkpoint(file)
    try:
        held = branches(other)
        if not held:
            raise UsageError(f"{file} holds no tensors")
        return _merged(checkpoint, other, taken, dict(taken.tensors), adapter_of(held[0].tensors, str(file)), config)
    except BaseException:
        other.close()
        raise


def refuse_adapter(branch: Branch, where: Path) -> None:
    """Refuse weights that hold an adapter nobody asked to merge.

    Raises:
        Refused: says how it is merged.
    """
    held = [key for key in branch.tensors if is_adapter_key(key)]
    if not held:
        return
    base, _ = split(branch.tensors)
    if all(key.endswith((".lora_A", ".lora_B")) for key in held):
        how = "loralib adds its factors to the weight in model.eval(): call that, save, and leave out lora_A and lora_B"
    elif any(_WRAPPED.search(key) for key in branch.tensors):
        how = "merge it with --adapter, naming its adapter_config.json, which says alpha"
    elif len(base) > len(held) // 2:
        how = "merge it with --adapter, naming its adapter_config.json, or leave it out with PEFT"
    else:
        how = f"it is an adapter without its base: convert the base with --adapter {where}"
    whole = sorted({m[1] for key in branch.tensors if (m := _SAVED.match(key))})
    if whole:
        how += f"; what it trained whole (modules_to_save: {', '.join(map(shown, whole[:4]))}) comes along"
    raise Refused(f"{where}: {len(held)} tensors of a LoRA adapter ({', '.join(map(shown, held[:2]))}, ...); {how}")


def _file_of(path: Path) -> Path:
    if path.is_dir():
        file = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
        if file is None:
            raise UsageError(f"{path}: no adapter there ({' or '.join(WEIGHTS)})")
        return file
    if path.suffix == ".json":
        return _file_of(path.parent)
    return path


def _merged(
    checkpoint: Checkpoint,
    other: Checkpoint | None,
    taken: Branch,
    base: dict[str, Stored],
    adapter: Adapter,
    config: Config,
) -> Merged:
    source = other or checkpoint
    twins = _twins(adapter, base)
    pairs = _placed(adapter.pairs, base, "weight", str(config.path), twins)
    _check(pairs, base, config, adapter)
    home = next(iter(taken.tensors.values())).path[:-1]
    tensors: dict[tuple[str, ...], Stored] = {}
    made: dict[tuple[str, ...], Callable[[], bytes]] = {}
    for key, stored in base.items():
        path = (*home, key)
        # In place where nothing was renamed, so that reading goes to the file itself.
        tensors[path] = stored if stored.path == path else _renamed(stored, path)
        if stored.path != path:
            made[path] = _copied(checkpoint, stored)
    for key, (module, a, b) in pairs.items():
        path, w = (*home, key), base[key]
        tensors[path] = Stored(path, w.dtype, w.shape, Blob(-1, 0, w.nbytes, f"lora:{key}"))
        scale = config.scale(module, a.shape[0])
        made[path] = _sum(checkpoint, w, source, (a, b), scale, adapter.magnitudes.get(module))
        if module in adapter.biases:
            beside = f"{key.removesuffix('.weight')}.bias"
            bias, path = base[beside], (*home, beside)
            tensors[path] = _renamed(bias, path)
            made[path] = _shifted(checkpoint, bias, source, adapter.biases[module], scale)
    whole = {_key_in(base, key, twins): stored for key, stored in adapter.whole.items()}
    for key, stored in whole.items():
        path = (*home, key)
        tensors[path] = _renamed(stored, path)
        made[path] = _copied(source, stored)
    others = [t for t in checkpoint.tensors if t.path not in {s.path for s in taken.tensors.values()}]
    return Merged(checkpoint, other, (*tensors.values(), *others), made, _said(pairs, whole, base, config))


def _renamed(stored: Stored, path: tuple[str, ...]) -> Stored:
    return Stored(path, stored.dtype, stored.shape, Blob(-1, 0, stored.nbytes, f"lora:{path[-1]}"))


def _placed(
    pairs: Mapping[str, tuple[Stored, Stored]],
    base: Mapping[str, Stored],
    kind: str,
    where: str,
    twins: Mapping[str, str],
) -> dict[str, tuple[str, Stored, Stored]]:
    """Return {key of the base: (module, A, B)}; the adapter may leave out, or have, a prefix before all keys."""
    found: dict[str, tuple[str, Stored, Stored]] = {}
    lost: list[str] = []
    for module, (a, b) in pairs.items():
        key = _key_in(base, f"{module}.{kind}", twins)
        if key in base:
            found[key] = (module, a, b)
        else:
            lost.append(module)
    if lost or not pairs:
        what = f"{len(lost)} modules that the weights do not have: {', '.join(collapse(lost)[:4])}"
        raise Refused(
            f"{where}: the adapter is for {what if lost else 'nothing'}. It belongs to another network, or to another"
            " naming of it: convert the base to the naming of the adapter first (--to), and merge then"
        )
    return found


def _twins(adapter: Adapter, base: Mapping[str, Stored]) -> Mapping[str, str]:
    """Return the base's names in its library's other epoch, where the adapter is for none of those it has."""
    if all(_key_in(base, f"{module}.weight") in base for module in adapter.pairs):
        return {}
    from vitconv.conversion.twins import twin_names

    return twin_names(base)


def _key_in(base: Mapping[str, Stored], key: str, twins: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the key in the base: the same, or the only one that has it at its end or is its end, or its twin's."""
    if key in base:
        return key
    for names in (base, twins):
        near = [k for k in names if k == key or k.endswith(f".{key}") or key.endswith(f".{k}")]
        if len(near) == 1:
            return twins.get(near[0], near[0])
    return key


def _check(
    pairs: Mapping[str, tuple[str, Stored, Stored]], base: Mapping[str, Stored], config: Config, adapter: Adapter
) -> None:
    wrong: list[str] = []
    modules = {module for module, _, _ in pairs.values()}
    if config.dora != bool(adapter.magnitudes) or (adapter.magnitudes and adapter.magnitudes.keys() != modules):
        have = f"magnitudes of {len(adapter.magnitudes)} of {len(modules)} modules"
        said = "is" if config.dora else "is not"
        raise Refused(f"{config.path}: use_dora {said} set, and the adapter holds {have}; the file is not whole")
    for key, (module, a, b) in pairs.items():
        w = base[key]
        rank, expected = a.shape[0] if a.shape else 0, config.expected(module)
        if expected is not None and expected != rank:
            wrong.append(f"{shown(key)}: rank {rank} in the tensors, {expected} in the configuration")
        fits = len(a.shape) == len(w.shape) and a.shape[1:] == w.shape[1:] and b.shape[:1] == w.shape[:1]
        if not fits or prod(b.shape[1:]) != rank:
            wrong.append(f"{shown(key)} is {list(w.shape)}, A {list(a.shape)} and B {list(b.shape)}")
        m, more = adapter.magnitudes.get(module), adapter.biases.get(module)
        if m is not None and (prod(m.shape) != w.shape[0] or m.dtype not in FLOATS):
            wrong.append(f"{shown(key)} is {list(w.shape)}, its magnitudes {m.dtype} {list(m.shape)}")
        bias = base.get(f"{key.removesuffix('.weight')}.bias")
        if more is not None and (bias is None or more.shape != bias.shape or more.dtype not in FLOATS):
            wrong.append(f"{shown(key)}: the adapter adds to a bias that is not there, or of another shape (lora_bias)")
        if not {w.dtype, a.dtype, b.dtype} <= set(FLOATS):
            wrong.append(f"{shown(key)}: dtypes {w.dtype}, {a.dtype}, {b.dtype} cannot be computed with")
    if wrong:
        raise Refused(f"{config.path}: the adapter does not fit the weights: {'; '.join(wrong[:4])}")


def _sum(
    checkpoint: Checkpoint,
    w: Stored,
    source: Checkpoint,
    pair: tuple[Stored, Stored],
    scale: float,
    magnitude: Stored | None,
) -> Callable[[], bytes]:
    def compute() -> bytes:
        import numpy as np

        down, up = (_wide(source, x) for x in pair)
        delta = up.reshape(up.shape[0], -1) @ down.reshape(down.shape[0], -1)
        total = _wide(checkpoint, w) + scale * delta.reshape(w.shape)
        if magnitude is not None:
            rows = total.reshape(len(total), -1)
            norms = np.sqrt((rows * rows).sum(1))
            if not norms.all():
                raise Refused(f"{shown(w.key)}: DoRA divides by the norm of a row that is zero")
            total = (rows * (_wide(source, magnitude).reshape(-1) / norms)[:, None]).reshape(total.shape)
        return _rounded(total, w)

    return compute


def _shifted(
    checkpoint: Checkpoint, bias: Stored, source: Checkpoint, more: Stored, scale: float
) -> Callable[[], bytes]:
    return lambda: _rounded(_wide(checkpoint, bias) + scale * _wide(source, more), bias)


def _wide(held: Checkpoint, stored: Stored) -> Any:
    import numpy as np

    return to_float(held.read(stored), stored.dtype, stored.shape).astype(np.float64)


def _rounded(total: Any, like: Stored) -> bytes:
    import numpy as np

    data = bytes(from_float(total, like.dtype))
    if not np.isfinite(to_float(data, like.dtype, like.shape)).all():
        raise Refused(f"{shown(like.key)}: merged values are past the largest value of {like.dtype}")
    return data


def _copied(source: Checkpoint, stored: Stored) -> Callable[[], bytes]:
    return lambda: bytes(source.read(stored))


def _said(
    pairs: Mapping[str, tuple[str, Stored, Stored]],
    whole: Mapping[str, Stored],
    base: Mapping[str, Stored],
    config: Config,
) -> str:
    scales = sorted({config.scale(module, a.shape[0]) for module, a, _ in pairs.values()})
    dtypes = ", ".join(sorted({base[key].dtype for key in pairs}))
    rule = "alpha / sqrt(r)" if config.rslora else "alpha / r"
    name = "dora: rows of the norms that the adapter holds, in the directions of" if config.dora else "lora:"
    text = (
        f"{name} W + B A * {' and '.join(f'{s:g}' for s in scales[:4])} ({rule}) in {len(pairs)} tensors, summed in"
        f" float64 and rounded once to {dtypes} (changes the function): {', '.join(collapse(pairs))}"
    )
    if whole:
        text += f"; taken from the adapter whole: {', '.join(collapse(whole))}"
    return text
