"""Another patch size: the kernel by pseudo-inverse, and the position grid with it.

Let B resize a patch of the image. FlexiViT (arXiv:2212.08013, PI-resize) takes the kernel w' with the least
error of <w', B x> against <w, x>: w' = (B^T)^+ w, which for a larger patch is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, choice, pair, show, sized
from vitconv.layout.edits.interpolate import RULES, resize_matrix
from vitconv.layout.edits.position import JOIN, resized, source_grid
from vitconv.layout.network import Applied, Cell, Made, Network

NAME = "embed.patch.weight"
# How the kernel is resized: (the rule by which a patch or the kernel is, whether its pseudo-inverse is taken).
HOW = {
    "pinv": ("bicubic-antialias", True),
    "pinv-bilinear": ("bilinear", True),
    "bicubic": ("bicubic", False),
}
KEEP = ("image", "grid")


def _apply(network: Network, values: Values) -> Network:
    size: tuple[int, int] = values["patch"]
    how: str = values.get("how", "pinv")
    keep: str = values.get("keep", "image")
    if NAME not in network.cells:
        raise UsageError(f"--edit resize-patch: this network has no {NAME}")
    cell = network.cells[NAME]
    old = (cell.shape[2], cell.shape[3])
    if size == old:
        what = f"the patch is {show(old)} already; nothing changed"
        return network.noted(Applied("resize-patch", what, True, adjoint="the identity"))
    network, told, facts = _grid(network, old, size, keep, values)
    network = network.with_made(NAME, _made(cell, size, how))
    drift = "" if HOW[how][1] else f"; its response grows by about {size[0] * size[1] / (old[0] * old[1]):g}"
    what = f"patch kernel resized from {show(old)} to {show(size)} by {how}{drift}; {told}"
    applied = Applied("resize-patch", what, False, (), (), "the transpose of the same map")
    return sized(network, facts, p=size[0], q=size[1]).noted(applied)


def _grid(
    network: Network, old: tuple[int, int], size: tuple[int, int], keep: str, values: Values
) -> tuple[Network, str, dict[str, Any]]:
    """Return the network with the position table that goes with the new patch, what was done, and the new facts."""
    if "embed.pos_y" in network.cells and keep == "image":
        raise Refused(JOIN.format("resize-patch"))
    if "embed.pos" not in network.cells:
        return network, "no position table to resize", {"grid": None, "image_size": network.facts.image_size}
    if keep == "grid" and network.facts.grid is None and "from" not in values:
        told = "the grid of the position table stays, so images grow with the patches"
        return network, told, {"grid": None, "image_size": None}
    grid = source_grid(network, values.get("from"), "resize-patch")
    if keep == "grid":
        image = (grid[0] * size[0], grid[1] * size[1])
        told = f"the grid stays {show(grid)}, so images are now {show(image)} pixels"
        return network, told, {"grid": grid, "image_size": image}
    image = network.facts.image_size or (grid[0] * old[0], grid[1] * old[1])
    if image[0] % size[0] or image[1] % size[1]:
        raise Refused(
            f"--edit resize-patch: images of {show(image)} pixels cannot be cut into patches of {show(size)}; say"
            f" keep=grid, which keeps the grid {show(grid)} and changes the image size"
        )
    target = (image[0] // size[0], image[1] // size[1])
    network, said = resized(network, grid, target, values.get("rule"), "resize-patch")
    return network, f"images stay {show(image)} pixels; position table {said}", {"grid": target, "image_size": image}


def _made(cell: Cell, size: tuple[int, int], how: str) -> Made:
    d, c, p, q = cell.shape
    rule, inverse = HOW[how]

    def matrix() -> Any:
        """Return M with w' = w M: [p*q P*Q], float64."""
        import numpy as np

        b = resize_matrix((p, q), size, rule)
        # The cut is far below the smallest singular value of any of these resizings, and far above rounding.
        return np.linalg.pinv(b, rcond=1e-6) if inverse else b.T

    def compute(x: Sequence[Any]) -> Any:
        return (x[0].reshape(d, c, p * q) @ matrix()).reshape(d, c, *size)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return ((grad.reshape(d, c, -1) @ matrix().T).reshape(cell.shape),)

    return Made(f"patch {show((p, q))} -> {show(size)}, {how}", (cell,), (d, c, *size), cell.dtype, compute, back)


RESIZE_PATCH = Edit(
    name="resize-patch",
    title="resize the patch projection to another patch size, and the position table to the grid that follows",
    exact="no; pinv to a larger patch gives the same response to images enlarged by the same interpolation",
    adjoint="the transpose of the same map",
    params=(
        Param("patch", "the new patch in pixels, height x width, as 8 or 8x8", pair, required=True),
        Param(
            "how",
            "pinv (pseudo-inverse of bicubic-antialias, as timm), pinv-bilinear (of bilinear, as FlexiViT), bicubic"
            " (the kernel itself; scale drifts)",
            choice(*HOW),
            otherwise="pinv",
        ),
        Param(
            "keep",
            "image: the image size stays and the position table is resized; grid: the grid stays and images change",
            choice(*KEEP),
            otherwise="image",
        ),
        Param("rule", f"of the position table, one of {', '.join(RULES)}", choice(*RULES), otherwise="position_resize"),
        Param("from", "the grid of the table", pair, otherwise="the fact grid, else asked for"),
    ),
    apply=_apply,
    bare="patch",
    example="resize-patch:patch=8,rule=bicubic-antialias",
)
