"""FLatten-Swin: Swin's layout, in whose focused blocks scale, position table and filter stand for the table of offsets.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_swin.py, commit a7f0a4b. With no focused block the file is
Swin's own.
"""

from vitconv.dialects._flatten import IMPLIES, SOURCE, either, focus
from vitconv.dialects._swin import AUTHOR, B, indices, merging, offsets, qkv, stem
from vitconv.layout.canonical_stages import FAMILY
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import const, linear, norm

_AT = "layers.{s}.blocks.{i}."

DIALECT = Dialect(
    name="flatten-swin",
    title="FLatten-Swin",
    source=SOURCE.format("swin"),
    library="flatten",
    family=FAMILY,
    staged=True,
    under="swin",
    implies={**IMPLIES, "pooling": "avg"},
    author={**AUTHOR, "focusing_factor": 3.0},
    entries=(
        *stem("patch_embed.proj", "patch_embed.norm", "absolute_pos_embed"),
        *norm(_AT + "norm1", B + "norm1"),
        *qkv(_AT + "attn.", v2=False),
        either(
            focus(_AT + "attn.", B + "attn."),
            (*offsets(_AT + "attn.", v2=False), *indices(_AT + "attn.", v2=False)),
        ),
        *const(_AT + "attn_mask: b u v", "shift-mask", dtype="float", written=True),
        *linear(_AT + "attn.proj", B + "attn.out", "d a"),
        *norm(_AT + "norm2", B + "norm2"),
        *linear(_AT + "mlp.fc1", B + "mlp.up", "m d"),
        *linear(_AT + "mlp.fc2", B + "mlp.down", "d m"),
        *merging("layers.{s-1}.downsample.", v2=False),
        *norm("norm", "norm", "last"),
        *linear("head", "head", "o last", optional=True),
    ),
    cannot={
        r"\.attn\.(logit_scale|cpb\.)|\.merge\.out_norm\.": "cosine attention (Swin V2)",
        r"\.attn\.(sr|sr_norm)\.": "a spatial reduction of keys and values (PVT)",
        r"\.mlp\.dwc\.": "a convolution inside the MLP (PVTv2)",
        r"\.attn\.b[01]\.": "stripes (CSwin)",
        r"\.patch(_norm)?\.|^stages\.[^.]+\.(pos|cls|pos_cls|norm\.)": "the stages of PVT or CSwin",
        r"^embed\.mask$": "a mask token",
    },
    equal=(("a", "d"),),
)
