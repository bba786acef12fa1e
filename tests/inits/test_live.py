"""Filling live networks: every host, wrappers, half precision; the same values as a file gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vitconv.errors import NotRecognised, Refused, UsageError
from vitconv.hosts.base.host import Spec
from vitconv.inits import apply
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.draw import draw
from vitconv.inits.base.live import recognised
from vitconv.layout.semantics import Semantics
from vitconv.registry import HOSTS, INITS, load

BLOCK = {
    "reversible": False, "block_type": "encoder", "num_layers": 2, "dim_model": 64,
    "multi_head_config": {
        "num_heads": 4, "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
}  # fmt: skip


def style(release: str, norm: str = "pre") -> nn.Module:
    key = "layer_norm_style" if int(release.split(".")[2]) < 12 else "residual_norm_style"
    options = {"config": {**BLOCK, key: norm}, "release": release, "image": 32, "patch": 8, "classes": 5}
    return load(HOSTS, "xformers-style").build(Spec(options=options)).module


def timm_model() -> nn.Module:
    models = pytest.importorskip("timm.models.vision_transformer")
    return models.VisionTransformer(img_size=32, patch_size=8, num_classes=5, embed_dim=64, depth=2, num_heads=4)


def hf_model() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def torchvision_model() -> nn.Module:
    vit = pytest.importorskip("torchvision.models.vision_transformer")
    return vit.VisionTransformer(32, 8, 2, 4, 64, 256, num_classes=5)


def reference() -> nn.Module:
    state = dict(timm_model().state_dict())
    from vitconv.conversion.translate import translate

    shapes = {k: tuple(t.shape) for k, t in translate(state, "timm", "canonical").items()}
    facts = Semantics(
        heads=4, norm_placement="pre", norm_kind="layernorm", norm_eps=1e-6, final_norm_eps=1e-6, activation="gelu",
        attention="softmax", kv_normalised=True, pooling="token",
    )  # fmt: skip
    return load(HOSTS, "reference").build(Spec(facts=facts, shapes=shapes)).module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reference": reference, "timm": timm_model, "transformers": hf_model, "torchvision": torchvision_model,
    "xformers-0.0.9": lambda: style("0.0.9"), "xformers-0.0.28": lambda: style("0.0.28"),
}  # fmt: skip


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_every_host_gets_what_is_drawn_for_its_roles(build: Callable[[], nn.Module]) -> None:
    model = build()
    rows = [row for row in apply(model, "jax", seed=4) if row.name]
    live = recognised(model)
    expected = draw(Architecture(live.network.shapes, live.network.facts), load(INITS, "jax"), 4)
    assert {row.name for row in rows} == set(expected)
    assert all(torch.equal(live.read(name), expected[name]) for name in expected)
    assert all(row.measured_std == pytest.approx(row.declared_std, rel=0.35, abs=1e-9) for row in rows)


def test_the_same_seed_gives_the_same_logits_everywhere() -> None:
    models = [MODELS[name]() for name in ("timm", "reference", "torchvision")]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for model in models:
        apply(model, "timm", seed=2)
    with torch.no_grad():
        logits = [model.eval()(images) for model in models]
    assert logits[0].abs().max() > 1e-3
    assert all(torch.allclose(logits[0], other, atol=1e-5) for other in logits[1:])


class Wrapped(nn.Module):
    def __init__(self, extra: bool) -> None:
        super().__init__()
        self.trunk = timm_model()
        if extra:
            self.scale = nn.Parameter(torch.ones(3))


def test_a_wrapper_is_looked_into_and_what_is_its_own_is_named() -> None:
    assert apply(Wrapped(False), "timm")[0].key.startswith("trunk.")
    model = Wrapped(True)
    with pytest.raises(Refused, match="scale"):
        apply(model, "timm")
    rows = apply(model, "timm", partly=True)
    assert [row.key for row in rows if row.distribution == "left as it was"] == ["scale"]


class Deeper(nn.Module):
    """A wrapper in a wrapper, as a training makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.task = Wrapped(False)
        self.loss_scale = nn.Parameter(torch.ones(1))


def test_a_network_under_several_attributes_is_found() -> None:
    model = Deeper()
    before = model.loss_scale.detach().clone()
    with pytest.raises(Refused, match=r"no role is known for loss_scale, beside the timm network under task\.trunk"):
        apply(model, "timm")
    rows = apply(model, "timm", partly=True, seed=3)
    assert rows[0].key.startswith("task.trunk.")
    assert torch.equal(model.loss_scale, before)
    alone = Wrapped(False)
    apply(alone, "timm", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.task.parameters(), alone.parameters(), strict=True))


