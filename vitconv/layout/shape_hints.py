"""What shapes that do not fit say about where a file comes from."""

from __future__ import annotations

from vitconv.errors import LayoutError
from vitconv.layout.header import Header
from vitconv.layout.match import Match
from vitconv.layout.unify import unify

_TUBELET = 5


def shape_hint(m: Match, header: Header) -> str | None:
    """Return the cause of a conflict of shapes, or what the patches say beside unknown names, or None."""
    stem = next((header.shapes[b.key] for b in m.bound if b.parts == ("embed.patch.weight",)), ())
    if len(stem) == _TUBELET:
        return (
            "its patches have a third axis besides height and width: a network of videos (tubelets) or of volumes,"
            " which no layout of images carries"
        )
    if m.conflict is None:
        return None
    turned = {key: shape[::-1] if len(shape) == 2 else shape for key, shape in header.shapes.items()}
    try:
        unify(m.bound, turned)
    except LayoutError:
        return None
    return (
        "they would fit if every matrix were transposed: linear weights lie as (in, out) here, as Paddle and Keras keep"
        " them; transpose those of linear layers (weight.T) and save again"
    )
