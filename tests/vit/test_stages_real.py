"""timm, torchvision and transformers open what was converted, and the reference computes the same, forward and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.layout.semantics import Semantics
from vitconv.vit.stages.config import config_of_stages
from vitconv.vit.stages.model import StageViT

CLOSE = 1e-11
SIZES: dict[str, Any] = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}


def timm_net(v2: bool, side: int) -> nn.Module:
    import timm

    entry = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
    return timm.create_model(entry, img_size=side, patch_size=2, num_classes=5, **SIZES)


def torchvision_net(v2: bool, side: int) -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    more = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if v2 else {}
    return SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], num_classes=5, **more)


def transformers_net(v2: bool, side: int) -> nn.Module:
    import transformers

    kind = "Swinv2" if v2 else "Swin"
    config = getattr(transformers, f"{kind}Config")(image_size=side, patch_size=2, num_labels=5, **SIZES)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


MAKERS: dict[str, Callable[[bool, int], nn.Module]] = {
    "timm": timm_net,
    "torchvision": torchvision_net,
    "transformers": transformers_net,
}
DIALECT = {"timm": "timm-swin", "torchvision": "torchvision-swin", "transformers": "hf-swin"}


def filled(net: nn.Module, seed: int) -> nn.Module:
    """Give every parameter random values of order one, key biases of Swin V2 aside, which are zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            gain = name.endswith("weight") and p.dim() == 1
            p.copy_((1 + 0.3 * noise if gain else 0.3 * noise).to(p.dtype))
            if name.endswith("attn.qkv.bias") and any(n.endswith("logit_scale") for n, _ in net.named_parameters()):
                p[p.numel() // 3 : 2 * p.numel() // 3] = 0.0
    return net.double().eval()


def dialect_of(library: str, v2: bool) -> str:
    return DIALECT[library] + ("v2" if v2 else "" if library != "transformers" else "-5")


def logits(net: nn.Module, images: Tensor) -> Tensor:
    y = net(images)
    return y.logits if hasattr(y, "logits") else y


def facts_of(v2: bool, side: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "activation": "gelu"}
    facts |= {"norm_placement": "res-post" if v2 else "pre", "pooling": "avg", "image_size": (side, side)}
    return facts | {"window": (4,), "pretrained_window": (0,)}


def gradients(net: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    x = images.clone().requires_grad_()
    y = logits(net, x)
    y.square().sum().backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
    assert x.grad is not None
    return y.detach(), {**grads, "images": x.grad}


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.parametrize("side", [32, 48], ids=["whole", "padded"])
def test_the_reference_computes_what_the_library_does(library: str, v2: bool, side: int) -> None:
    if side == 48 and v2 and library == "transformers":
        pytest.skip("transformers' Swin V2 clips its windows to the map where the others pad")
    net = filled(MAKERS[library](v2, side), 0)
    name, facts = dialect_of(library, v2), facts_of(v2, side)
    canonical = translate(net.state_dict(), name, "canonical-stages", facts=facts)
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = StageViT(config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))).double()
    ours.load_state_dict(canonical, strict=True)
    (y, theirs), (z, mine) = gradients(net, images), gradients(ours, images)
    assert (y - z).abs().max() <= CLOSE * y.abs().max()
    assert (theirs.pop("images") - mine.pop("images")).abs().max() <= CLOSE * 100
    there = translate(theirs, name, "canonical-stages", "gradients", facts=facts)
    assert there.keys() == mine.keys()
    for key, grad in mine.items():
        # What the function does not feel has a gradient of zero up to rounding.
        assert (there[key] - grad).abs().max() <= CLOSE * max(float(grad.abs().max()), 1.0) * 10, key


# (image, window): maps that windows do not tile, one side covered by one window, sides that halve unevenly, no squares.
ODD = {
    "not-tiled": ((44, 44), (4, 4)),
    "one-side": ((16, 32), (4, 4)),
    "one-side-wide": ((32, 16), (4, 4)),
    "no-square": ((32, 48), (4, 3)),
    "odd-map": ((28, 36), (3, 3)),
    "wide": ((24, 96), (3, 4)),
}
RULE = {"timm": "timm", "torchvision": "torchvision", "transformers": "microsoft"}