class Own(nn.Module):
    """A ViT of the user's own names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)])


def stranger() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4))


def spoilt() -> nn.Module:
    model = timm_model()
    model.blocks[0].extra = nn.Linear(3, 3)  # type: ignore[index, union-attr]
    return model


def halved() -> nn.Module:
    model = timm_model()
    del model.blocks[1].attn.proj  # type: ignore[index, union-attr]
    return model


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (stranger, "Sequential with its 2 tensors.*none has any of their names:.*0.weight, 0.bias"),
        (Own, "Own with its 26 tensors.*closest: torch.*unknown here: stem.weight, stem.bias"),
        (spoilt, "VisionTransformer with its.*closest: timm.*unknown here: blocks.0.extra.weight"),
        (halved, "VisionTransformer with its.*closest: timm.*missing: blocks.1.attn.proj.weight"),
    ],
    ids=["no-vit", "own-names", "a-layer-too-many", "a-layer-too-few"],
)
def test_a_network_that_no_layout_explains_is_told_with_what_to_do(make: Callable[[], nn.Module], found: str) -> None:
    model = make()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.raises(NotRecognised, match=f"(?s){found}") as raised:
        apply(model, "timm", partly=True)
    said = str(raised.value)
    assert "expected: a network whose state dict one layout explains" in said
    for way in ("apply(model.backbone, scheme)", "vitconv.dialects", "docs/dialects.md", "vitconv.inits.coverage"):
        assert way in said
    assert "--" not in said, "options of the command line are no help in Python"
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_resnet_is_no_vit() -> None:
    timm = pytest.importorskip("timm")
    with pytest.raises(Refused, match=r"(?s)ResNet: this network cannot be carried.*expected: a network whose"):
        apply(timm.create_model("resnet18"), "timm")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: apply("vit_base", "timm"), "found str; expected a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: apply(nn.ReLU(), "timm"), "ReLU holds no tensors"),
        (lambda: apply(stranger(), "timm", facts={"norm_placment": "pre"}), "Did you mean 'norm_placement'"),
        (lambda: apply(stranger(), "tim"), "Did you mean 'timm'"),
        (lambda: apply(stranger(), "timm", dialect="tim"), "Did you mean 'timm'"),
    ],
    ids=["a-name", "nothing", "fact", "scheme", "dialect"],
)
def test_what_is_no_network_scheme_or_fact_is_wrong_usage(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_placement_is_read_off_the_live_modules() -> None:
    with pytest.raises(Refused, match="deepnorm"):
        apply(style("0.0.28", "pre"), "deepnorm")
    model = style("0.0.28", "deepnorm")
    apply(model, "deepnorm")
    q = model.get_parameter("backbone.encoders.0.wrap_att.sublayer.layer.in_proj_container.q_proj.weight")
    v = model.get_parameter("backbone.encoders.0.wrap_att.sublayer.layer.in_proj_container.v_proj.weight")
    assert float((v.std() / q.std()).detach()) == pytest.approx(0.5, rel=0.05)  # beta at two blocks is 16^-1/4


def test_deepnorm_is_right_in_a_joined_weight() -> None:
    model = style("0.0.11", "deepnorm")
    apply(model, "deepnorm")
    joined = model.get_parameter("backbone.encoders.0.wrap_att.sublayer.layer.in_proj_container.in_proj_weight")
    q, k, v = (float(part.std()) for part in joined.detach().chunk(3))
    assert (v / q, k / q) == (pytest.approx(0.5, rel=0.05), pytest.approx(1.0, rel=0.05))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_the_rounded_draw(dtype: torch.dtype) -> None:
    full, half = timm_model(), timm_model().to(dtype)
    apply(full, "timm", seed=1)
    apply(half, "timm", seed=1)
    pairs: list[tuple[Any, Any]] = list(zip(full.parameters(), half.parameters(), strict=True))
    assert all(torch.equal(a.detach().to(dtype), b.detach()) for a, b in pairs)
    assert all(int((b == -2.0).sum()) == 0 for _, b in pairs)


def test_channels_last_is_given_the_same_draw() -> None:
    plain, other = timm_model(), timm_model().to(memory_format=torch.channels_last)
    apply(plain, "timm", seed=1)
    apply(other, "timm", seed=1)
    assert not other.get_parameter("patch_embed.proj.weight").is_contiguous()
    pairs = list(zip(plain.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a.detach(), b.detach()) for a, b in pairs)
