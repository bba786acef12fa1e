"""What transformers' ViT and DeiT have in common, and two sets of block names: on disk, and as version 5 holds them.

Source: huggingface/transformers, src/transformers/models/vit/modeling_vit.py and deit/modeling_deit.py, 4.57.3 (the
names that 5.x still writes to disk) and 5.24.0 (the names of its modules since 5.9).
"""

from vitconv.dialects._parts import TABLE
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, Rule, linear, norm, rule
from vitconv.record import dataclass


@dataclass(frozen=True)
class Names:
    """The block names of one epoch; `qkv` takes q, k and v in this order."""

    block: str
    qkv: str
    out: str
    up: str
    down: str


ON_DISK = Names(
    block="encoder.layer.{i}.",
    qkv="attention.attention.{query,key,value}",
    out="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
)
IN_MEMORY = Names(
    block="layers.{i}.",
    qkv="attention.{q_proj,k_proj,v_proj}",
    out="attention.o_proj",
    up="mlp.fc1",
    down="mlp.fc2",
)

BASE = Option("base", linear("pooler.dense", "pool.dense", "d2 d", optional=True), bind={"p": ""})
ZERO_BIASES = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"}

# What the configurations take when they say nothing; the authors of these networks take eps 1e-6.
USUAL = {"norm_eps": 1e-12, "final_norm_eps": 1e-12, "activation": "gelu"}

FORBIDS = (
    Forbid(r"^decoder\.", "a decoder (masked image modelling, MAE) is not carried; take the encoder"),
    Forbid(r"\.(lambda_[12]|relative_position_bias\..*)$", "this is BEiT's layout, not ViT's"),
    Forbid(r"\.layer_scale[12]\.lambda1$", "this is DINOv2's layout, not ViT's"),
)


def _blocks(names: Names) -> tuple[Entry, ...]:
    b = "{p}" + names.block
    qkv: tuple[Rule, ...] = rule(f"{b}{names.qkv}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d")
    biases = rule(f"{b}{names.qkv}.bias: a", "blocks.{i}.attn.{q,k,v}.bias: a", fill=ZERO_BIASES)
    return (
        *norm(b + "layernorm_before", "blocks.{i}.norm1"),
        *qkv,
        Choice("qkv_bias", (Option("true", biases), Option("false"))),
        *linear(b + names.out, "blocks.{i}.attn.out", "d a"),
        *norm(b + "layernorm_after", "blocks.{i}.norm2"),
        *linear(b + names.up, "blocks.{i}.mlp.up", "m d"),
        *linear(b + names.down, "blocks.{i}.mlp.down", "d m"),
    )


def transformers(
    name: str,
    title: str,
    source: str,
    names: Names,
    model: Choice,
    position: tuple[Rule, ...],
    cannot: dict[str, str],
    more: tuple[Entry, ...] = (),
    under: str = "",
    cls: bool = True,
) -> Dialect:
    """Build the dialect of one model in one epoch; `more` are entries besides the trunk's."""
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers {source}",
        library="transformers",
        entries=(
            model,
            *(rule("{p}embeddings.cls_token: 1 1 d", "embed.cls: d") if cls else ()),
            *rule("{p}embeddings.mask_token: 1 1 d", "embed.mask: d", optional=True),
            *position,
            *linear("{p}embeddings.patch_embeddings.projection", "embed.patch", "d c p q"),
            *_blocks(names),
            *norm("{p}layernorm", "norm"),
            *more,
        ),
        usual=USUAL,
        under=under,
        implies={
            "norm_placement": "pre",
            "norm_kind": "layernorm",
            "kv_normalised": True,
            "attention": "softmax",
            "position": TABLE,
        },
        forbids=FORBIDS if not more else FORBIDS[1:],
        cannot={
            r"\.ls[12]$": "LayerScale; --edit fold-layer-scale folds it into the linears before it",
            r"^embed\.(reg|pos_reg)$": "register tokens",
            r"^embed\.norm\.": "a norm before the first block",
            r"\.attn\.[qk]_norm\.": "norms of queries and keys",
            r"\.attn\.norm\.": "a norm before the output projection",
            r"\.mlp\.norm\.": "a norm inside the MLP",
            r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
            r"^pool\.norm\.": "a norm after pooling: it norms before",
            r"^pool\.dense\.": "a pooler under a classifier",
            r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
            r"^head\.": "this classifier in the model that was chosen",
            **cannot,
        },
        equal=(("a", "d"),),
    )


