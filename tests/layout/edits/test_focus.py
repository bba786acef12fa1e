"""The start of a FLatten twin: what is carried is carried bit by bit, what is new is as FLatten initialises it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.conversion.convert import convert
from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order
from vitconv.errors import Refused, UsageError

FLATTEN = Path(__file__).parents[3] / "fixtures" / "golden" / "flatten"


def swin(folder: Path, window: int = 7) -> Path:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    sizes = {"img_size": 8 * window, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    net = timm.create_model("swin_tiny_patch4_window7_224", window_size=window, **sizes)
    save_file({k: torch.randn_like(v) for k, v in net.state_dict().items()}, folder / "swin.safetensors")
    return folder / "swin.safetensors"


def pvt(folder: Path) -> Path:
    """Return a file of PVT itself: FLatten-PVT's without focused parts, with a class token."""
    state = torch.load(FLATTEN / "flatten-fixed-pvt-model.pth", weights_only=True)
    kept = {k: v for k, v in state.items() if not re.search(r"attn\.(scale|positional_encoding|dwc)", k)}
    kept["cls_token"] = torch.randn(1, 1, 32, dtype=torch.float64)
    kept["pos_embed4"] = torch.randn(1, 5, 32, dtype=torch.float64)
    save_file(kept, folder / "pvt.safetensors")
    return folder / "pvt.safetensors"


def twin(source: Path, to: str, edit: str, **facts: Any) -> tuple[dict[str, torch.Tensor], str]:
    out = source.with_name("twin.safetensors")
    told = {"image_size": (64, 64), **facts}
    prepared, _ = convert(source, out, Order(to, Wishes(facts=told), edits=[edit]))
    return load_file(out), prepared.plan.network.log[-1].what


NEW = ("attn.scale", "attn.positional_encoding", "attn.dwc.weight", "attn.dwc.bias")


def test_a_swin_becomes_the_start_of_its_twin(tmp_path: Path) -> None:
    source = swin(tmp_path)
    there, said = twin(source, "flatten-swin", "focus-attention:LS", image_size=(56, 56))
    assert "86 tensors are carried as they are" in said
    assert "left out are stages.0.blocks.0.attn.table, stages.0.blocks.1.attn.table" in said
    assert "uniform in +-1/5 (seed 0), as FLatten initialises them" in said
    here = load_file(source)
    moved = {"head.fc": "head", "layers.1.downsample": "layers.0.downsample"}
    carried = 0
    for key, x in here.items():
        other = next((key.replace(a, b) for a, b in moved.items() if key.startswith(a)), key)
        if re.match(r"layers\.0\.blocks\.\d\.attn\.relative_position_bias_table", key):
            assert other not in there
            continue
        assert there[other].numpy().tobytes() == x.numpy().tobytes(), key
        carried += 1
    assert carried == len(here) - 2
    for i in (0, 1):
        at = f"layers.0.blocks.{i}."
        assert not there[at + NEW[0]].any() and not there[at + NEW[1]].any()
        assert there[at + NEW[1]].shape == (1, 49, 8)
        filters = there[at + NEW[2]]
        assert filters.shape == (4, 1, 5, 5)
        assert 0.15 < filters.abs().max() <= 0.2
        assert abs(filters.std() - 0.2 / 3**0.5) < 0.02
    assert not torch.equal(there["layers.0.blocks.0.attn.dwc.weight"], there["layers.0.blocks.1.attn.dwc.weight"])
    assert "layers.1.blocks.0.attn.relative_position_bias_table" in there


def test_the_same_seed_draws_the_same_and_another_does_not(tmp_path: Path) -> None:
    source = swin(tmp_path)
    key = "layers.1.blocks.1.attn.dwc.weight"
    facts = {"image_size": (56, 56)}
    first = twin(source, "flatten-swin", "focus-attention", **facts)[0][key]
    again = twin(source, "flatten-swin", "focus-attention:types=SL", **facts)[0][key]
    other = twin(source, "flatten-swin", "focus-attention:types=SL,seed=1", **facts)[0][key]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_first_blocks_of_a_stage_and_a_larger_window(tmp_path: Path) -> None:
    there, _ = twin(swin(tmp_path), "flatten-swin", "focus-attention:types=MS1,window=56", image_size=(56, 56))
    # A window is cut to the map: 56 pixels in patches of 4.
    assert there["layers.0.blocks.0.attn.positional_encoding"].shape == (1, 14 * 14, 8)
    assert "layers.0.blocks.1.attn.relative_position_bias_table" in there
    # One window covers the map, so that nothing shifts and there is no mask; the softmax block still has one.
    assert sorted(k for k in there if k.endswith("attn_mask")) == ["layers.0.blocks.1.attn_mask"]


@pytest.mark.parametrize(("sr", "rows"), [("keep", 4), ("none", 256)])
def test_a_pvt_loses_its_class_token(tmp_path: Path, sr: str, rows: int) -> None:
    there, _ = twin(pvt(tmp_path), "flatten-pvt", f"focus-attention:types=LSSS,sr={sr}", stage_heads=(1, 2, 3, 4))
    assert "cls_token" not in there
    assert there["pos_embed4"].shape == (1, 4, 32)
    assert there["block1.0.attn.positional_encoding"].shape == (1, rows, 8)
    assert ("block1.0.attn.sr.weight" in there) == (sr == "keep")
    assert "block2.0.attn.scale" not in there


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        ("focus-attention:LSL", UsageError, "types=LSL speaks of 3 stages, there are 2"),
        ("focus-attention:SS", UsageError, "no block is to be"),
        ("focus-attention:kernel=4", UsageError, "a kernel of 4 do not fit"),
        ("focus-attention:window=14", Refused, "--set image_size=224x224"),
        ("focus-attention:types=M", UsageError, "one letter per stage"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, edit: str, error: type[Exception], says: str) -> None:
    source = swin(tmp_path)
    with pytest.raises(error, match=re.escape(says)):
        convert(source, tmp_path / "out.safetensors", Order("flatten-swin", edits=[edit]))
    assert not (tmp_path / "out.safetensors").exists()


