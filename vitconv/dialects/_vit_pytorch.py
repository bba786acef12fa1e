"""What vit-pytorch's networks have in common: patches as rows, with a norm before and behind their projection.

Source: lucidrains/vit-pytorch, vit_pytorch/vit.py and simple_vit.py, 1.2.0 to 1.26.14.
"""

from vitconv.layout.rule import Forbid, norm, rule

PIXELS = "embed.pixel_norm.weight"
NORMED = (
    *norm("to_patch_embedding.3", "embed.patch_norm"),
    *rule("to_patch_embedding.1.weight: (p q c)", "embed.pixel_norm.weight: c p q"),
    *rule("to_patch_embedding.1.bias: (p q c)", "embed.pixel_norm.bias: c p q"),
)
# Its other networks, which compute what no layout here does, by a key that only they have.
VARIANTS = (
    Forbid(r"\.(q|k)_norm\.gamma$", "norms of queries and keys with one scale for each head"),
    Forbid(r"\.temperature$", "a temperature of attention that is trained (ViT for small datasets)"),
    Forbid(r"\.reattn_", "attention that is mixed over heads (DeepViT)"),
    Forbid(r"^(patch_transformer|cls_transformer)\.", "layers of class attention (CaiT)"),
    Forbid(r"\.(to_v_)?(value_residual|mix|learned_value_residual)", "values mixed over layers"),
    Forbid(r"^(memory_tokens|memory_cls_token)", "memory tokens (learnable_memory_vit)"),
    Forbid(r"patch_merger|\.queries$", "merging of patches (vit_with_patch_merger)"),
)
