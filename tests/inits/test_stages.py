"""Networks in stages: the audit, `init` and live init know their roles as they know those of plain ViTs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitconv.cli.main import run
from vitconv.initialise.audit import audit_file
from vitconv.inits import apply
from vitconv.inits.audit.audit import Audited
from vitconv.layout.blocks import block_of, blocks_of, is_block
from vitconv.layout.groups import grouped, preset

Weights = dict[str, Tensor]


def timm_swin(**more: Any) -> torch.nn.Module:
    import timm

    size = {"img_size": 32, "window_size": 2, "embed_dim": 48, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 10}
    torch.manual_seed(0)
    return timm.create_model("swin_tiny_patch4_window7_224", **{**size, **more})


def timm_swinv2() -> torch.nn.Module:
    import timm

    size = {"img_size": 64, "window_size": 4, "embed_dim": 48, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 10}
    torch.manual_seed(0)
    return timm.create_model("swinv2_tiny_window8_256", **size)


def hf_swin() -> torch.nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    size: dict[str, Any] = {"depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "num_labels": 10}
    torch.manual_seed(0)
    return SwinForImageClassification(SwinConfig(image_size=32, patch_size=4, embed_dim=48, **size))


def renamed(weights: Weights) -> Weights:
    """Return timm's tensors as Microsoft's own code keeps them: the merging stands at the end of a stage."""
    out = {k.replace("layers.1.downsample", "layers.0.downsample"): t for k, t in weights.items()}
    return {k.replace("head.fc.", "head."): t for k, t in out.items()}


def pyramid(library: str) -> torch.nn.Module:
    size: dict[str, Any] = {"depths": [2, 1, 1, 2], "mlp_ratios": [4, 4, 4, 4]}
    widths, heads = [48, 64, 96, 128], [1, 2, 3, 4]
    torch.manual_seed(0)
    if library == "timm":
        from timm.models import PyramidVisionTransformerV2

        return PyramidVisionTransformerV2(embed_dims=widths, num_heads=heads, num_classes=10, **size)
    import transformers

    config = transformers.AutoConfig.for_model(
        library, hidden_sizes=widths, num_attention_heads=heads, num_labels=10, image_size=64, **size
    )
    return transformers.AutoModelForImageClassification.from_config(config)


def authors_pvt() -> Weights:
    """transformers' PVT with the convolutions as torch makes them, which whai362/PVT leaves so."""
    net = pyramid("pvt")
    for m in net.modules():
        if isinstance(m, torch.nn.Conv2d):
            m.reset_parameters()
    return dict(net.state_dict())


MODELS: dict[str, Callable[[], Weights]] = {
    "timm pvt v2": lambda: dict(pyramid("timm").state_dict()),
    "transformers pvt": lambda: dict(pyramid("pvt").state_dict()),
    "transformers pvt v2": lambda: dict(pyramid("pvt_v2").state_dict()),
    "pvt": authors_pvt,
    "timm": lambda: dict(timm_swin().state_dict()),
    "microsoft": lambda: renamed(dict(timm_swin().state_dict())),
    "transformers": lambda: dict(hf_swin().state_dict()),
    "timm-v2": lambda: dict(timm_swinv2().state_dict()),
}


def saved(folder: Path, weights: Weights) -> Path:
    path = folder / "model.safetensors"
    save_file({k: t.contiguous().clone() for k, t in weights.items()}, path)
    return path


def ids(found: Audited) -> set[str]:
    return {f.id for f in found.findings}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("timm", "timm"),
        ("microsoft", "timm"),
        ("transformers", "hf-deit"),
        ("timm-v2", "small-gain"),
        ("timm pvt v2", "pvt-v2"),
        ("transformers pvt", "hf-pvt"),
        ("transformers pvt v2", "pvt-v2"),
        ("pvt", "pvt"),
    ],
)
def test_a_fresh_swin_is_never_trained_and_its_scheme_is_named(name: str, scheme: str, tmp_path: Path) -> None:
    found = audit_file(saved(tmp_path, MODELS[name]()))
    assert found.training.state == "never trained", found.training
    assert scheme in found.scheme.split(" or ")
    assert not found.fits[0].misfits
    assert [f for f in found.findings if f.level != "info"] == []


def nan(w: Weights, key: str) -> None:
    w[key].view(-1)[5] = float("nan")


def stray(w: Weights, key: str) -> None:
    w[key].view(-1)[5] = -2.0


