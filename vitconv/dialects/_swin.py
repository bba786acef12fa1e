"""What the Swin layouts have in common: the parts of a block, of a merging, and of the stem, under each one's names.

Source: microsoft/Swin-Transformer, models/swin_transformer.py and swin_transformer_v2.py; the others are cited where
their names are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitconv.dialects._parts import buffers
from vitconv.layout.canonical_stages import FAMILY, NEIGHBOURS
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Const, Entry, Forbid, Option, const, linear, norm, rule

S, B = "stages.{s}.", "stages.{s}.blocks.{i}."
KEY_BIAS = B + "attn.k.bias"
# MS concatenates the left column first, from top to bottom; nn.Unfold runs along rows, channels outermost.
BY_COLUMN = ("h0w0", "h1w0", "h0w1", "h1w1")
BY_ROW = ("h0w0", "h0w1", "h1w0", "h1w1")


def stem(proj: str, after: str, position: str = "", mask: str = "") -> tuple[Entry, ...]:
    """Build the patch projection and what may follow it: a norm, a position table."""
    out: list[Entry] = [*linear(proj, "embed.patch", "d c p q"), *norm(after, "embed.norm", optional=True)]
    if position:
        out += rule(f"{position}: 1 n d", "embed.pos: n d", optional=True)
    if mask:
        out += rule(f"{mask}: 1 1 d", "embed.mask: d", optional=True)
    return tuple(out)


def merging(at: str, v2: bool, order: Sequence[str] = BY_COLUMN, *, channels_first: bool = False) -> tuple[Entry, ...]:
    """Build the merging into a stage: v1 norms the four neighbours before the projection, v2 its result after it."""
    joined = "(before *)" if channels_first else "(* before)"
    cells = "{" + ",".join(order) + "}"
    out: list[Entry] = [*rule(f"{at}reduction.weight: d {joined}", f"{S}merge.{cells}.weight: d before", layers="body")]
    if v2:
        return (*out, *norm(f"{at}norm", f"{S}merge.out_norm", layers="body"))
    for kind in ("weight", "bias"):
        out += rule(f"{at}norm.{kind}: {joined}", f"{S}merge.norm.{cells}.{kind}: before", layers="body")
    return tuple(out)


def qkv(at: str, v2: bool) -> tuple[Entry, ...]:
    """Build fused projections; v2 keeps the biases of queries and values apart and has none for keys."""
    out: list[Entry] = [*rule(f"{at}qkv.weight: (* a) d", f"{B}attn.{{q,k,v}}.weight: a d")]
    if not v2:
        return (*out, *rule(f"{at}qkv.bias: (* a)", f"{B}attn.{{q,k,v}}.bias: a", optional=True))
    for part in "qv":
        out += rule(f"{at}{part}_bias: a", f"{B}attn.{part}.bias: a", optional=True, group="qv_bias")
    return tuple(out)


def offsets(at: str, v2: bool, mlp: str = "cpb_mlp", table: str = "relative_position_bias_table") -> tuple[Entry, ...]:
    """Build what weighs relative positions: a table, or in v2 an MLP of the coordinates beside the cosine's scale."""
    if not v2:
        return rule(f"{at}{table}: t h", f"{B}attn.table: t h")
    return (
        *rule(f"{at}logit_scale: h 1 1", f"{B}attn.logit_scale: h"),
        *linear(f"{at}{mlp}.0", f"{B}attn.cpb.up", "k 2"),
        *rule(f"{at}{mlp}.2.weight: h k", f"{B}attn.cpb.down.weight: h k"),
    )


def indices(at: str, v2: bool, *, flat: bool = False) -> tuple[Const, ...]:
    """Build the buffers of relative positions that a file is to hold; one that was stripped of them is read."""
    axes, value = ("u", "relative-index-flat") if flat else ("u v", "relative-index")
    out = const(f"{at}relative_position_index: {axes}", value, written=True)
    return out + const(f"{at}relative_coords_table: 1 u v 2", "coords", dtype="float", written=True) if v2 else out


def _held_by_4(at: str, v2: bool) -> tuple[Const, ...]:
    index = const(f"{at}relative_position_index: u v", "relative-index", optional=False)
    return index + const(f"{at}relative_coords_table: 1 u v 2", "coords", dtype="float") if v2 else index


