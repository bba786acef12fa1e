"""What the two kinds of timm's NaFlexVit have in common: embeddings of their own, positions for patches alone.

Source: huggingface/pytorch-image-models, timm/models/naflexvit.py, 1.0.31. Patches are flattened over rows, columns,
channels; with `patchify_channels_last=False` over channels, rows, columns, which no shape tells. The position table is
kept on its grid, or as the sum of one over rows and one over columns; tokens ahead of the patches have no place in it.
"""

from vitconv.layout.rule import Choice, Entry, Forbid, Option, norm, rule

_TABLES = ("embed.pos", "embed.pos_y", "embed.pos_x")
_FLAT = "embeds.proj.weight: d ({})"
_PATCH = "embed.patch.weight: d c p q"

PREFIX = {
    r"^embed\.pos_(cls|reg|dist)$": "positions of tokens; --edit fold-cls-position adds them to the tokens",
    r"^embed\.dist$|^head_dist\.": "a distillation token and its head",
}
MIXED = Forbid(r"^rope\.freqs$", "rotary positions with frequencies that are trained (mixed) have no place elsewhere")


def stem(factorized: tuple[str, ...] = ("learned",)) -> tuple[Entry, ...]:
    """Build tokens, positions, the norm of the patches and their projection without its bias.

    `factorized` is what positions are beside a table that is a sum: turned as well, where the blocks can.
    """
    return (
        *rule("embeds.cls_token: 1 1 d", "embed.cls: d", optional=True),
        *rule("embeds.reg_token: 1 r d", "embed.reg: r d", optional=True),
        Choice(
            "position",
            (
                Option(
                    "learned",
                    rule("embeds.pos_embed: 1 rows columns d", "embed.pos: (rows columns) d"),
                    without=_TABLES[1:],
                ),
                Option(
                    "factorized",
                    (
                        *rule("embeds.pos_embed_y: 1 rows d", "embed.pos_y: rows d"),
                        *rule("embeds.pos_embed_x: 1 columns d", "embed.pos_x: columns d"),
                    ),
                    implies={"position": factorized if len(factorized) > 1 else factorized[0]},
                ),
                # Without a table the keys are also those of rotary attention.
                Option("none", without=_TABLES, maybe={"position": ("rope",)}),
            ),
        ),
        Choice(
            "stem",
            (
                Option("linear", rule(_FLAT.format("p q c"), _PATCH)),
                Option("linear-channels-first", rule(_FLAT.format("c p q"), _PATCH), read_only=True, asked=True),
                Option("conv", rule("embeds.proj.weight: d c p q", _PATCH), read_only=True),
            ),
        ),
        *norm("embeds.norm", "embed.patch_norm", optional=True),
    )
