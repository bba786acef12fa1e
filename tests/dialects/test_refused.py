"""Files of a known kind that cannot be carried are refused with the reason, not called unknown."""

import re
from collections.abc import Callable

import pytest

from vitconv.errors import NotRecognised, Refused
from vitconv.layout.detect import detect
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
Shapes = dict[str, tuple[int, ...]]
Manifest = Callable[[str], Shapes]

_FF = "encoders.0.wrap_ff.layer.sublayer."
_ATT = "encoders.0.wrap_att.layer.sublayer."
EXTRA = [
    ("xformers-pre", {_ATT + "rotary_embeddings.inv_freq": (4,)}, "rotary positions"),
    ("xformers-pre", {_FF + "moe.experts.0.mlp.0.weight": (64, 16)}, "mixture of experts"),
    ("xformers-pre", {_FF + "gate.wg.weight": (2, 16)}, "mixture of experts"),
    ("xformers-pre", {_FF + "conv_mlp.1.weight": (64, 1, 3, 3)}, "Conv2DFeedforward"),
    ("xformers-pre", {"decoders.0.wrap_cross.layer.norm.weight": (16,)}, "decoder blocks"),
    ("xformers-pre", {"encoders.1.patch_emb.1.weight": (16, 16, 2, 2)}, "patch embedding in a later block"),
    ("xformers-pre", {"encoders.0.pose_encoding.word_embeddings.weight": (9, 16)}, "vocabulary embeddings"),
    ("xformers-embedding", {"encoders.0.embedding_projector.weight": (16, 8)}, "projector after the position"),
    ("xformers-pre", {_ATT + "attention.rel_pos_emb": (4, 4)}, "attention with weights of its own"),
    ("xformers-fused-pre", {_ATT + "attention.mask": (1, 9, 9)}, "a causal mask"),
    ("xformers-embedding", {"encoders.1.pose_encoding.pos_emb": (1, 9, 16)}, "added again in a later block"),
    ("timm-tiny", {"blocks.0.attn.gate.weight": (16, 16)}, "gated attention"),
    ("timm-tiny", {"patch_embed.norm.weight": (16,)}, "patch embedding with a norm"),
    ("timm-tiny", {"blocks.0.attn.relative_position_bias_table": (49, 2)}, "relative positions"),
    ("timm-layer-scale", {"blocks.0.gamma_1": (16,)}, "BEiT, EVA or CaiT"),
    ("hf-vit-classification", {"decoder.0.weight": (768, 16, 1, 1)}, "a decoder"),
    ("hf-vit-classification", {"vit.encoder.layer.0.lambda_1": (16,)}, "BEiT's layout"),
    ("torchvision-tiny", {"conv_proj.conv_bn_relu_0.0.weight": (8, 3, 3, 3)}, "convolutional stem"),
]


def found(shapes: Shapes) -> None:
    detect(shapes, ALL.values())


@pytest.mark.parametrize(("name", "extra", "reason"), EXTRA, ids=lambda x: x if isinstance(x, str) else "")
def test_the_reason_and_the_keys_are_told(manifest: Manifest, name: str, extra: Shapes, reason: str) -> None:
    with pytest.raises(Refused, match=f"cannot be carried:\n.*{re.escape(reason)}") as e:
        found(manifest(name) | extra)
    assert next(iter(extra)) in str(e.value)


def test_a_final_norm_in_the_middle_of_the_stack(manifest: Manifest) -> None:
    one, two = manifest("xformers-fused-one-layer"), manifest("xformers-fused-pre")
    shapes = one | {k.replace("encoders.0.", "encoders.1."): s for k, s in two.items() if "encoders.0." in k}
    with pytest.raises(Refused, match=r"middle of the stack.*encoders\.0\.wrap_ff\.norm\.weight"):
        found(shapes)