def test_a_twin_is_not_made_unasked(tmp_path: Path) -> None:
    """A Swin without a focused block is a FLatten file of its own kind, and stays what it computes."""
    source = swin(tmp_path)
    convert(source, tmp_path / "out.safetensors", Order("flatten-swin", Wishes(facts={"image_size": (56, 56)})))
    assert not any(k.endswith(NEW) for k in load_file(tmp_path / "out.safetensors"))


def stages(name: str, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Return a file of a published network of stages, and its tensors."""
    trace = load_file(FLATTEN.parent / "stages" / f"{name}.safetensors")
    state = {k.removeprefix("weight."): v for k, v in trace.items() if k.startswith("weight.")}
    save_file(state, folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors", state


def test_a_cswin_becomes_the_start_of_its_twin(tmp_path: Path) -> None:
    """Its stripes become one map, whose positional convolution has the channels of both; the rest is carried."""
    source, here = stages("flatten-cswin-ssss", tmp_path)
    _, twins = stages("flatten-cswin-llss", tmp_path)
    told = {"image_size": (32, 32), "stage_heads": (2, 2, 4, 8)}
    there, said = twin(source, "flatten-cswin", "focus-attention:LLSS", **told)
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in twins.items()}
    assert "the two stripes' positional convolutions are one over the whole map, channels in order" in said
    for s, depth in ((1, 1), (2, 2)):
        for i in range(depth):
            at = f"stage{s}.{i}.attns."
            for part in ("get_v.weight", "get_v.bias"):
                assert torch.equal(there[f"{at}0.{part}"], torch.cat([here[f"{at}{j}.{part}"] for j in (0, 1)]))
    assert all(torch.equal(there[k], v) for k, v in here.items() if not re.match(r"stage[12]\..*attns", k))


def test_a_focused_pvtv2_of_the_linear_form_has_49_places(tmp_path: Path) -> None:
    from vitconv.conversion.translate import translate
    from vitconv.layout.semantics import Semantics
    from vitconv.vit.stages.config import config_of_stages
    from vitconv.vit.stages.model import StageViT

    source, _ = stages("pvtv2-linear", tmp_path)
    facts: dict[str, Any] = {"image_size": (32, 32), "stage_heads": (1, 2, 3, 4)}
    there, _ = twin(source, "flatten-pvtv2", "focus-attention", **facts)
    assert there["block1.0.attn.positional_encoding"].shape == (1, 49, 4)
    facts |= {"norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": 1e-5, "activation": "gelu", "pooling": "avg"}
    facts |= {"norm_placement": "pre", "attention": "focused-stable", "focusing_factor": 3.0}
    canonical = translate(there, "flatten-pvtv2", "canonical-stages", facts={**facts, "attention": None})
    net = StageViT(config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))).double()
    net.load_state_dict(canonical, strict=True)
    assert torch.isfinite(net(torch.randn(1, 3, 32, 32, dtype=torch.float64))).all()


def test_the_map_of_a_pvtv2_is_that_of_its_overlapping_patches(tmp_path: Path) -> None:
    """Patches are 7 wide and 4 apart: 32 pixels are 8 places, not 5."""
    source, here = stages("flatten-pvtv2-llss", tmp_path)
    plain = {k: v for k, v in here.items() if not re.search(r"attn\.(scale|positional_encoding|dwc)", k)}
    save_file(plain, source)
    told = {"image_size": (32, 32), "stage_heads": (1, 2, 3, 4)}
    there, _ = twin(source, "flatten-pvtv2", "focus-attention:LLSS", **told)
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in here.items()}


def plain(folder: Path) -> Path:
    timm = pytest.importorskip("timm")
    net = timm.models.VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5)
    save_file(net.state_dict(), folder / "vit.safetensors")
    return folder / "vit.safetensors"


def test_a_plain_network_is_carried_whole_into_what_has_no_layout_of_its_own(tmp_path: Path) -> None:
    source = plain(tmp_path)
    there, said = twin(source, "canonical", "focus-attention:power=4", image_size=(16, 16), heads=2)
    assert "41 tensors are carried as they are (100 % of the parameters); new are none" in said
    assert "not the same function" in said
    assert len(there) == 41
    with pytest.raises(Refused, match="focused-upstream-fix here, but timm VisionTransformer computes softmax"):
        twin(source, "timm", "focus-attention", image_size=(16, 16), heads=2)
    with pytest.raises(UsageError, match="types, window: of networks of stages"):
        twin(source, "canonical", "focus-attention:types=LL,window=7", image_size=(16, 16), heads=2)


def test_query_norms_have_no_place_in_it(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
    save_file(timm.models.VisionTransformer(**sizes, qk_norm=True).state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(Refused, match="no norms of queries and keys"):
        convert(tmp_path / "vit.safetensors", tmp_path / "o.safetensors", Order("canonical", edits=["focus-attention"]))
