"""LayerScale by depth: .1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond"""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, constant, truncated_absolute
from vitconv.inits.base.placement import ONLY_PRE
from vitconv.inits.base.roles import default, table
from vitconv.inits.base.scheme import Need, Scheme

_USUAL = truncated_absolute(0.02)


def preset(depth: int) -> float:
    """Return the start of LayerScale for a network of this many blocks."""
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


def _scale(site: Site) -> Distribution:
    depth = site.arch.depth
    return constant(preset(depth), f"{preset(depth):g} for {depth} blocks")


SCHEME = Scheme(
    name="layer-scale",
    title="CaiT's LayerScale by depth",
    source="Touvron et al., Going deeper with Image Transformers, 2021; facebookresearch/deit, cait_models.py",
    table=table(linear=_USUAL, patch=default, patch_bias=default, pos=_USUAL, cls=_USUAL, layer_scale=_scale),
    fits=ONLY_PRE,
    needs=(
        Need(
            "LayerScale tensors",
            lambda arch: arch.has("blocks.0.ls1"),
            "the scheme is about nothing else",
            "--set layer_scale=true",
        ),
    ),
    notes=("released code differs: DeiT III 1e-4 in its repository and 1e-6 in timm, BEiT .1 and 1e-5, DINOv2 1e-5",),
)