def odd_net(library: str, v2: bool, image: tuple[int, int], window: tuple[int, int]) -> nn.Module:
    if library == "timm":
        import timm

        entry = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
        return timm.create_model(entry, **SIZES | {"img_size": image, "patch_size": 2, "window_size": window})
    if library == "torchvision":
        from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

        more = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if v2 else {}
        return SwinTransformer([2, 2], 8, [2, 2], [2, 4], list(window), num_classes=5, **more)
    import transformers

    more = {"image_size": image, "patch_size": 2, "window_size": window[0]}
    if v2:
        return transformers.Swinv2ForImageClassification(transformers.Swinv2Config(**SIZES | more))
    return transformers.SwinForImageClassification(transformers.SwinConfig(**SIZES | more))


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.parametrize("case", ODD)
def test_windows_that_do_not_tile_a_map_or_are_no_squares(library: str, v2: bool, case: str) -> None:
    image, window = ODD[case]
    if library == "transformers" and window[0] != window[1]:
        pytest.skip("transformers has square windows")
    net = filled(odd_net(library, v2, image, window), 0)
    facts = facts_of(v2, 0) | {"image_size": image, "window": (window[0],), "window_width": (window[1],)}
    if library == "timm":
        sides = [layer.blocks[0].attn.window_size for layer in net.layers]
        facts |= {"window": tuple(h for h, _ in sides), "window_width": tuple(w for _, w in sides)}
    if library == "transformers" and v2:
        # Made smaller where the map is lower.
        facts |= {"window": tuple(layer.blocks[0].window_size for layer in net.swinv2.encoder.layers)}
        facts |= {"window_width": facts["window"]}
    canonical = translate(net.state_dict(), dialect_of(library, v2), "canonical-stages", facts=facts)
    images = torch.randn(1, 3, *image, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        theirs = logits(net, images)

    def gap(rule: str) -> float:
        config = config_of_stages(
            {k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts, window_rule=rule)
        )
        ours = StageViT(config).double()
        ours.load_state_dict(canonical, strict=True)
        with torch.no_grad():
            return float((theirs - ours(images)).abs().max() / theirs.abs().max())

    assert gap("transformers-v2" if library == "transformers" and v2 else RULE[library]) <= CLOSE
    if case in ("not-tiled", "one-side") and library != "transformers":
        assert gap("microsoft" if case == "one-side" else "torchvision" if library == "timm" else "timm") > 1e-6
    if case == "one-side-wide" and library == "transformers":
        assert gap("microsoft" if v2 else "transformers-v2") > 1e-6


def test_whose_windows_they_are_is_asked_for_where_codebases_part() -> None:
    image, window = ODD["not-tiled"]
    net, facts = filled(odd_net("timm", False, image, window), 0), facts_of(False, 0) | {"image_size": image}
    canonical = translate(net.state_dict(), "timm-swin", "canonical-stages", facts=facts)
    ours = StageViT(config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))).double()
    choices = r"microsoft\|timm\|torchvision\|transformers-v2\|mmseg"
    with pytest.raises(Refused, match=rf"windows of 4x4 on a map of 22x22.*--set window_rule={choices}"):
        ours(torch.zeros(1, 3, *image, dtype=torch.float64))


PAIRS = [(a, b) for a in MAKERS for b in MAKERS if a != b]


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize(("a", "b"), PAIRS, ids=["-".join(p) for p in PAIRS])
def test_a_library_opens_what_came_from_another_strictly(a: str, b: str, v2: bool) -> None:
    source, target = filled(MAKERS[a](v2, 32), 0), filled(MAKERS[b](v2, 32), 7)
    facts = facts_of(v2, 32)
    facts.pop("norm_placement")
    there = translate(source.state_dict(), dialect_of(a, v2), dialect_of(b, v2), facts=facts)
    target.load_state_dict(there, strict=True)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        y, z = logits(source, images), logits(target, images)
    assert (y - z).abs().max() <= CLOSE * y.abs().max()


def test_a_merge_in_another_order_is_seen() -> None:
    net, facts = filled(timm_net(False, 32), 0), facts_of(False, 32)
    canonical = translate(net.state_dict(), "timm-swin", "canonical-stages", facts=facts)
    for s in [k for k in canonical if ".merge.h1w0.weight" in k]:
        other = s.replace("h1w0", "h0w1")
        canonical[s], canonical[other] = canonical[other], canonical[s]
    ours = StageViT(config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))).double()
    ours.load_state_dict(canonical, strict=True)
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        assert (logits(net, images) - ours(images)).abs().max() > 1e-2