def copied(w: Weights, key: str) -> None:
    w[key] = w["layers.0.blocks.0.mlp.fc1.weight"].clone()


def zero(w: Weights, key: str) -> None:
    w[key].zero_()


def swapped(w: Weights, key: str) -> None:
    stem = key.removesuffix("mlp.fc1.weight") + "norm1."
    w[f"{stem}weight"], w[f"{stem}bias"] = w[f"{stem}bias"], w[f"{stem}weight"]


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (nan, "not-finite"),
        (stray, "stray-minus-two"),
        (copied, "copied"),
        (zero, "all-zero"),
        (swapped, "gain-bias-mixed-up"),
    ],
)
def test_a_fault_planted_in_a_stage_is_found(
    plant: Callable[[Weights, str], None], finding: str, tmp_path: Path
) -> None:
    weights = {k: t.clone() for k, t in MODELS["timm"]().items()}
    plant(weights, "layers.0.blocks.1.mlp.fc1.weight")
    found = audit_file(saved(tmp_path, weights))
    assert finding in ids(found)
    assert any("stages.0.blocks.1" in name for f in found.findings if f.id == finding for name in f.where)


def test_a_swin_whose_biases_moved_is_trained(tmp_path: Path) -> None:
    tensors = MODELS["timm"]().items()
    weights = {k: t + 1e-3 * torch.randn(t.shape).sign() if t.dim() == 1 else t for k, t in tensors}
    assert audit_file(saved(tmp_path, weights)).training.state == "trained"


@pytest.mark.parametrize("name", ["timm", "microsoft", "timm-v2"])
def test_init_draws_a_swin_anew_in_its_own_layout(name: str, tmp_path: Path) -> None:
    path, out = saved(tmp_path, MODELS[name]()), tmp_path / "drawn.safetensors"
    scheme = "small-gain" if name == "timm-v2" else "timm-moco"
    more = ["--set", "window=4", "--set", "pretrained_window=0"] if name == "timm-v2" else []
    # Microsoft's code keeps the masks of shifted windows.
    more += ["--set", "image_size=32"] if name == "microsoft" else []
    assert run(["init", str(path), str(out), "--scheme", scheme, "--seed", "3", *more]) == 0
    before, after = load_file(path), load_file(out)
    assert {k: t.shape for k, t in after.items() if k in before} == {k: t.shape for k, t in before.items()}
    assert all(k.endswith(("relative_position_index", "attn_mask")) for k in after.keys() - before.keys())
    found = audit_file(out)
    assert scheme in found.scheme
    assert not found.fits[0].misfits


def test_a_live_swin_is_drawn_and_nothing_is_left() -> None:
    model = timm_swin()
    for p in model.parameters():
        p.data.fill_(float("nan"))
    apply(model, "timm", seed=1)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_groups_of_a_swin() -> None:
    shapes = {
        "embed.patch.weight": (8, 3, 4, 4), "stages.0.blocks.0.attn.q.weight": (8, 8),
        "stages.0.blocks.1.attn.table": (9, 2), "stages.1.merge.h0w0.weight": (16, 8),
        "stages.1.blocks.0.norm1.weight": (16,), "stages.1.blocks.1.attn.cpb.up.weight": (512, 2),
        "stages.1.blocks.1.attn.logit_scale": (2,), "head.weight": (10, 16),
    }  # fmt: skip
    rows = grouped(((name, (name,), shape) for name, shape in shapes.items()), 0, rule=preset("role"))
    assert [(g.layer, g.decays) for g in rows] == [
        (0, True), (1, True), (2, False), (3, True), (3, False), (4, False), (4, False), (5, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("blocks.3.norm1.weight", "blocks.3"),
        ("stages.1.blocks.0.attn.q.bias", "stages.1.blocks.0"),
        ("stages.1.merge.norm.h0w0.bias", None),
        ("decoder.blocks.2.norm1.bias", None),
        ("head.weight", None),
    ],
)
def test_blocks(name: str, block: str | None) -> None:
    assert block_of(name) == block
    assert not is_block(name)
    assert block is None or is_block(block)


def test_blocks_stand_in_running_order() -> None:
    names = [f"stages.{s}.blocks.{i}.x" for s in (1, 0) for i in (10, 2)] + ["head.bias"]
    assert blocks_of(names) == ("stages.0.blocks.2", "stages.0.blocks.10", "stages.1.blocks.2", "stages.1.blocks.10")
