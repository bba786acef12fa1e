"""The four styles of xformers' factory, 0.0.12 to 0.0.28.post3 (xformers/factory/weight_init.py), and what they meant.

The factory hands every layer one gain: DeepNorm's beta in a DeepNorm stack, else 1. It never says that the stack is
DeepNorm, so query and key are scaled too; the paper leaves them at 1. `faithful` False gives what was meant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.deepnet import beta
from vitconv.inits.base.distribution import (
    TWO_SIGMA,
    Distribution,
    lecun_normal,
    normal,
    truncated_absolute,
    uniform,
    xavier_normal,
    xavier_uniform,
)
from vitconv.inits.base.fans import Fans, flat_fans, linear_fans
from vitconv.inits.base.roles import NEAR_ZERO, ONES, QKV, ZEROS, Value, default, table, weights
from vitconv.inits.base.scheme import Fit

FITS: Mapping[str, Fit] = MappingProxyType(
    {
        "post": Fit("warn", "Xavier with post-norm, the library's default, is rank-collapsed at 12 blocks already"),
        "res-post": Fit("refuse", "the factory builds no such block"),
        "none": Fit("refuse", "the factory builds no block without norms"),
    }
)

QK_QUIRK = "in a DeepNorm stack query and key get beta as well"


def gain(site: Site) -> float:
    """Return the gain the factory hands to every layer."""
    return beta(site.arch.depth) if site.arch.placement == "deepnorm" else 1.0


def style(name: str, *, faithful: bool) -> dict[str, Value]:
    """Return the table of a style; around the stack (head, class token, position) the constructors' values stay."""

    def weight(site: Site) -> Distribution:
        free = not faithful and site.role in ("attn.q.weight", "attn.k.weight")
        return _linear(name, site, 1.0 if free else gain(site), faithful)

    def patch(site: Site) -> Distribution:
        return _patch(name, site, faithful)

    untouched = faithful and name in ("timm", "moco")
    found = table(
        linear=weight,
        mlp_bias=NEAR_ZERO if name in ("vit", "small") else ZEROS,
        patch=patch,
        patch_bias=default if untouched or name == "timm" else ZEROS,
        pos=normal(0.02),
        cls=ZEROS,
        layer_scale=ONES,
        head=default,
        head_bias=default,
    )
    return found | weights(("pool.dense",), default) | {"pool.dense.bias": default}


def _linear(name: str, site: Site, g: float, faithful: bool) -> Distribution:
    fans = linear_fans(site.shape)
    if name == "timm":
        edge = math.sqrt(3.0) * 0.02 * g
        return truncated_absolute(0.02 * g, -edge, edge) if faithful else truncated_absolute(0.02 * g)
    if name == "small":
        # Nguyen & Salazar, Transformers without Tears, 2019, section 2.2; the factory leaves the MLP to Xavier, which
        # is the same std.
        if not site.role.startswith("mlp."):
            fans = Fans(fans.fan_in, 4 * fans.fan_out, "small: 4 x fan_out")
        return xavier_uniform(fans, g) if faithful else xavier_normal(fans, g)
    return xavier_uniform(fans, g)


def _patch(name: str, site: Site, faithful: bool) -> Distribution:
    fans = flat_fans(site.shape)
    if name in ("vit", "small"):
        if not faithful:
            return lecun_normal(fans)
        # The variance is scaled by the gain, and the cut is at the values +-2, so nothing is cut and the
        # compensation for a cut makes it 1.137 times too wide.
        variance = (gain(site) if name == "vit" else 1.0) / fans.fan_in
        return truncated_absolute(math.sqrt(variance) / TWO_SIGMA)
    if name == "moco" and not faithful:
        return uniform(math.sqrt(6.0 / fans.total), f"xavier uniform, {fans.text}")
    return default(site)


def early(kind: str) -> dict[str, Value]:
    """Return the ad-hoc init of 0.0.1 to 0.0.11 (xformers/components/in_proj_container.py, factory/model_factory.py).

    kind: "0.0.8" (0.0.1 to 0.0.8), "0.0.9" (0.0.9 and 0.0.10), "0.0.11". Only the joined q, k, v weight is set on
    purpose; the output projection and the MLP are as torch's constructors left them, biases of the MLP included.
    """

    def qkv(site: Site) -> Distribution:
        rows, columns = site.shape
        fused = Fans(columns, 3 * rows, "q, k, v as one matrix")
        if site.arch.placement == "deepnorm":
            if kind != "0.0.11":
                return xavier_normal(fused)
            return xavier_normal(linear_fans(site.shape), gain(site) if site.role == "attn.v.weight" else 1.0)
        if kind == "0.0.8":
            return xavier_uniform(fused)
        return xavier_uniform(fused if kind == "0.0.9" else linear_fans(site.shape), math.sqrt(0.5))

    def other(site: Site) -> Distribution:
        if site.arch.placement == "deepnorm":
            return xavier_normal(linear_fans(site.shape), gain(site))
        return default(site)

    found = table(
        linear=other,
        mlp_bias=default,
        patch=default,
        patch_bias=default,
        pos=normal(0.02),
        cls=ZEROS,
        layer_scale=ONES,
        head=default,
        head_bias=default,
    )
    return found | weights(QKV, qkv) | weights(("pool.dense",), default) | {"pool.dense.bias": default}
