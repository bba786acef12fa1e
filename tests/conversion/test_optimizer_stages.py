"""Moments of networks in stages: groups as timm and Microsoft make them, layer-wise too, carried into transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_kit import call, timm_groups, timm_layers
from torch import Tensor, nn

import vitconv

timm = pytest.importorskip("timm")
DEPTHS = (1, 2, 1, 1)
FACTS = ("stage_heads=2", "activation=gelu", "norm_eps=1e-5", "final_norm_eps=1e-5", "embed_norm_eps=1e-5",
         "window=2", "image_size=64x64", "mean=0.5", "std=0.5")  # fmt: skip
SETS = [word for fact in FACTS for word in ("--set", fact)]
SIZE = {"image_size": (64, 64), "window": (2,), "stage_heads": (2,)}
NAMES = {"swin": "swin_tiny_patch4_window7_224", "swinv2": "swinv2_tiny_window8_256"}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": 12, "depths": DEPTHS, "num_heads": (2, 2, 2, 2), "num_classes": 3}
    return timm.create_model(NAMES[name], img_size=64, window_size=2, **sizes)


def stepped(optimizer: torch.optim.Optimizer) -> None:
    """Take two steps with gradients of each element's own."""
    g = torch.Generator().manual_seed(3)
    for _ in range(2):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=g)
        optimizer.step()


def by_name(state: Mapping[str, Any], names: list[str], moment: str) -> dict[str, Tensor]:
    return {name: state["state"][i][moment] for i, name in enumerate(names)}


def carried(folder: Path, to: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "optimizer.pt", weights_only=True)
    assert state["state"], to
    return state


@pytest.mark.parametrize("make", [timm_groups, timm_layers], ids=["two-groups", "by-layer"])
@pytest.mark.parametrize("name", NAMES)
def test_timms_groups_of_swins(name: str, make: Callable[..., Any], tmp_path: Path, capsys: Any) -> None:
    module = network(name)
    optimizer = make(module)
    stepped(optimizer)
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "t.pth")
    assert call(tmp_path / "t.pth", tmp_path / "hf", "--to", f"hf-{name}", "--optimizer", *SETS) == 0
    assert "matched by their order: " + ("per layer" if make is timm_layers else "biases") in capsys.readouterr().out
    order = {id(p): n for n, p in module.named_parameters()}
    names = [order[id(p)] for group in optimizer.param_groups for p in group["params"]]
    state = carried(tmp_path / "hf", name)
    for moment in ("exp_avg", "exp_avg_sq"):
        own = by_name(optimizer.state_dict(), names, moment)
        want = vitconv.translate(own, f"timm-{name}", f"hf-{name}", kind="moments")
        assert set(want) >= set(state["state"])
        for key, held in state["state"].items():
            assert torch.equal(held[moment], want[key]), key
    # Every parameter keeps the settings of its group.
    rates = {n: g.get("lr_scale", 1.0) for g in optimizer.param_groups for n in names_of(g, order)}
    moved = {n: g.get("lr_scale", 1.0) for g in state["param_groups"] for n in g["params"]}
    scale = vitconv.translate(
        {n: torch.full_like(p, rates[n]) for n, p in module.named_parameters()}, f"timm-{name}", f"hf-{name}",
        kind="moments",
    )  # fmt: skip
    assert all(float(scale[n].flatten()[0]) == pytest.approx(rate) for n, rate in moved.items())


def names_of(group: Mapping[str, Any], order: Mapping[int, str]) -> list[str]:
    return [order[id(p)] for p in group["params"]]


def simmim_layer(name: str) -> int:
    """Microsoft's: get_swin_layer of SimMIM; what leads into the next stage belongs to the last block of its own."""
    word = name.split(".")
    if name.startswith("patch_embed"):
        return 0
    if not name.startswith("layers"):
        return sum(DEPTHS) + 1
    stage = int(word[1])
    return sum(DEPTHS[: stage + 1]) if word[2] == "downsample" else sum(DEPTHS[:stage]) + int(word[3]) + 1


def simmim_groups(weights: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Groups by layer and decay in the order in which they are met, of SimMIM's optimizer.py."""
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, p in weights.items():
        free = p.ndim == 1 or name.endswith(".bias") or "relative_position_bias_table" in name
        groups.setdefault((simmim_layer(name), free), []).append(p)  # type: ignore[arg-type]
    top = sum(DEPTHS) + 1
    return [
        {"params": ps, "weight_decay": 0.0 if free else 0.05, "lr": 1e-3 * 0.8 ** (top - layer)}
        for (layer, free), ps in groups.items()
    ]


def test_microsofts_layer_wise_groups(tmp_path: Path, capsys: Any) -> None:
    moved = vitconv.translate(network("swin").state_dict(), "timm-swin", "swin", facts=SIZE)
    weights = {n: nn.Parameter(t.clone()) for n, t in moved.items() if t.is_floating_point() and "attn_mask" not in n}
    ordered = dict(sorted(weights.items(), key=lambda item: place(item[0])))
    optimizer = torch.optim.AdamW(simmim_groups(ordered))
    stepped(optimizer)
    state = {"model": {n: p.detach() for n, p in ordered.items()}, "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "t.pth")
    assert call(tmp_path / "t.pth", tmp_path / "hf", "--to", "hf-swin", "--optimizer", *SETS) == 0
    assert "what leads into a stage with the block before" in capsys.readouterr().out
    order = {id(p): n for n, p in ordered.items()}
    names = [order[id(p)] for group in optimizer.param_groups for p in group["params"]]
    want = vitconv.translate(by_name(optimizer.state_dict(), names, "exp_avg"), "swin", "hf-swin", kind="moments")
    for key, held in carried(tmp_path / "hf", "swin")["state"].items():
        assert torch.equal(held["exp_avg"], want[key]), key


def place(name: str) -> tuple[Any, ...]:
    """The order of Microsoft's modules: patches, stages with what leads on at their end, the norm and the head."""
    word = name.split(".")
    first = {"patch_embed": 0, "layers": 1, "norm": 2, "head": 3}[word[0]]
    inner = (int(word[1]), word[2] == "downsample", int(word[3]) if word[2] == "blocks" else 0) if first == 1 else ()
    parts = ("norm1", "attn", "relative_position_bias_table", "qkv", "proj", "norm2", "mlp", "fc1", "fc2")
    rest = tuple(parts.index(w) if w in parts else 0 for w in word[4:-1]) if first == 1 else ()
    ends = {"weight": 0, "bias": 1, "relative_position_bias_table": -1}
    return (
        (first, *inner, *rest, word[-2], ends.get(word[-1], 0)) if first != 1 else (first, inner, rest, ends[word[-1]])
    )


def test_trained_frequencies_of_rotary_positions_have_moments(tmp_path: Path) -> None:
    """They are parameters, as tables of periods are not."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    module = timm.create_model("vit_small_patch16_rope_mixed_224", **sizes)
    optimizer = torch.optim.AdamW(module.parameters())
    stepped(optimizer)
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "t.pth")
    out = tmp_path / "canonical.safetensors"
    assert call(tmp_path / "t.pth", out, "--to", "canonical", "--optimizer", "--set", "rope_layout=interleaved") == 0
    state = torch.load(tmp_path / "canonical.optimizer.pt", weights_only=True)["state"]
    own = {n: optimizer.state[p]["exp_avg"] for n, p in module.named_parameters()}
    assert any(key.endswith(".attn.rope") for key in state)
    for key, held in vitconv.translate(own, "timm-eva", "canonical", kind="moments").items():
        assert torch.equal(state[key]["exp_avg"], held), key