def test_final_norms_in_every_block(manifest: Manifest) -> None:
    """Where the other style explains as many tensors, the reason is still told."""
    one = {k: s for k, s in manifest("xformers-fused-one-layer").items() if not k.endswith("bias") or ".norm." in k}
    shapes = one | {k.replace("encoders.0.", "encoders.1."): s for k, s in one.items()}
    shapes = {k.replace(".mlp.3.", ".mlp.2."): s for k, s in shapes.items()}
    with pytest.raises(Refused, match=r"(inside|middle of) the stack"):
        found(shapes)


@pytest.mark.parametrize("norms", [True, False], ids=["with norms", "without norms"])
def test_blocks_of_both_styles(manifest: Manifest, norms: bool) -> None:
    post = {k: s for k, s in manifest("xformers-post").items() if norms or ".norm." not in k}
    shapes = manifest("xformers-pre") | {
        k.replace(f"encoders.{i}.", f"encoders.{i + 2}."): s for k, s in post.items() for i in (int(k.split(".")[1]),)
    }
    with pytest.raises(Refused, match="or beside post-norm ones"):
        found(shapes)


def test_reversible_blocks(manifest: Manifest) -> None:
    shapes = {}
    for key, shape in manifest("xformers-pre").items():
        _, layer, rest = key.split(".", 2)
        half = "f" if rest.startswith("wrap_att") else "g"
        shapes[f"encoders.blocks.{layer}.{half}.net.{rest.split('.layer.', 1)[1]}"] = shape
    with pytest.raises(Refused, match="reversible blocks"):
        found(shapes)


def test_raw_projections(manifest: Manifest) -> None:
    shapes = {}
    for key, shape in manifest("xformers-fused-pre").items():
        if key.endswith("in_proj_weight"):
            shapes |= {key.replace("in_proj_weight", f"{x}_proj_weight"): (16, 16) for x in "qkv"}
        else:
            shapes[key] = shape
    with pytest.raises(Refused, match="raw projections"):
        found(shapes)


def test_blocks_without_norms(manifest: Manifest) -> None:
    shapes = {k: s for k, s in manifest("xformers-pre").items() if ".norm." not in k}
    with pytest.raises(Refused, match=r"normalization: skip.*without encoders\.\{0\.\.1\}\.wrap_att\.layer\.norm"):
        found(shapes)


@pytest.mark.parametrize("name", ["xformers-post", "xformers-one-layer"])
def test_blocks_without_norms_of_the_other_wrappers(manifest: Manifest, name: str) -> None:
    shapes = {k: s for k, s in manifest(name).items() if ".norm." not in k}
    with pytest.raises(Refused, match=r"normalization: skip.*without encoders"):
        found(shapes)


@pytest.mark.parametrize("name", ["xformers-pre", "xformers-post", "xformers-fused-pre"])
def test_attention_without_projections(manifest: Manifest, name: str) -> None:
    shapes = {k: s for k, s in manifest(name).items() if ".in_proj_container." not in k}
    with pytest.raises(Refused, match=r"fourier_mix, pooling.*without encoders"):
        found(shapes)


def test_one_lost_norm_beside_a_misspelt_one_is_no_kind_of_network(manifest: Manifest) -> None:
    shapes = {
        k.replace("encoders.0.wrap_att.layer.norm.", "encoders.0.wrap_att.layer.nrm."): s
        for k, s in manifest("xformers-pre").items()
    }
    with pytest.raises(NotRecognised, match=r"unknown here: encoders\.0\.wrap_att\.layer\.nrm\.weight"):
        found(shapes)


def test_keys_of_another_kind_are_not_blamed_on_the_closest(manifest: Manifest) -> None:
    """A forbidden word in a file that shares nothing with the dialect is no reason."""
    with pytest.raises(NotRecognised, match=r"none has any of their names:\n  text\.encoder\.word"):
        found({"text.encoder.word": (3,), "a.moe.b": (3,), "c": (1,), "d": (1,)})
