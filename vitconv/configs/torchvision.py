"""What torchvision's VisionTransformer always is; it writes no configuration file.

The head count is not among it: a width alone does not tell it.
Source: pytorch/vision torchvision/models/vision_transformer.py, 0.29.1.
"""

from __future__ import annotations

from vitconv.layout.semantics import Semantics


def implied_facts() -> Semantics:
    """Return the facts of every model that torchvision's own builders make (`norm_layer` left at its default)."""
    return Semantics(
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=1e-6,
        final_norm_eps=1e-6,
        activation="gelu",
        attention="softmax",
        kv_normalised=True,
        pooling="token",
        position="learned",
    )
