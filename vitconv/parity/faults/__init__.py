"""The fault catalogue: one entry for each way in which a network is known to go wrong. Importing it costs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from vitconv.parity.faults import (
    attention,
    axes,
    backward,
    block,
    cuts,
    embed,
    focused,
    head,
    image,
    mlp,
    norm,
    norm_backward,
    norm_forms,
    numbers,
    precision,
    rotary,
    stages,
    watched,
    windows,
)
from vitconv.parity.faults.fault import Fault, Knobs

_SITES = (
    image, embed, norm, norm_forms, attention, axes, rotary, windows, mlp, block, stages, focused, head, precision,
    backward, cuts, norm_backward, watched, numbers,
)  # fmt: skip


def _shared(fault: Fault) -> Fault:
    """Return a fault of plain networks, for networks of stages too where these can have it as it is written."""
    both = fault.families == ("plain",) and stages.has_as_well(fault.name)
    return dataclasses.replace(fault, families=("plain", "stages")) if both else fault


FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: _shared(fault) for site in _SITES for fault in site.FAULTS})

__all__ = ["FAULTS", "Fault", "Knobs"]
