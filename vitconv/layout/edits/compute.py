"""Values of computed tensors, one tensor in memory at a time, and gradients pulled back through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vitconv.errors import LayoutError, Refused
from vitconv.layout.arith import LARGEST, from_float, require_float, to_float
from vitconv.layout.network import Cell, Made, Network
from vitconv.layout.recipe import dense_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Gives the elements of a stored cell in its canonical shape: little-endian, of the cell's dtype; bytes or an array.
Read = Callable[[Cell], Any]


def made_of(network: Network, cell: Cell) -> Made | None:
    """Return how a cell is computed, or None for one that is stored."""
    tag = cell.view.tensor
    if not tag.startswith("="):
        return None
    made = network.made[tag]
    if cell.view != dense_view(tag, made.shape):
        raise LayoutError(f"{cell.name} is a part of the computed {tag}; only the whole can be used")
    return made


def value(network: Network, cell: Cell, read: Read) -> Array:
    """Return the elements of a stored or computed cell: [shape], float64 for F64, else float32."""
    if made_of(network, cell) is None:
        require_float(cell.dtype, cell.name)
        return to_float(read(cell), cell.dtype, cell.shape)
    return to_float(evaluate(network, cell.view.tensor, read), cell.dtype, cell.shape)


def unrounded(network: Network, tag: str, read: Read) -> Array:
    """Return what the computed tensor `tag` is before it is rounded to its dtype: [shape], float.

    Raises:
        LayoutError: the edit computed another shape than it planned.
    """
    import numpy as np

    made = network.made[tag]
    out: Array = np.asarray(made.compute([value(network, c, read) for c in made.inputs]))
    if out.shape != tuple(made.shape):
        raise LayoutError(f"{tag} ({made.label}) was planned as {made.shape} and came out as {out.shape}")
    return out


def evaluate(network: Network, tag: str, read: Read) -> memoryview:
    """Return the bytes of the computed tensor `tag`, such as `=blocks.0.attn.out.weight#3`, in its dtype, in C order.

    Args:
        network: the edited network.
        tag: the name of the tensor in the network's `made`.
        read: gives the elements of a stored cell.

    Raises:
        Refused: a result overflows its dtype and nobody asked for infinities; see `check` for asking beforehand.
    """
    import numpy as np

    made = network.made[tag]
    out = unrounded(network, tag, read)
    data = from_float(out, made.dtype)
    if made.overflow == "refuse" and is_rounded(made):
        rounded = to_float(data, made.dtype, made.shape)
        count = int(np.count_nonzero(np.isinf(rounded))) - int(np.count_nonzero(np.isinf(out)))
        if count:
            raise Refused(
                f"{count} of {out.size} elements of {name_of(tag)} ({made.label}) are past the largest value of"
                f" {made.dtype}, {LARGEST[made.dtype]:.6g}"
            )
    return data


def name_of(tag: str) -> str:
    """Return the canonical name in the tag of a computed tensor."""
    return tag[1:].rpartition("#")[0]


def is_rounded(made: Made) -> bool:
    """Say whether its dtype holds less than the arithmetic gives, so that rounding can change a value."""
    wide = any(c.dtype == "F64" for c in made.inputs)
    return made.dtype not in (("F64",) if wide else ("F64", "F32"))


def reachable(network: Network) -> Iterator[str]:
    """Yield the tags of the computed tensors that the network still uses, in the order they were made."""
    used = {c.view.tensor for c in network.cells.values() if c.view.tensor.startswith("=")}
    for tag in reversed(tuple(network.made)):
        if tag in used:
            used |= {c.view.tensor for c in network.made[tag].inputs}
    yield from (tag for tag in network.made if tag in used)


def pull_back(network: Network, grads: Mapping[str, Any], read: Read) -> dict[str, Array]:
    """Return gradients with respect to the stored tensors from gradients with respect to the edited ones.

    This is the vector-Jacobian product of all edits together, in float64. Stored tensors that no given gradient
    depends on, such as dropped ones, are left out.

    Args:
        network: the edited network.
        grads: {canonical name after the edits: gradient}.
        read: gives the elements of a stored cell.

    Raises:
        Refused: an edit has no adjoint.
        LayoutError: a gradient has another shape than its tensor.
    """
    import numpy as np

    of_made: dict[str, Array] = {}
    out: dict[str, Array] = {}

    def add(cell: Cell, grad: Any) -> None:
        into, key = (out, cell.name) if made_of(network, cell) is None else (of_made, cell.view.tensor)
        array = np.asarray(grad, np.float64)
        if array.shape != cell.shape:
            raise LayoutError(f"the gradient of {cell.name} has shape {array.shape}, the tensor {cell.shape}")
        into[key] = into[key] + array if key in into else array

    for name, grad in grads.items():
        add(network.cells[name], grad)
    for tag in reversed(tuple(network.made)):
        if tag not in of_made:
            continue
        made = network.made[tag]
        if made.pull_back is None:
            if made.inputs:
                raise Refused(f"{name_of(tag)} ({made.label}) has no adjoint; gradients cannot be carried back")
            continue
        inputs = [value(network, c, read).astype(np.float64) for c in made.inputs]
        for cell, grad in zip(made.inputs, made.pull_back(inputs, of_made[tag]), strict=True):
            add(cell, grad)
    return out
