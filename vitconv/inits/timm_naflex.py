"""timm's NaFlexVit: its default with the patches as a linear layer, branches divided by sqrt(2 x block number)"""

from __future__ import annotations

from vitconv.inits.base.distribution import normal, truncated_absolute
from vitconv.inits.base.placement import RESCALED
from vitconv.inits.base.roles import NEAR_ZERO, ZEROS, weights
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import plain
from vitconv.inits.beit import rescaled

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="timm-naflex",
    title="timm's NaFlexVit, fix_init=True",
    source="huggingface/pytorch-image-models, timm/models/naflexvit.py, fix_init_weight, 1.0.31",
    table={
        **plain(_USUAL),
        "patch.weight": _USUAL,
        "patch.bias": ZEROS,
        "position": normal(0.02),
        "embed.reg": NEAR_ZERO,
        **weights(("attn.out", "mlp.down"), rescaled),
    },
    fits=RESCALED,
    notes=("the division is done in place, so calling it twice gives .02 / (2 l)",),
)