def vit(name: str, title: str, names: Names) -> Dialect:
    """Build the dialect of ViT."""
    model = Choice(
        "model",
        (
            Option(
                "classification",
                linear("classifier", "head", "o d"),
                bind={"p": "vit."},
                implies={"pooling": "token"},
            ),
            BASE,
        ),
    )
    position = rule("{p}embeddings.position_embeddings: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d")
    cannot = {r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head; hf-deit has"}
    return transformers(name, title, "models/vit/modeling_vit.py", names, model, position, cannot)


def ijepa(name: str, title: str, names: Names) -> Dialect:
    """Build the dialect of I-JEPA: no class token, the mean of the patches under a classifier."""
    head = linear("classifier", "head", "o d")
    model = Choice(
        "model",
        (
            Option("base", bind={"p": ""}),
            Option("classification", head, bind={"p": "ijepa."}, implies={"pooling": "avg"}),
        ),
    )
    position = rule("{p}embeddings.position_embeddings: 1 n d", "embed.pos: n d")
    cannot = {
        r"^embed\.(cls|pos_cls)$": "a class token",
        r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head",
    }
    return transformers(name, title, "models/ijepa/modeling_ijepa.py", names, model, position, cannot, cls=False)


def mae(name: str, title: str, names: Names, *decoders: Option) -> Dialect:
    """Build the dialect of MAE with its decoder; without it the layout is that of ViT."""
    model = Choice("model", (Option("pretraining", bind={"p": "vit."}, implies={"pooling": "none"}),))
    position = rule("{p}embeddings.position_embeddings: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d")
    cannot = {r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head"}
    more = (
        Choice("decoder", decoders),
        *rule("decoder.mask_token: 1 1 y", "decoder.mask: y"),
        *linear("decoder.decoder_embed", "decoder.embed", "y d"),
        *rule("decoder.decoder_pos_embed: 1 (1+n) y", "decoder.pos_cls: y", "decoder.pos: n y"),
        *_decoder(names),
        *norm("decoder.decoder_norm", "decoder.norm", "y"),
        *linear("decoder.decoder_pred", "decoder.pred", "z y"),
    )
    return transformers(name, title, "models/vit_mae/modeling_vit_mae.py", names, model, position, cannot, more)


def _decoder(names: Names) -> tuple[Entry, ...]:
    b, part = "decoder.{blocks}.{i}.", "decoder.blocks.{i}."
    zeros: dict[str, float | str] = {f"{part}attn.{x}.bias": 0.0 for x in "qkv"}
    return (
        *norm(b + "layernorm_before", part + "norm1", "y"),
        *rule(f"{b}{names.qkv}.weight: g y", part + "attn.{q,k,v}.weight: g y"),
        *rule(f"{b}{names.qkv}.bias: g", part + "attn.{q,k,v}.bias: g", optional=True, fill=zeros),
        *linear(b + names.out, part + "attn.out", "y g"),
        *norm(b + "layernorm_after", part + "norm2", "y"),
        *linear(b + names.up, part + "mlp.up", "x y"),
        *linear(b + names.down, part + "mlp.down", "y x"),
    )


def deit(name: str, title: str, names: Names) -> Dialect:
    """Build the dialect of DeiT."""
    model = Choice(
        "model",
        (
            Option(
                "classification",
                linear("classifier", "head", "o d"),
                bind={"p": "deit."},
                implies={"pooling": "token"},
            ),
            Option(
                "with-teacher",
                (
                    *linear("cls_classifier", "head", "o d"),
                    *linear("distillation_classifier", "head_dist", "o d"),
                ),
                bind={"p": "deit."},
                implies={"pooling": "token"},
            ),
            BASE,
        ),
    )
    position = (
        *rule("{p}embeddings.distillation_token: 1 1 d", "embed.dist: d"),
        *rule(
            "{p}embeddings.position_embeddings: 1 (1+1+n) d", "embed.pos_cls: d", "embed.pos_dist: d", "embed.pos: n d"
        ),
    )
    cannot = {r"^head_dist\.": "a distillation head in the model that was chosen; model=with-teacher has"}
    return transformers(name, title, "models/deit/modeling_deit.py", names, model, position, cannot)
