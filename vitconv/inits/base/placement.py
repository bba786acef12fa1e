"""How the kinds of schemes go with the places a norm can stand: one table, so that no scheme argues by itself.

Sources: Xiong et al., 2020 (pre and post); Wang et al., DeepNet, 2022; Liu et al., Swin V2, 2021; and trainings of
small networks, in which Xavier with the norm after the sum stays at chance from 24 blocks on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vitconv.inits.base.scheme import Fit

_NO_NORM = Fit("refuse", "without norms the stream of a depth-independent scheme grows with every block")

# The same weights at every depth.
FLAT: Mapping[str, Fit] = MappingProxyType(
    {
        "post": Fit("warn", "with Xavier-sized weights a post-norm stack is dead from about 24 blocks on"),
        "deepnorm": Fit("warn", "beta is missing: value, output and MLP are not scaled by (8N)^-1/4"),
        "res-post": Fit("warn", "the norms of the branches start at gain 1; Swin-v2 starts them at 0"),
        "none": _NO_NORM,
    }
)

# Residual branches made small with depth, for a pre-norm stack.
RESCALED: Mapping[str, Fit] = MappingProxyType(
    {
        "post": Fit("warn", "it acts like DeepNorm's beta without its alpha"),
        "deepnorm": Fit("refuse", "on top of alpha the branches get too small: DeepNet's bound is far below 1"),
        "res-post": Fit("refuse", "the norm after the branch divides any scale of its weights out again"),
        "none": Fit("warn", "small branches help, but nothing else bounds the stream"),
    }
)

ONLY_DEEPNORM: Mapping[str, Fit] = MappingProxyType(
    {
        "pre": Fit("refuse", "without alpha in the residual this is only a small branch, not DeepNet"),
        "post": Fit("refuse", "alpha is missing in the residual: the bound is sqrt(2N), not 1"),
        "res-post": Fit("refuse", "the norm after the branch divides beta out again"),
        "none": Fit("refuse", "DeepNet normalises the sum after every sublayer"),
    }
)

ONLY_RES_POST: Mapping[str, Fit] = MappingProxyType(
    {
        "pre": Fit("refuse", "a gain of 0 ahead of the branch switches it off, which is no Swin-v2"),
        "post": Fit("refuse", "a gain of 0 after the sum deletes the stream itself, and no gradient passes below"),
        "deepnorm": Fit("refuse", "a gain of 0 after the sum deletes the stream itself, and no gradient passes below"),
        "none": Fit("refuse", "there is no norm whose gain could be small"),
    }
)

ONLY_PRE: Mapping[str, Fit] = MappingProxyType(
    {
        "post": Fit("refuse", "the norm after the sum lets no small branch stay small"),
        "deepnorm": Fit("refuse", "alpha already makes the branches small against the stream"),
        "res-post": Fit("refuse", "the gain of the branch's norm does the same already"),
        "none": _NO_NORM,
    }
)

ONLY_NO_NORM: Mapping[str, Fit] = MappingProxyType(
    {
        place: Fit("refuse", "the scheme takes the place of the norms, which must be removed")
        for place in ("pre", "post", "deepnorm", "res-post")
    }
)
