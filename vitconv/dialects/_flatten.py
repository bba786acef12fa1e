"""What the four FLatten layouts have in common: a focused block's own tensors, and why others have no place.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_swin.py, flatten_pvt.py, flatten_pvt_v2.py and flatten_cswin.py,
commit a7f0a4b. The power (focusing factor, 3 unless the configuration says otherwise) is not in a file.
"""

from __future__ import annotations

from vitconv.dialects._swin import B, S
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Option, linear, norm, rule
from vitconv.layout.semantics import FOCUSED

SOURCE = "LeapLabTHU/FLatten-Transformer models/flatten_{}.py, a7f0a4b"
IMPLIES = {"norm_placement": "pre", "norm_kind": "layernorm", "kv_normalised": True}


def focus(whole: str, part: str, *, width: str = "a") -> tuple[Entry, ...]:
    """Build scale, position table and depthwise filter of one focused attention."""
    return (
        *rule(f"{whole}scale: 1 1 {width}", f"{part}scale: {width}"),
        *rule(f"{whole}positional_encoding: 1 u {width}", f"{part}pos: u {width}"),
        *rule(f"{whole}dwc.weight: e 1 x y", f"{part}dwc.weight: e x y"),
        *rule(f"{whole}dwc.bias: e", f"{part}dwc.bias: e"),
    )


def either(focused: tuple[Entry, ...], softmax: tuple[Entry, ...], proof: str = "attn.scale") -> Choice:
    """Build the choice that every block makes for itself."""
    return Choice(
        "blocks",
        (
            Option("focused", focused, needs=(B + proof,), implies={"attention": FOCUSED}),
            Option("softmax", softmax, implies={"attention": "softmax"}),
        ),
    )


def pyramid(name: str, title: str, source: str, *, v2: bool, token: bool = False) -> Dialect:
    """Build FLatten-PVT or -PVTv2: q apart from k and v, a spatial reduction, convolutions between the stages.

    With a class `token` it is PVT itself, in whose last stage the token has a row of the position table.
    """
    at = "block{s+1}.{i}."
    stages: tuple[Entry, ...] = (
        *linear("patch_embed1.proj", "embed.patch", "d c p q"),
        *norm("patch_embed1.norm", "embed.norm"),
        *linear_into("patch_embed{s+1}.proj", "patch_embed{s+1}.norm"),
    )
    if v2:
        stages += norm("norm{s+1}", f"{S}norm")
    elif token:
        stages += rule("pos_embed{s+1}: 1 n d", f"{S}pos: n d", layers="early")
        stages += rule("pos_embed{s+1}: 1 (1+n) d", f"{S}pos_cls: d", f"{S}pos: n d", layers="last")
        stages += rule("cls_token: 1 1 d", f"{S}cls: d", layers="last")
    else:
        stages += rule("pos_embed{s+1}: 1 n d", f"{S}pos: n d")
    inside: tuple[Entry, ...] = ()
    if v2:
        for kind, axes, whole in (("weight", "m r z", "m 1 r z"), ("bias", "m", "m")):
            inside += rule(f"{at}mlp.dwconv.dwconv.{kind}: {whole}", f"{B}mlp.dwc.{kind}: {axes}")
    eps = {"norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": 1e-5}
    none = {
        r"\.attn\.(table|logit_scale|cpb\.)|\.merge\.|^embed\.pos$": "windows, their relative positions and mergings",
        r"\.attn\.b[01]\.": "stripes (CSwin)",
        (r"^embed\.mask$" if token else r"^embed\.mask$|\.(cls|pos_cls)$"): "a class or mask token",
        (r"\.pos$" if v2 else r"\.mlp\.dwc\.|^stages\.[^.]+\.norm\."): "parts of the other PVT",
    }
    return Dialect(
        name=name,
        title=title,
        source=source,
        library="pvt" if token else "flatten",
        family="stages",
        staged=True,
        implies={**IMPLIES, "pooling": "token" if token else "avg" if v2 else "avg-unnormed"}
        | ({"attention": "softmax"} if token else {}),
        author={"activation": "gelu", **({} if token else {"focusing_factor": 3.0}), **eps},
        entries=(
            *norm(at + "norm1", B + "norm1"),
            *rule(f"{at}attn.q.weight: a d", f"{B}attn.q.weight: a d"),
            *rule(f"{at}attn.q.bias: a", f"{B}attn.q.bias: a", optional=True, group="qkv_bias"),
            *rule(f"{at}attn.kv.weight: (* a) f", f"{B}attn.{{k,v}}.weight: a f"),
            *rule(f"{at}attn.kv.bias: (* a)", f"{B}attn.{{k,v}}.bias: a", optional=True, group="qkv_bias"),
            *(() if token else (either(focus(at + "attn.", B + "attn."), ()),)),
            *rule(f"{at}attn.sr.weight: f d v w", f"{B}attn.sr.weight: f d v w", optional=True, group="sr.{s}"),
            *rule(f"{at}attn.sr.bias: f", f"{B}attn.sr.bias: f", optional=True, group="sr.{s}"),
            *rule(f"{at}attn.norm.weight: f", f"{B}attn.sr_norm.weight: f", optional=True, group="sr.{s}"),
            *rule(f"{at}attn.norm.bias: f", f"{B}attn.sr_norm.bias: f", optional=True, group="sr.{s}"),
            *linear(at + "attn.proj", B + "attn.out", "d a"),
            *norm(at + "norm2", B + "norm2"),
            *linear(at + "mlp.fc1", B + "mlp.up", "m d"),
            *inside,
            *linear(at + "mlp.fc2", B + "mlp.down", "d m"),
            *stages,
            *(() if v2 else norm("norm", "norm", "last")),
            *linear("head", "head", "o last", optional=True),
        ),
        cannot=none
        | ({r"\.attn\.(scale|pos|dwc\.)": "focused linear attention"} if token else {})
        | ({r"^norm\.": "a norm of its own after the last stage's"} if v2 else {}),
        equal=(("a", "d"), ("f", "d")),
    )


def linear_into(conv: str, after: str) -> tuple[Entry, ...]:
    """Build the convolution into a stage and the norm after it."""
    return (
        *rule(f"{conv}.weight: d before p q", f"{S}patch.weight: d before p q", layers="body"),
        *rule(f"{conv}.bias: d", f"{S}patch.bias: d", layers="body"),
        *norm(after, f"{S}patch_norm", layers="body"),
    )
