"""FLatten-CSwin: one or two branches of stripes per block, each with its own convolution of the values.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_cswin.py, commit a7f0a4b.
"""

from vitconv.dialects._flatten import IMPLIES, SOURCE, either, linear_into
from vitconv.dialects._swin import AUTHOR, B
from vitconv.layout.canonical_stages import FAMILY
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Entry, linear, norm, rule

_AT = "stage{s+1}.{i}."


def _tensors(at: str, part: str, shapes: dict[str, tuple[str, str, str]], j: int) -> tuple[Entry, ...]:
    """Build tensors of one branch; the second branch is there in a block or is not, all of it."""
    out: list[Entry] = []
    for key, (whole, name, axes) in shapes.items():
        group = "second.{s}.{i}" if j else ""
        out += rule(f"{at}{key}: {whole}", f"{part}{name}: {axes}", optional=bool(j), group=group)
    return tuple(out)


_LEPE = {"get_v.weight": ("g 1 j l", "lepe.weight", "g j l"), "get_v.bias": ("g", "lepe.bias", "g")}
_FOCUS = {
    "scale": ("1 1 g", "scale", "g"),
    "positional_encoding": ("1 u g", "pos", "u g"),
    "dwc.weight": ("e 1 x y", "dwc.weight", "e x y"),
    "dwc.bias": ("e", "dwc.bias", "e"),
}


def _branches(shapes: dict[str, tuple[str, str, str]]) -> tuple[Entry, ...]:
    return tuple(e for j in (0, 1) for e in _tensors(f"{_AT}attns.{j}.", f"{B}attn.b{j}.", shapes, j))


DIALECT = Dialect(
    name="flatten-cswin",
    title="FLatten-CSwin",
    source=SOURCE.format("cswin"),
    library="flatten",
    family=FAMILY,
    staged=True,
    implies={**IMPLIES, "pooling": "avg"},
    author={**AUTHOR, "focusing_factor": 3.0},
    entries=(
        *norm(_AT + "norm1", B + "norm1"),
        *rule(f"{_AT}qkv.weight: (* a) d", f"{B}attn.{{q,k,v}}.weight: a d"),
        *rule(f"{_AT}qkv.bias: (* a)", f"{B}attn.{{q,k,v}}.bias: a", optional=True),
        *_branches(_LEPE),
        either(_branches(_FOCUS), (), "attn.b0.scale"),
        *linear(_AT + "proj", B + "attn.out", "d a"),
        *norm(_AT + "norm2", B + "norm2"),
        *linear(_AT + "mlp.fc1", B + "mlp.up", "m d"),
        *linear(_AT + "mlp.fc2", B + "mlp.down", "d m"),
        *linear("stage1_conv_embed.0", "embed.patch", "d c p q"),
        *norm("stage1_conv_embed.2", "embed.norm"),
        *linear_into("merge{s}.conv", "merge{s}.norm"),
        *norm("norm", "norm", "last"),
        *linear("head", "head", "o last", optional=True),
    ),
    cannot={
        r"\.attn\.(table|logit_scale|cpb\.)|\.merge\.|^embed\.pos$": "windows and their relative positions (Swin)",
        r"\.attn\.(scale|pos|dwc\.(weight|bias))$": "focused attention without stripes",
        r"\.attn\.(sr|sr_norm)\.|\.mlp\.dwc\.": "the blocks of PVT",
        r"^embed\.mask$|^stages\.[^.]+\.(pos|cls|pos_cls|norm\.)": "tokens, tables and norms of PVT's stages",
    },
    equal=(("a", "d"),),
)
