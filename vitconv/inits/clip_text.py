"""The rule of CLIP's text tower on a vision tower: what ends a branch at (2N d)^(-1/2)"""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, normal
from vitconv.inits.base.placement import RESCALED
from vitconv.inits.base.roles import ONES, QKV, by_width, default, table, weights
from vitconv.inits.base.scheme import Scheme


def ending(site: Site, width: int) -> Distribution:
    """Return N(0, (2N d)^(-1/2)) for N blocks on a stream of width d."""
    depth = site.arch.depth
    return normal((2 * depth * width) ** -0.5, f"N(0, 1/sqrt(2 x {depth} x {width}))")


def rising(site: Site) -> Distribution:
    """Return N(0, (2d)^(-1/2)) for a layer that reads width d."""
    width = site.shape[1]
    return normal((2 * width) ** -0.5, f"N(0, 1/sqrt(2 x {width}))")


SCHEME = Scheme(
    name="clip-text",
    title="the rule of CLIP's text tower, on a vision tower",
    source="openai/CLIP, clip/model.py, d05afc4, initialize_parameters; Radford et al., CLIP, 2021, section 2.4",
    table=table(
        linear=by_width,
        patch=default,
        patch_bias=default,
        pos=by_width,
        cls=by_width,
        layer_scale=ONES,
        head=by_width,
        more=weights(QKV, by_width)
        | weights(("attn.out", "mlp.down"), lambda site: ending(site, site.shape[0]))
        | weights(("mlp.up", "mlp.gate"), rising),
    ),
    fits=RESCALED,
    notes=("biases are 0 here; the text tower leaves those of its MLP as torch makes them",),
)
