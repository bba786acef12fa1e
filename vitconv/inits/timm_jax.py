"""timm's jax mode: Xavier, with q, k and v drawn as one matrix"""

from __future__ import annotations

from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ZEROS
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import jax

SCHEME = Scheme(
    name="timm-jax",
    title="timm, weight_init='jax'",
    source="huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, init_weights_vit_jax",
    table=jax(ZEROS),
    fits=FLAT,
    quirk="q, k and v have an effective gain of sqrt(1/2); the JAX reference draws each by itself (scheme jax)",
)
