"""muP: input and hidden layers by fan-in, zero readout and zero query"""

from __future__ import annotations

from vitconv.inits.base.architecture import Architecture, Site
from vitconv.inits.base.distribution import Distribution, normal
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, ZEROS, table, weights
from vitconv.inits.base.scheme import Need, Scheme


def _by_fan_in(site: Site) -> Distribution:
    fan_in = 1
    for size in site.shape[1:]:
        fan_in *= size
    return normal(fan_in**-0.5, f"N(0, 1/sqrt {fan_in})")


def _scale_is_right(arch: Architecture) -> bool:
    heads, scale = arch.facts.heads, arch.facts.attention_scale
    if heads is None:
        return False
    width = arch.attention_width // heads
    # 8/e is the usual e^-1/2 at a head width of 64.
    return abs((width**-0.5 if scale is None else scale) * width / 8.0 - 1.0) < 1e-6


SCHEME = Scheme(
    name="mup",
    title="muP, for Adam",
    source="Yang et al., Tensor Programs V, 2022, table 8; microsoft/mup, 1981497",
    table=table(
        linear=_by_fan_in,
        patch=_by_fan_in,
        pos=normal(0.02),
        cls=normal(0.02),
        layer_scale=ONES,
        head=ZEROS,
        more=weights(("attn.q",), ZEROS),
    ),
    fits=FLAT,
    needs=(
        Need(
            "attention logits scaled by 8/e, e the head width",
            _scale_is_right,
            "muP scales logits by 1/e and not 1/sqrt e; at a head width of 64 both agree",
            "--set heads=WIDTH/64 or --set attention_scale=8/e",
        ),
    ),
    notes=(
        (
            "divide the learning rate of hidden matrices and the readout's input by the width multiplier;"
            " an init alone is not muP"
        ),
    ),
)
