"""A converted file counts when the target's own library loads it strictly and computes the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conversion_kit import FACTS, close, images, logits_and_gradients, timm_vit

from vitconv import Order, Wishes, convert, translate
from vitconv.cli._wishes import read_sets

# The factory warns that it is not maintained any more.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and is not maintained:FutureWarning")
TIGHT = 1e-12


def carried(source: Path, target: Path, to: str, facts: list[str] | None = None, **order: object) -> Path:
    wishes = Wishes(facts=read_sets(facts if facts is not None else FACTS)[0])
    convert(source, target, Order(to=to, wishes=wishes, prove=True, **order))
    return target


def same(a: torch.nn.Module, b: torch.nn.Module, run_a, run_b, dialect: str, x: torch.Tensor) -> None:
    a.double()
    b.double()
    out_a, grads_a = logits_and_gradients(a, run_a, x)
    out_b, grads_b = logits_and_gradients(b, run_b, x)
    assert close(out_b, out_a) < TIGHT
    back = translate(grads_b, dialect, "timm", "gradients", facts={"kv_normalised": True})
    assert set(back) == set(grads_a)
    scale = max(g.abs().max() for g in grads_a.values())
    for name, grad in grads_a.items():
        assert ((back[name] - grad).abs().max() / scale).item() < TIGHT, name


def load_hf(folder: Path):
    import transformers

    cls = {"hf-vit": transformers.ViTForImageClassification}[folder.name]
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


def test_timm_to_hf_folder_loads_and_computes_the_same(save, tmp_path: Path) -> None:
    a = timm_vit()
    folder = carried(save(a.state_dict()), tmp_path / "hf-vit", "hf-vit")
    b = load_hf(folder)
    same(a, b, a, lambda x: b(x).logits, "hf-vit-5", images())


def test_a_wrong_mapping_would_be_seen(save, tmp_path: Path) -> None:
    a = timm_vit()
    state = a.state_dict()
    qkv = state["blocks.1.attn.qkv.weight"].clone()
    state["blocks.1.attn.qkv.weight"] = torch.cat([qkv[32:64], qkv[:32], qkv[64:]])
    b = load_hf(carried(save(state), tmp_path / "hf-vit", "hf-vit"))
    unspoilt = timm_vit()
    with pytest.raises(AssertionError):
        same(unspoilt, b, unspoilt, lambda x: b(x).logits, "hf-vit-5", images())


def test_timm_to_torchvision_loads_strictly(save, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from torchvision.models.vision_transformer import VisionTransformer

    a = timm_vit()
    file = carried(save(a.state_dict()), tmp_path / "tv.safetensors", "torchvision")
    b = VisionTransformer(
        image_size=16, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=128, num_classes=5
    )
    b.load_state_dict(load_file(file), strict=True)
    same(a, b.eval(), a, b, "torchvision", images())


VARIANTS = {
    "plain": {},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 3, "no_embed_class": True},
    "registers with positions": {"reg_tokens": 3},
    "no_embed_class": {"no_embed_class": True},
    "layer scale": {"init_values": 0.5},
    "qk norm": {"qk_norm": True},
    "fc_norm": {"global_pool": "avg", "fc_norm": True},
    "pre norm": {"pre_norm": True},
    "no head": {"num_classes": 0},
    "no qkv bias": {"qkv_bias": False},
}


@pytest.mark.parametrize("kw", VARIANTS.values(), ids=VARIANTS)
def test_timm_through_canonical_and_back_opens_in_timm(kw: dict, save, tmp_path: Path) -> None:
    import timm

    a = timm_vit(**kw)
    pooling = "avg" if kw.get("global_pool") == "avg" else "token"
    facts = ["heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", f"pooling={pooling}", "grid=4x4"]
    facts += ["norm_placement=pre", "embed_norm_eps=1e-6", "qk_norm_eps=1e-6", "norm_kind=layernorm"]
    middle = carried(save(a.state_dict()), tmp_path / "canonical.safetensors", "canonical", facts)
    folder = carried(middle, tmp_path / "timm", "timm", facts)
    b = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    a.double()
    b.double()
    assert {n: tuple(p.shape) for n, p in a.named_parameters()} == {n: tuple(p.shape) for n, p in b.named_parameters()}
    out_a, grads_a = logits_and_gradients(a, a, images())
    out_b, grads_b = logits_and_gradients(b, b, images())
    assert close(out_b, out_a) < TIGHT
    scale = max(g.abs().max() for g in grads_a.values())
    assert max((grads_b[n] - g).abs().max() / scale for n, g in grads_a.items()) < TIGHT


@pytest.mark.parametrize("style", ["pre", "post", "deepnorm"])
def test_the_real_xformers_factory(style: str, save, tmp_path: Path) -> None:
    pytest.importorskip("xformers.factory", reason="xformers 0.0.28.post3 is not installed")
    from conversion_kit import randomise
    from safetensors.torch import load_file
    from xformers.factory import xFormer, xFormerConfig

    def build() -> torch.nn.Module:
        block = {
            "block_type": "encoder",
            "num_layers": 2,
            "dim_model": 32,
            "residual_norm_style": style,
            "multi_head_config": {"num_heads": 4, "attention": {"name": "scaled_dot_product", "dropout": 0.0}},
            "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
        }
        return xFormer.from_config(xFormerConfig([block]))

    a = randomise(build())
    facts = ["heads=4", "norm_eps=1e-5", "activation=gelu", f"norm_placement={style}"]
    if style == "deepnorm":
        facts.append("residual_alpha=1.4142135623730951")
    middle = carried(
        save(a.state_dict()),
        tmp_path / "fused.safetensors",
        "xformers-fused",
        [*facts, "kv_normalised=true"],
        choices={"wrapper": "trunk"},
    )
    back = carried(
        middle, tmp_path / "back.safetensors", "xformers", [*facts, "kv_normalised=true"], choices={"wrapper": "trunk"}
    )
    b = build()
    b.load_state_dict(load_file(back), strict=True)
    for name, p in a.state_dict().items():
        assert torch.equal(p, b.state_dict()[name]), name


def test_timm_against_the_real_xformers_factory(save, tmp_path: Path) -> None:
    """The network of the first public report, its norms set to timm's eps: the same function."""
    pytest.importorskip("xformers.factory", reason="xformers 0.0.28.post3 is not installed")
    from report_vit import ReportViT
    from safetensors.torch import load_file

    a = timm_vit()
    file = carried(save(a.state_dict()), tmp_path / "x.safetensors", "xformers")
    b = ReportViT(img=16, patch=4, dim=32, depth=2, heads=4, classes=5)
    b.load_state_dict(load_file(file), strict=True)
    for m in b.modules():
        if isinstance(m, torch.nn.LayerNorm):
            m.eps = 1e-6
    same(a, b.eval(), a, b, "xformers", images())
    for m in b.modules():
        if isinstance(m, torch.nn.LayerNorm):
            m.eps = 1e-5
    with pytest.raises(AssertionError):
        same(a, b, a, b, "xformers", images())


def test_the_first_report_counts_the_same_parameters(tmp_path: Path) -> None:
    """86 567 656 on both sides: counted on the plan, no weights needed."""
    from vitconv.bench.convert import SIZES, make_checkpoint

    source = tmp_path / "b.safetensors"
    make_checkpoint(source, SIZES["vit_base"])
    prepared, _ = convert(source, tmp_path / "x.safetensors", Order(to="xformers", sync=False))
    from vitconv import inspect

    assert prepared.elements == 86_567_656
    assert inspect(tmp_path / "x.safetensors").elements == 86_567_656
