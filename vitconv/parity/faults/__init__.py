"""The fault catalogue: one entry for each way in which a network is known to go wrong. Importing it costs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vitconv.parity.faults import attention, backward, block, embed, head, image, mlp, norm, precision
from vitconv.parity.faults.fault import Fault, Knobs

_SITES = (image, embed, norm, attention, mlp, block, head, precision, backward)

FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for site in _SITES for fault in site.FAULTS})

__all__ = ["FAULTS", "Fault", "Knobs"]
