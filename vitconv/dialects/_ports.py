"""What the first ports of Google's ViT to torch share: torch's LayerNorm and the exact GELU on Google's weights.

Source: jeonsworld/ViT-pytorch, models/modeling.py, 460a162; lukemelas/PyTorch-Pretrained-ViT,
pytorch_pretrained_vit, 8ec2cab. Both resize a table with scipy's zoom of order 1, as vit_jax does.
"""

from typing import Any

from vitconv.dialects._parts import why

AUTHOR: dict[str, Any] = {
    "norm_eps": 1e-6,
    "final_norm_eps": 1e-6,
    "activation": "gelu",
    "pooling": "token",
    "position": "learned",
    "position_resize": "bilinear-corners",
}
CANNOT = why("ls", "embed.norm", "pool.norm", "dist", "map") | {
    r"^embed\.(reg|pos_reg)$": "register tokens",
    r"^embed\.mask$": "a mask token",
    r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
    r"\.attn\.[qk]_norm\.": "norms of queries and keys",
}
