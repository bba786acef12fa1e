"""Audit a checkpoint file: its tensors are read one at a time, by role."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitconv.conversion.facts import Wishes
from vitconv.conversion.recognise import Recognised, recognise
from vitconv.errors import Refused
from vitconv.inits.audit.audit import Audited, audit_tensors
from vitconv.layout.network import Network, decode

_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class _Tensors(Mapping[str, Tensor]):
    """{canonical name: tensor}, read when asked for; the file tensor last read is kept, for its other parts.

    A large tensor is the file's own pages, which is why nothing is read before it is looked at.
    """

    def __init__(self, source: Recognised, network: Network) -> None:
        self.source, self.network = source, network
        self.key, self.flat = "", torch.empty(0)

    def __getitem__(self, name: str) -> Tensor:
        cell = self.network.cells[name]
        key = cell.view.tensor
        if key != self.key:
            self.key, self.flat = key, self._whole(key)
        factors = [f for axis in cell.view.dims for f in axis]
        strided = self.flat.as_strided([n for n, _ in factors], [s for _, s in factors], cell.view.offset)
        return strided.reshape(cell.shape)

    def _whole(self, key: str) -> Tensor:
        stored = self.source.stored[key]
        if stored.dtype not in _DTYPES:
            raise Refused(f"{key} is {stored.dtype}; an audit needs floating point")
        data = self.source.checkpoint.mapped(stored)
        with warnings.catch_warnings():
            # The bytes of a small one are read only, and an audit never writes.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            whole = torch.frombuffer(data, dtype=_DTYPES[stored.dtype])
        return whole.float() if stored.dtype.startswith("F8") else whole

    def __iter__(self) -> Iterator[str]:
        # In the order of the file, so that a tensor is read once for all its parts.
        order = {key: i for i, key in enumerate(self.source.stored)}
        return iter(sorted(self.network.cells, key=lambda name: order[self.network.cells[name].view.tensor]))

    def __len__(self) -> int:
        return len(self.network.cells)


def audit_file(path: str | Path, wishes: Wishes | None = None, scheme: str | None = None) -> Audited:
    """Audit a checkpoint; see `vitconv.inits.audit_tensors`.

    Raises:
        VitconvError: as `recognise`; Refused when a tensor is no floating point.
    """
    source = recognise(path, wishes or Wishes())
    with source.checkpoint:
        network = decode(source.match, source.dtypes, source.facts)
        return audit_tensors(_Tensors(source, network), network.facts, scheme)
