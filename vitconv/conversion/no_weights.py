"""Files without any weights: that they hold the state of an optimizer, other state of a training, or nothing."""

from __future__ import annotations

from vitconv.io.contents import some
from vitconv.io.optimizer_state import optimizers
from vitconv.io.source import Checkpoint
from vitconv.io.training_state import is_per_parameter


def no_weights(checkpoint: Checkpoint) -> str:
    """Return what a checkpoint holds in which there is no set of weights."""
    tensors = checkpoint.tensors
    notes = f" ({'; '.join(checkpoint.notes)})" if checkpoint.notes else ""
    if not tensors:
        return f"{checkpoint.path} holds no tensors{notes}"
    kinds = dict.fromkeys(t.key for t in tensors if is_per_parameter(t.path))
    if kinds or optimizers(checkpoint):
        what = f" ({some(kinds)})" if kinds else ""
        return (
            f"{checkpoint.path} holds no weights: its {len(tensors)} tensors are the state of an optimizer{what}; name"
            " the file that has the weights. With that one, --optimizer --optimizer-from carries this state along"
        )
    named = some(dict.fromkeys(t.path[0] for t in tensors))
    return f"{checkpoint.path} holds no weights: its {len(tensors)} tensors are other state of a training ({named})"
