"""Make up tensors that are not there, of one value each."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.arith import FLOATS
from vitconv.layout.canonical import SCHEMA, slot, template_of
from vitconv.layout.edits.edit import Edit, Param, Values, choice, count, named, sized, spelled
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Made, Network

WORDS = {"zeros": 0.0, "ones": 1.0}
FREE = ("r", "o", "m")


def _number(text: str) -> float:
    try:
        value = WORDS[text] if text in WORDS else float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise ValueError("a number, zeros or ones")
    return value


def _apply(network: Network, values: Values) -> Network:
    sizes = {x: values[x] for x in FREE if x in values}
    for x, n in sizes.items():
        if network.sizes.get(x, n) != n:
            raise UsageError(f"--edit fill: {x}={n}, but this network has {x}={network.sizes[x]}")
    network = sized(network, **sizes)
    for name, number in values["names"].items():
        for one in spelled(name):
            network = _fill(network, one, number, values.get("dtype"))
    return network


def _fill(network: Network, name: str, number: float, dtype: str | None) -> Network:
    template = template_of(name)
    if template not in SCHEMA:
        raise UsageError(f"--edit fill:{name}: no canonical tensor has this name; names: {', '.join(SCHEMA)}")
    wanted = [name] if template != name else named(template, network.depth)
    layer = int(name.split(".")[1]) if template != name else 0
    if layer >= network.depth > 0:
        raise UsageError(f"--edit fill:{name}: this network has {network.depth} layers, counted from 0")
    lacking = [n for n in wanted if n not in network.cells]
    if not lacking:
        raise Refused(
            f"--edit fill:{name}: the network has it already; to replace what is there, say --edit drop:{name} first"
        )
    shape = tuple(_size(network, x, name) for x in slot(template).axes)
    for n in lacking:
        network = network.with_made(n, _constant(number, shape, dtype or _dtype(network, n)))
    kept = f"; {len(wanted) - len(lacking)} others are there and stay" if len(wanted) > len(lacking) else ""
    why = _unfelt(network, template, number)
    what = f"{', '.join(collapse(lacking))} made up as {number:g}, shape {list(shape)}{kept}"
    if why:
        what += f"; outputs unchanged: {why}"
    return network.noted(Applied("fill", what, bool(why), (), tuple(lacking), "none: a constant has no source"))


def _size(network: Network, axis: str, name: str) -> int:
    if axis in network.sizes:
        return network.sizes[axis]
    if axis == "e" and network.facts.heads and "a" in network.sizes:
        return network.sizes["a"] // network.facts.heads
    if axis == "d2":
        return network.sizes["d"]
    how = "--set heads=N" if axis == "e" else f"{axis}=N after the value" if axis in FREE else "another tensor first"
    raise Refused(f"--edit fill:{name}: its size along {axis} is not known; say {how}")


def _dtype(network: Network, name: str) -> str:
    """Return the dtype of the tensor's nearest relative: its own layer's weight, else the commonest."""
    stem = name.rpartition(".")[0]
    near = [c.dtype for n, c in network.cells.items() if n.startswith(f"{stem}.") and c.dtype in FLOATS]
    every = near or [c.dtype for c in network.cells.values() if c.dtype in FLOATS] or ["F32"]
    return Counter(every).most_common(1)[0][0]


def _unfelt(network: Network, template: str, number: float) -> str:
    """Return why the function stays as it was, or ""."""
    weight = template.removesuffix("bias") + "weight"
    has_weight = any(template_of(n) == weight for n in network.cells)
    if template.endswith(".bias") and number == 0 and has_weight:
        return "a bias of zero adds nothing"
    if template in ("blocks.{i}.ls1", "blocks.{i}.ls2") and number == 1:
        return "a LayerScale of one scales nothing"
    if template.startswith("embed.pos") and number == 0:
        return "a position row of zeros adds nothing"
    if template == "embed.mask":
        return "only masked training uses a mask token"
    return ""


def _constant(number: float, shape: tuple[int, ...], dtype: str) -> Made:
    def compute(_: Any) -> Any:
        import numpy as np

        return np.full(shape, number, np.float64 if dtype == "F64" else np.float32)

    return Made(f"filled with {number:g}", (), shape, dtype, compute)


FILL = Edit(
    name="fill",
    title="make up canonical tensors that are not there",
    exact="yes for biases and position rows of zero and LayerScale of one, else no",
    adjoint="none: a constant has no source",
    params=(
        Param("dtype", f"one of {', '.join(FLOATS)}", choice(*FLOATS), otherwise="that of the same layer's weight"),
        Param("r", "number of register tokens", count, otherwise="the network's"),
        Param("o", "number of classes", count, otherwise="the network's"),
        Param("m", "MLP width", count, otherwise="the network's"),
    ),
    apply=_apply,
    named=Param("NAME", "a canonical name, {i} for every layer that lacks it; a number, zeros or ones", _number),
    example="fill:blocks.{i}.attn.k.bias=0",
)