def fixed(v2: bool) -> dict[str, object]:
    """Return the facts that hold for every Swin."""
    return {
        "norm_placement": "res-post" if v2 else "pre",
        "norm_kind": "layernorm",
        "kv_normalised": True,
        "attention": "cosine" if v2 else "softmax",
        "pooling": "avg",
    }


# What the authors' code takes: microsoft/Swin-Transformer, nn.LayerNorm and nn.GELU as they come.
AUTHOR = {"activation": "gelu", "norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5}

OTHERS: Mapping[str, str] = {
    r"\.attn\.(b[01]\.)?(scale|pos|dwc\.(weight|bias))$|\.lepe\.": "focused linear attention",
    r"\.attn\.(sr|sr_norm)\.": "a spatial reduction of keys and values (PVT)",
    r"\.mlp\.dwc\.": "a convolution inside the MLP (PVTv2)",
    r"\.patch(_norm)?\.|^stages\.[^.]+\.(pos|cls|pos_cls|norm\.)": "the stages of PVT or CSwin",
}


def cannot(v2: bool, **more: str) -> dict[str, str]:
    """Return why parts of other stage-wise networks have no place, by canonical pattern."""
    one = r"\.attn\.(logit_scale|cpb\.)|\.merge\.out_norm\."
    two = r"\.attn\.table$|\.merge\.norm\."
    name = "a table of relative positions and a norm before merging (Swin)" if v2 else "cosine attention (Swin V2)"
    bias = {r"\.attn\.k\.bias$": "a key bias"} if v2 else {}
    return {two if v2 else one: name, **bias, **OTHERS, **more}


def published(
    name: str,
    title: str,
    source: str,
    library: str,
    *,
    v2: bool,
    merge: str,
    head: str,
    own: bool,
    dense: bool = False,
) -> Dialect:
    """Build the names of Microsoft, which timm took over; `own` buffers are in the file.

    With `dense` the last norm may be that of a backbone for dense prediction, which has one for each stage it gives.
    """
    at = "layers.{s}.blocks.{i}."
    end: tuple[Entry, ...] = (*norm("norm", "norm", "last"), *linear(head, "head", "o last", optional=True))
    if dense:
        backbone = Option("dense", norm("norm{l}", "norm", "last"), without=("head.weight",), read_only=True)
        end = (Choice("model", (Option("classification", end), backbone)),)
    return Dialect(
        name=name,
        title=title,
        source=source,
        library=library,
        family=FAMILY,
        staged=True,
        implies=fixed(v2),
        author=AUTHOR,
        entries=(
            *stem("patch_embed.proj", "patch_embed.norm", "absolute_pos_embed" if own else ""),
            *norm(at + "norm1", B + "norm1"),
            *qkv(at + "attn.", v2),
            *offsets(at + "attn.", v2),
            *(indices(at + "attn.", v2) if own else ()),
            *(const(at + "attn_mask: b u v", "shift-mask", dtype="float", written=True) if own else ()),
            *linear(at + "attn.proj", B + "attn.out", "d a"),
            *norm(at + "norm2", B + "norm2"),
            *linear(at + "mlp.fc1", B + "mlp.up", "m d"),
            *linear(at + "mlp.fc2", B + "mlp.down", "d m"),
            *merging(merge, v2),
            *end,
        ),
        derived={KEY_BIAS: "zero"} if v2 else {},
        forbids=(Forbid(r"\._moe_layer\.", "layers of experts (Swin-MoE), of which each token takes some"),),
        cannot=cannot(v2, **({} if own else {r"^embed\.pos$": "an absolute position table"}), **MASK),
        equal=(("a", "d"),),
    )


MASK = {r"^embed\.mask$": "a mask token"}


def torchvision(name: str, title: str, *, v2: bool) -> Dialect:
    """Build torchvision's names: stem, stages and mergings in one list."""
    at = "features.{2s+1}.{i}."
    # v2 has one bias for q, k and v; the forward pass sets the keys' third to zero.
    zero = {KEY_BIAS: 0.0} if v2 else {}
    bias = rule(f"{at}attn.qkv.bias: (* a)", f"{B}attn.{{q,k,v}}.bias: a", optional=True, fill=zero)
    return Dialect(
        name=name,
        title=title,
        source="pytorch/vision torchvision/models/swin_transformer.py, 0.29.1",
        library="torchvision",
        family=FAMILY,
        staged=True,
        # Its coordinates are those of its own window, never of another one in pre-training.
        implies={**fixed(v2), "activation": "gelu", **({"pretrained_window": (0,)} if v2 else {})},
        author=AUTHOR,
        entries=(
            *linear("features.0.0", "embed.patch", "d c p q"),
            *norm("features.0.2", "embed.norm"),
            *norm(at + "norm1", B + "norm1"),
            *rule(f"{at}attn.qkv.weight: (* a) d", f"{B}attn.{{q,k,v}}.weight: a d"),
            *bias,
            *offsets(at + "attn.", v2),
            *indices(at + "attn.", v2, flat=True),
            *linear(at + "attn.proj", B + "attn.out", "d a"),
            *norm(at + "norm2", B + "norm2"),
            *linear(at + "mlp.0", B + "mlp.up", "m d"),
            *linear(at + "mlp.3", B + "mlp.down", "d m"),
            *merging("features.{2s}.", v2),
            *norm("norm", "norm", "last"),
            *linear("head", "head", "o last", optional=True),
        ),
        cannot=cannot(v2, **{r"^embed\.pos$": "an absolute position table"}, **MASK),
        equal=(("a", "d"),),
    )


def transformers(name: str, title: str, *, v2: bool, new: bool) -> Dialect:
    """Build transformers' names: `new` are those of its modules since 5.9, v1 only; the others are on disk."""
    at = "{p}encoder.layers.{s}.blocks.{i}."
    inner = at + ("attention." if new else "attention.self.")
    parts = "{q_proj,k_proj,v_proj}" if new else "{query,key,value}"
    out, up, down = ("attention.o_proj", "mlp.fc1", "mlp.fc2") if new else (
        "attention.output.dense", "intermediate.dense", "output.dense",
    )  # fmt: skip
    table = "relative_position_bias.relative_position_bias_table" if new else "relative_position_bias_table"
    some = "{query,value}" if v2 else parts
    kept = "{q,v}" if v2 else "{q,k,v}"
    model = "swinv2" if v2 else "swin"
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers models/{model}/modeling_{model}.py, 4.57.3 and 5.24.0",
        library="transformers",
        family=FAMILY,
        staged=True,
        implies=fixed(v2),
        author=AUTHOR,
        entries=(
            Choice(
                "model",
                (
                    Option("classification", linear("classifier", "head", "o last"), bind={"p": f"{model}."}),
                    Option("base", bind={"p": ""}),
                ),
            ),
            *stem(
                "{p}embeddings.patch_embeddings.projection",
                "{p}embeddings.norm",
                "{p}embeddings.position_embeddings",
                "{p}embeddings.mask_token",
            ),
            *norm(at + "layernorm_before", B + "norm1"),
            *rule(f"{inner}{parts}.weight: a d", f"{B}attn.{{q,k,v}}.weight: a d"),
            *rule(f"{inner}{some}.bias: a", f"{B}attn.{kept}.bias: a", optional=True, group="qkv_bias"),
            *offsets(inner, v2, "continuous_position_bias_mlp", table),
            # Version 4 keeps the index in the file, version 5 makes it; the coordinates are in old files alone.
            *(() if new else (buffers(*_held_by_4(inner, v2)),)),
            *linear(at + out, B + "attn.out", "d a"),
            *norm(at + "layernorm_after", B + "norm2"),
            *linear(at + up, B + "mlp.up", "m d"),
            *linear(at + down, B + "mlp.down", "d m"),
            *merging("{p}encoder.layers.{s-1}.downsample.", v2),
            *norm("{p}layernorm", "norm", "last"),
        ),
        derived={KEY_BIAS: "zero"} if v2 else {},
        forbids=(Forbid(r"^decoder\.", "a decoder (masked image modelling) is not carried; take the encoder"),),
        cannot=cannot(v2, **{r"^head\.": "a classifier in the model that was chosen"}),
        equal=(("a", "d"),),
    )


assert set(BY_COLUMN) == set(NEIGHBOURS) == set(BY_ROW)
