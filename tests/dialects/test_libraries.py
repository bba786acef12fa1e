"""Two libraries compute the same function from converted weights, in float64: where no author's trace is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from vitconv.conversion.translate import translate

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 4}


def randomised(module: nn.Module) -> nn.Module:
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in module.double().named_parameters():
            draw = torch.randn(p.shape, generator=g, dtype=torch.float64)
            p.copy_(draw * 0.3 + 1 if p.ndim == 1 and name.endswith("weight") else draw * 0.3)
    return module.eval()


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def timm_map() -> nn.Module:
    from timm.layers import AttentionPoolLatent, GELUTanh
    from timm.models import VisionTransformer

    net: Any = VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0, class_token=False,
        global_pool="map", act_layer=GELUTanh,
    )  # fmt: skip
    net.attn_pool = AttentionPoolLatent(
        16, num_heads=2, mlp_ratio=4, norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-6), act_layer=GELUTanh
    )
    return net


def test_siglip_pools_as_timm_does() -> None:
    import transformers

    config = transformers.SiglipVisionConfig(**SMALL, image_size=16)
    model = randomised(transformers.SiglipVisionModel(config))
    there = timm_map().double().eval()
    there.load_state_dict(translate(dict(model.state_dict()), "hf-siglip", "timm"))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert near(there(x), model(x).pooler_output) < 1e-12


def test_siglip_2_keeps_patches_as_rows() -> None:
    import transformers

    model = randomised(transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SMALL, num_patches=16)))
    there = timm_map().double().eval()
    axes = {"p": 4, "q": 4}
    there.load_state_dict(translate(dict(model.state_dict()), "hf-siglip2", "timm", axes=axes))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = x.unflatten(3, (4, 4)).unflatten(2, (4, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    spatial = torch.tensor([[4, 4]] * 2)
    out = model(rows, pixel_attention_mask=torch.ones(2, 16, dtype=torch.long), spatial_shapes=spatial)
    # Its table goes through an interpolation in float32 even at its own size.
    assert near(there(x), out.pooler_output) < 1e-5


def test_mae_s_decoder_computes_what_its_author_s_does() -> None:
    import transformers

    path = GOLDEN / "mae" / "mae-pretrain.trace.safetensors"
    weights, trace = torch.load(GOLDEN / "mae" / "mae-pretrain.pth", weights_only=True), load_file(path)
    with safe_open(path, "pt") as f:
        facts = json.loads(f.metadata()["facts"])
    config = transformers.ViTMAEConfig(
        **SMALL, image_size=16, decoder_hidden_size=12, decoder_num_hidden_layers=3, decoder_num_attention_heads=2,
        decoder_intermediate_size=48, layer_norm_eps=1e-6, mask_ratio=facts["mask_ratio"],
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = transformers.ViTMAEForPreTraining(config).double().eval()
    model.load_state_dict(translate(weights, "mae", "hf-mae-5"))
    out = model(trace["input"], noise=trace["noise"])
    assert near(out.logits, trace["output"]) < 1e-12
    back = translate(dict(model.state_dict()), "hf-mae-5", "mae")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[k], weights[k]) for k in weights)


@pytest.mark.parametrize(("norm_first", "placement"), [(True, "pre"), (False, "post")])
@pytest.mark.parametrize("final", [True, False], ids=["norm", "no-norm"])
def test_a_torch_encoder_is_a_trunk_of_the_reference(norm_first: bool, placement: str, final: bool) -> None:
    from vitconv.layout.semantics import Semantics
    from vitconv.vit.config import config_from_shapes
    from vitconv.vit.model import ViT

    layer = nn.TransformerEncoderLayer(16, 2, 24, activation="relu", batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16) if final else None, enable_nested_tensor=False)
    randomised(encoder)
    there = translate(dict(encoder.state_dict()), "torch", "canonical", facts={"norm_placement": placement})
    facts = Semantics(
        heads=2, norm_placement=placement, norm_eps=1e-5, final_norm_eps=1e-5, activation="relu",
        attention="softmax", kv_normalised=True, pooling="none", position="none",
    )  # fmt: skip
    reference = ViT(config_from_shapes({k: tuple(v.shape) for k, v in there.items()}, facts)).double().eval()
    reference.load_state_dict(there)
    x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert near(reference(x), encoder(x)) < 1e-12
