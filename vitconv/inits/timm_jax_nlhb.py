"""timm's jax mode with the head's bias at minus the log of the number of classes"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, constant
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import jax


def _bias(site: Site) -> Distribution:
    classes = site.shape[0]
    return constant(-math.log(classes), f"-ln {classes}")


SCHEME = Scheme(
    name="timm-jax-nlhb",
    title="timm, weight_init='jax_nlhb'",
    source="huggingface/pytorch-image-models, timm/models/vision_transformer.py, init_weights_vit_jax, 1.0.31",
    table=jax(_bias),
    fits=FLAT,
    notes=("meant for a sigmoid loss summed over classes: every class starts at probability about 1/classes",),
    quirk="q, k and v have an effective gain of sqrt(1/2)",
)
