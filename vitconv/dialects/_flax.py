"""What Google's vision transformers in flax have in common: kernels transposed, heads as an axis of their own.

Source: google-research/vision_transformer, vit_jax/models_vit.py, c6de1e5; google-research/big_vision,
big_vision/models/vit.py, 0127fb6. flax's LayerNorm has eps 1e-6 and its gelu is the tanh form.
"""

from vitconv.layout.rule import Entry, rule

AUTHOR = {
    "norm_eps": 1e-6,
    "final_norm_eps": 1e-6,
    "activation": "gelu_tanh",
}


def norm(whole: str, part: str, *, stack: str = "", optional: bool = False) -> tuple[Entry, ...]:
    """Build a norm; `stack` is the axis of the layers where they are stacked."""
    group = whole if optional else ""
    return tuple(
        r
        for key, kind in (("scale", "weight"), ("bias", "bias"))
        for r in rule(f"{whole}/{key}: {stack}d", f"{part}.{kind}: d", optional=optional, group=group)
    )


def dense(whole: str, part: str, axes: str, *, stack: str = "", optional: bool = False) -> tuple[Entry, ...]:
    """Build a dense layer from its weight's axes, `out in`."""
    out, into = axes.split()
    group = whole if optional else ""
    return rule(
        f"{whole}/kernel: {stack}{into} {out}", f"{part}.weight: {axes}", optional=optional, group=group
    ) + rule(f"{whole}/bias: {stack}{out}", f"{part}.bias: {out}", optional=optional, group=group)


def attention(whole: str, part: str, *, stack: str = "") -> tuple[Entry, ...]:
    """Build the four projections of attention over heads."""
    out: list[Entry] = []
    zeros: dict[str, float | str]
    for key, x in (("query", "q"), ("key", "k"), ("value", "v")):
        zeros = {f"{part}.{x}.bias": 0.0}
        out += rule(f"{whole}/{key}/kernel: {stack}d h e", f"{part}.{x}.weight: (h e) d")
        out += rule(f"{whole}/{key}/bias: {stack}h e", f"{part}.{x}.bias: (h e)", fill=zeros)
    out += rule(f"{whole}/out/kernel: {stack}h e d", f"{part}.out.weight: d (h e)")
    return (*out, *rule(f"{whole}/out/bias: {stack}d", f"{part}.out.bias: d"))


def block(path: str, names: tuple[str, str, str, str], *, stack: str = "") -> tuple[Entry, ...]:
    """Build a block; `names` are those of its norm, attention, norm and MLP."""
    norm1, attn, norm2, mlp = (f"{path}/{x}" for x in names)
    b = "blocks.{i}."
    return (
        *norm(norm1, b + "norm1", stack=stack),
        *attention(attn, b + "attn", stack=stack),
        *norm(norm2, b + "norm2", stack=stack),
        *dense(f"{mlp}/Dense_0", b + "mlp.up", "m d", stack=stack),
        *dense(f"{mlp}/Dense_1", b + "mlp.down", "d m", stack=stack),
    )
