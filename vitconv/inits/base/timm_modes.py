"""What timm's modes share: huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31."""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, constant, normal, truncated_absolute, truncated_sigma
from vitconv.inits.base.roles import (
    NEAR_ZERO,
    ONES,
    QKV,
    ZEROS,
    Value,
    default,
    fused_xavier,
    lecun,
    table,
    weights,
    xavier,
)

# The default of LayerScale(init_values=...) in timm.
LAYER_SCALE = constant(1e-5)


def probe(site: Site) -> Distribution:
    """Return what timm's attention-pooling head draws its probe from, in every mode: cut at 2 sigma, not widened."""
    return truncated_sigma(site.shape[-1] ** -0.5)


# timm's SwiGLU starts its gate at a weight near 0 and a bias of 1, in its own init_weights (timm/layers/mlp.py).
_GATE: dict[str, Value] = {"mlp.gate.weight": NEAR_ZERO, "mlp.gate.bias": ONES}


def plain(linear: Distribution) -> dict[str, Value]:
    """Return timm's mode '' with this distribution for the linear layers and the position table."""
    return table(
        linear=linear,
        patch=default,
        patch_bias=default,
        pos=linear,
        cls=NEAR_ZERO,
        dist=linear,
        probe=probe,
        layer_scale=LAYER_SCALE,
        more=_GATE,
    )


def jax(head_bias: Value) -> dict[str, Value]:
    """Return timm's mode `jax`: q, k and v are drawn as one matrix, so they come out sqrt(1/2) too small."""
    return table(
        linear=xavier,
        mlp_bias=NEAR_ZERO,
        patch=lecun,
        pos=normal(0.02),
        cls=NEAR_ZERO,
        dist=normal(0.02),
        probe=probe,
        layer_scale=LAYER_SCALE,
        head=ZEROS,
        head_bias=head_bias,
        more=_GATE | weights(QKV, fused_xavier),
    )


def moco() -> dict[str, Value]:
    """Return timm's mode `moco`: q, k and v each as a matrix of its own."""
    return table(
        linear=xavier,
        patch=default,
        patch_bias=default,
        pos=truncated_absolute(0.02),
        cls=NEAR_ZERO,
        dist=truncated_absolute(0.02),
        probe=probe,
        layer_scale=LAYER_SCALE,
        more=_GATE,
    )
