"""PVT and PVTv2 under the names of libraries that have them: transformers (both), timm (PVTv2).

Source: huggingface/transformers, models/pvt/modeling_pvt.py and pvt_v2/modeling_pvt_v2.py, 5.24.0;
huggingface/pytorch-image-models, timm/models/pvt_v2.py, 1.0.31. transformers has one eps for all norms, where the
authors have 1e-5 after patches and spatial reductions.
"""

from __future__ import annotations

from typing import Any

from vitconv.dialects._flatten import IMPLIES
from vitconv.dialects._swin import B, S
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Option, linear, norm, rule
from vitconv.record import dataclass

_WHY = {
    r"\.attn\.(table|logit_scale|cpb\.)|\.merge\.|^embed\.pos$": "windows, their relative positions and mergings",
    r"\.attn\.b[01]\.": "stripes (CSwin)",
    r"\.attn\.(scale|pos|dwc\.)": "focused linear attention",
}


@dataclass(frozen=True)
class Names:
    """The names of one library: where a stage's patches and blocks are, and the parts of a block."""

    first: tuple[str, str]
    patch: tuple[str, str]
    block: str
    norms: tuple[str, str]
    attn: str
    reduction: tuple[str, str]
    out: str
    mlp: tuple[str, str]
    dwc: str = ""


def block(names: Names, *, fused: bool) -> tuple[Entry, ...]:
    """Build a block: q apart from k and v, which may be fused, a spatial reduction where the stage has one."""
    at, attn = names.block, names.block + names.attn
    if fused:
        qkv = (
            *rule(f"{attn}q.weight: a d", f"{B}attn.q.weight: a d"),
            *rule(f"{attn}q.bias: a", f"{B}attn.q.bias: a", optional=True, group="qkv_bias"),
            *rule(f"{attn}kv.weight: (* a) f", f"{B}attn.{{k,v}}.weight: a f"),
            *rule(f"{attn}kv.bias: (* a)", f"{B}attn.{{k,v}}.bias: a", optional=True, group="qkv_bias"),
        )
    else:
        qkv = (
            *rule(f"{attn}query.weight: a d", f"{B}attn.q.weight: a d"),
            *rule(f"{attn}{{key,value}}.weight: a f", f"{B}attn.{{k,v}}.weight: a f"),
            *rule(f"{attn}{{query,key,value}}.bias: a", f"{B}attn.{{q,k,v}}.bias: a", optional=True, group="qkv_bias"),
        )
    conv, after = (attn + x for x in names.reduction)
    inside: tuple[Entry, ...] = ()
    if names.dwc:
        inside = (
            *rule(f"{at}{names.dwc}.weight: m 1 r z", f"{B}mlp.dwc.weight: m r z"),
            *rule(f"{at}{names.dwc}.bias: m", f"{B}mlp.dwc.bias: m"),
        )
    return (
        *norm(at + names.norms[0], B + "norm1"),
        *qkv,
        *rule(f"{conv}.weight: f d v w", f"{B}attn.sr.weight: f d v w", optional=True, group="sr.{s}"),
        *rule(f"{conv}.bias: f", f"{B}attn.sr.bias: f", optional=True, group="sr.{s}"),
        *rule(f"{after}.weight: f", f"{B}attn.sr_norm.weight: f", optional=True, group="sr.{s}"),
        *rule(f"{after}.bias: f", f"{B}attn.sr_norm.bias: f", optional=True, group="sr.{s}"),
        *linear(at + names.out, B + "attn.out", "d a"),
        *norm(at + names.norms[1], B + "norm2"),
        *linear(at + names.mlp[0], B + "mlp.up", "m d"),
        *inside,
        *linear(at + names.mlp[1], B + "mlp.down", "d m"),
    )


def stem(names: Names) -> tuple[Entry, ...]:
    """Build the patches of every stage and the norm after each."""
    conv, after = names.patch
    return (
        *linear(names.first[0], "embed.patch", "d c p q"),
        *norm(names.first[1], "embed.norm"),
        *rule(f"{conv}.weight: d before p q", f"{S}patch.weight: d before p q", layers="body"),
        *rule(f"{conv}.bias: d", f"{S}patch.bias: d", layers="body"),
        *norm(after, f"{S}patch_norm", layers="body"),
    )


def pyramid(
    name: str, title: str, source: str, entries: tuple[Entry, ...], *, v2: bool, library: str, eps: dict[str, float]
) -> Dialect:
    """Build the dialect of one library's PVT, or of its PVTv2."""
    other = r"\.pos$|\.(cls|pos_cls)$" if v2 else r"\.mlp\.dwc\.|^stages\.[^.]+\.norm\."
    more = {r"^norm\.": "a norm of its own after the last stage's"} if v2 else {}
    implies: dict[str, Any] = {**IMPLIES, "attention": "softmax", "pooling": "avg" if v2 else "token"}
    return Dialect(
        name=name,
        title=title,
        source=source,
        library=library,
        family="stages",
        staged=True,
        implies=implies,
        author={"activation": "gelu", **eps},
        entries=entries,
        cannot=_WHY
        | {r"^embed\.mask$": "a mask token", other: "parts of the other PVT", r"^head\.": "a classifier"}
        | more,
        equal=(("a", "d"), ("f", "d")),
    )


def transformers(name: str, title: str, *, v2: bool) -> Dialect:
    """Build transformers' names of PVT or PVTv2."""
    model = "pvt_v2" if v2 else "pvt"
    e = "{p}encoder."
    if v2:
        at = e + "layers.{s}."
        names = Names(
            first=(e + "layers.0.patch_embedding.proj", e + "layers.0.patch_embedding.layer_norm"),
            patch=(at + "patch_embedding.proj", at + "patch_embedding.layer_norm"),
            block=at + "blocks.{i}.",
            norms=("layer_norm_1", "layer_norm_2"),
            attn="attention.",
            reduction=("spatial_reduction", "layer_norm"),
            out="attention.proj",
            mlp=("mlp.dense1", "mlp.dense2"),
            dwc="mlp.dwconv.dwconv",
        )
        stages: tuple[Entry, ...] = norm(at + "layer_norm", f"{S}norm")
    else:
        at = e + "patch_embeddings.{s}."
        names = Names(
            first=(e + "patch_embeddings.0.projection", e + "patch_embeddings.0.layer_norm"),
            patch=(at + "projection", at + "layer_norm"),
            block=e + "block.{s}.{i}.",
            norms=("layer_norm_1", "layer_norm_2"),
            attn="attention.self.",
            reduction=("sequence_reduction", "layer_norm"),
            out="attention.output.dense",
            mlp=("mlp.dense1", "mlp.dense2"),
        )
        stages = (
            *rule(at + "position_embeddings: 1 n d", f"{S}pos: n d", layers="early"),
            *rule(at + "position_embeddings: 1 (1+n) d", f"{S}pos_cls: d", f"{S}pos: n d", layers="last"),
            *rule(at + "cls_token: 1 1 d", f"{S}cls: d", layers="last"),
            *norm(e + "layer_norm", "norm", "last"),
        )
    head = Choice(
        "model",
        (
            Option("classification", linear("classifier", "head", "o last"), bind={"p": f"{model}."}),
            Option("base", bind={"p": ""}),
        ),
    )
    return pyramid(
        name,
        title,
        f"huggingface/transformers models/{model}/modeling_{model}.py, 5.24.0",
        (head, *stem(names), *block(names, fused=False), *stages),
        v2=v2,
        library="transformers",
        eps={"norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": 1e-6},
    )
