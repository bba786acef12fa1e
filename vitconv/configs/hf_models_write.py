"""Write config.json with which transformers opens a converted DINOv2, DINOv3, MAE, BEiT, I-JEPA, CLIP or SigLIP.

Source: huggingface/transformers, models/*/configuration_*.py, 5.24.0 and 4.57.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import TO_HF
from vitconv.configs.hf_models import KINDS, hidden
from vitconv.configs.hf_write import finished, label_maps
from vitconv.configs.request import Draft, Request, Written

# {dialect, without the suffix of the epoch: (model type, class with a head, class without)}
_CLASSES: Mapping[str, tuple[str, str, str]] = {
    "hf-dinov2": ("dinov2", "", "Dinov2Model"),
    "hf-dinov2-registers": ("dinov2_with_registers", "", "Dinov2WithRegistersModel"),
    "hf-dinov3": ("dinov3_vit", "", "DINOv3ViTModel"),
    "hf-mae": ("vit_mae", "", "ViTMAEForPreTraining"),
    "hf-beit": ("beit", "BeitForImageClassification", "BeitModel"),
    "hf-ijepa": ("ijepa", "IJepaForImageClassification", "IJepaModel"),
    "hf-clip-vision": ("clip_vision_model", "CLIPVisionModelWithProjection", "CLIPVisionModel"),
    "hf-siglip": ("siglip_vision_model", "", "SiglipVisionModel"),
    "hf-siglip2": ("siglip2_vision_model", "", "Siglip2VisionModel"),
}


def write(request: Request) -> Written:
    """Return the configuration files, or what is lacking, or why they cannot say it."""
    kind, headed, bare = _CLASSES[request.dialect.removesuffix("-5")]
    if request.has("mim.weight"):
        bare = "BeitForMaskedImageModeling"
    title = f"transformers' {bare}"
    draft = Draft(request, title)
    sizes = request.sizes
    heads, eps, image = draft.heads(), draft.one_eps(), draft.image_size()
    _check(draft, title)
    p, q = sizes["p"], sizes.get("q", sizes["p"])
    config: dict[str, Any] = {
        "architectures": [headed if headed and request.has("head.weight") else bare],
        "model_type": kind,
        "hidden_size": sizes["d"],
        "num_hidden_layers": sizes["i"],
        "num_attention_heads": heads,
        "layer_norm_eps": eps,
        "patch_size": p if p == q else [p, q],
        "num_channels": sizes["c"],
        "initializer_range": 0.02,
        **_mlp(draft, kind),
        **_own(draft, kind),
    }
    if kind == "siglip2_vision_model":
        config["num_patches"] = sizes.get("n", 0)
        if image[0] // p != image[1] // q:
            draft.refuse(f"{title} takes its table for that of a square grid")
    else:
        config["image_size"] = image[0] if image[0] == image[1] else list(image)
    if headed.endswith("Classification") and request.has("head.weight"):
        config |= label_maps(request, sizes["o"])
    return finished(draft, request, config, image)


def _check(draft: Draft, title: str) -> None:
    draft.only("norm_placement", "pre", why=f"{title} is pre-norm", needed=True)
    draft.only("norm_kind", "layernorm", why=f"{title} has LayerNorm only")
    draft.only("attention", "softmax", why=f"{title} has softmax attention only")
    draft.only("kv_normalised", True, why=f"{title} gives keys and values the normalised input")


def _mlp(draft: Draft, kind: str) -> dict[str, Any]:
    request, sizes = draft.request, draft.request.sizes
    gated = request.in_block("mlp.gate.weight")
    d, m = sizes["d"], sizes["m"]
    if kind.startswith("dinov2"):
        ratio = next((n for n in range(1, 17) if hidden(d, n, gated=gated) == m), 4 if gated else m // d)
        if hidden(d, ratio, gated=gated) != m:
            rule = "two thirds of a multiple of the width, rounded up to eight" if gated else "a multiple of the width"
            draft.refuse(f"the MLP is {m} wide: transformers' DINOv2 makes it {rule} ({hidden(d, ratio, gated=gated)})")
        if gated:
            draft.only("activation", "silu", why="its SwiGLU has silu")
            return {"mlp_ratio": ratio, "use_swiglu_ffn": True}
        return {"mlp_ratio": ratio, "use_swiglu_ffn": False, "hidden_act": draft.named("activation", TO_HF)}
    out: dict[str, Any] = {"intermediate_size": m, "hidden_act": draft.named("activation", TO_HF)}
    return {**out, "use_gated_mlp": gated} if kind == "dinov3_vit" else out


def _own(draft: Draft, kind: str) -> dict[str, Any]:
    """Return what only this model's configuration has."""
    request, sizes = draft.request, draft.request.sizes
    has = request.in_block
    if kind.startswith("dinov2"):
        more = (
            {"num_register_tokens": sizes.get("r", 0)}
            if "registers" in kind
            else {"use_mask_token": request.has("embed.mask")}
        )
        return {"qkv_bias": has("attn.q.bias"), "layerscale_value": 1.0, **more}
    if kind == "dinov3_vit":
        biases = {f"{word}_bias": has(f"attn.{x}.bias") for word, x in (("query", "q"), ("key", "k"), ("value", "v"))}
        draft.only("rope_theta", 100.0, why="a base other than 100 is not written")
        return {
            **biases,
            "proj_bias": has("attn.out.bias"),
            "mlp_bias": has("mlp.up.bias"),
            "num_register_tokens": sizes.get("r", 0) if request.has("embed.reg") else 0,
            "layerscale_value": 1.0,
            "rope_theta": 100.0,
        }
    if kind == "vit_mae":
        layers = {n.split(".")[2] for n in request.names if n.startswith("decoder.blocks.")}
        return {
            "decoder_hidden_size": sizes["y"],
            "decoder_num_hidden_layers": len(layers),
            "decoder_intermediate_size": sizes["x"],
            "decoder_num_attention_heads": _decoder_heads(draft),
            "qkv_bias": has("attn.q.bias"),
        }
    if kind == "beit":
        masked = request.has("mim.weight")
        if masked and request.has("trunk_norm.weight"):
            draft.notes.append(
                "transformers 5.24 mixes up beit.layernorm and layernorm when it opens such a folder, its own as well:"
                " fill the model by load_state_dict"
            )
        return {
            "use_relative_position_bias": has("attn.rel_pos"),
            "use_shared_relative_position_bias": request.has("rel_pos"),
            "use_absolute_position_embeddings": request.has("embed.pos"),
            "use_mask_token": request.has("embed.mask"),
            # Told to pool, masked modelling has one norm behind the trunk and none in it.
            "use_mean_pooling": request.has("pool.norm.weight") or (masked and not request.has("trunk_norm.weight")),
            "layer_scale_init_value": 0.1 if has("ls1") else 0.0,
            **({"vocab_size": sizes["s"]} if masked else {}),
        }
    if kind == "clip_vision_model":
        draft.only("pooling", "token", why="it projects the class token")
        return {"projection_dim": sizes.get("o", 512)}
    if kind.startswith("siglip"):
        return {"vision_use_head": request.has("pool.probe")}
    return {"qkv_bias": has("attn.q.bias")} if kind in KINDS else {}


def _decoder_heads(draft: Draft) -> int:
    """Return the heads of MAE's decoder: the fact, else the author's, as far as they divide its width."""
    told, width = draft.request.facts.decoder_heads, draft.request.sizes["y"]
    if told is None:
        heads, whose = (16, "16, the author's,") if width % 16 == 0 else (draft.heads(), "that of the encoder")
        draft.notes.append(
            f"decoder_num_attention_heads is nowhere in the weights: {whose} is written (--set decoder_heads=)"
        )
        return heads
    if width % told:
        draft.refuse(f"decoder_heads={told} does not divide the width {width} of the decoder")
    return told
