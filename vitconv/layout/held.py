"""Refuse a live network whose parameters hold no elements: there is nothing to look at, fill or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vitconv.errors import Refused

_SHOWN = 4


def refuse_unheld(parameters: Iterable[tuple[str, Any]], whose: str) -> None:
    """Refuse parameters on the meta device, and the empty placeholders that stay where a partition was taken away.

    Args:
        parameters: (name, torch tensor) of every parameter.
        whose: what the network is called in the message.

    Raises:
        Refused: some hold nothing; the message says which and how to bring their elements back.
    """
    named = tuple(parameters)
    _refuse(
        [name for name, p in named if hasattr(p, "materialize")],
        len(named),
        whose,
        "are of lazy modules, which have no shape until they are run",
        "run the network once on an image of its size before it is given away",
    )
    meta = [name for name, p in named if p.is_meta]
    # A table of no rows is a tensor of its own; one axis of length 0 is what stays of any parameter.
    away = [name for name, p in named if not p.is_meta and tuple(p.shape) == (0,)]
    _refuse(
        meta,
        len(named),
        whose,
        "are on the meta device: they have shapes and no elements",
        "build it on the CPU, or call module.to_empty(device='cpu') and then its init function or load_state_dict",
    )
    _refuse(
        away,
        len(named),
        whose,
        "are empty placeholders of shape [0], as DeepSpeed ZeRO-3 leaves where it partitions: whatever is done to them "
        "is done to nothing, and an init function passes over them in silence",
        "gather them first, with deepspeed.zero.GatheredParameters(module.parameters(), modifier_rank=0), or build the "
        "network outside of deepspeed.zero.Init",
    )


def refuse_foreign(state: Mapping[str, Any], whose: str) -> None:
    """Refuse a state dict that holds what is no tensor, such as the packed weights of a quantised module.

    Raises:
        Refused: it does; the message says what.
    """
    found = [name for name, value in state.items() if not hasattr(value, "is_meta") and "_extra_state" not in name]
    if found:
        what = f"{found[0]} is {type(state[found[0]]).__name__}"
        raise Refused(
            f"the state dict of {whose} holds {len(found)} entries that are no tensors ({what}), as quantised modules "
            "have: their weights are packed; give the network as it was before it was quantised"
        )


def _refuse(names: list[str], count: int, whose: str, what: str, cure: str) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = f"{', '.join(names[:_SHOWN])}{more}"
        raise Refused(f"{len(names)} of {count} parameters of {whose} {what} ({shown}); {cure}")
