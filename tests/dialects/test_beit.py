"""BEiT with relative, absolute and no positions, between timm, unilm's names and transformers, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.layout.detect import detect
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")

TIMM = {"img_size": (16, 16), "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
HF = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-6, "num_labels": 5, "attn_implementation": "sdpa",
}  # fmt: skip
X = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
# (absolute positions, a table per block, one table for all)
POSITIONS = {"none": (0, 0, 0), "absolute": (1, 0, 0), "relative": (0, 1, 0), "shared": (0, 0, 1), "both": (1, 1, 0)}


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.double().parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * 0.3)
    return module.eval()


def of_timm(positions: tuple[int, int, int], pool: str = "avg", **more: Any) -> nn.Module:
    names = ("use_abs_pos_emb", "use_rel_pos_bias", "use_shared_rel_pos_bias")
    told = dict(zip(names, map(bool, positions), strict=True))
    return drawn(timm.models.Beit(**{**TIMM, "init_values": 0.1, "global_pool": pool, **told, **more}))


def of_hf(cls: str, positions: tuple[int, int, int], *, pool: bool = True, seed: int = 0, **more: Any) -> nn.Module:
    names = (
        "use_absolute_position_embeddings",
        "use_relative_position_bias",
        "use_shared_relative_position_bias",
    )
    told = dict(zip(names, map(bool, positions), strict=True))
    config = transformers.BeitConfig(**{**HF, "use_mean_pooling": pool, **told, **more})
    return drawn(getattr(transformers, cls)(config), seed)


def facts(positions: tuple[int, int, int], pool: str) -> dict[str, Any]:
    relative = positions[1] or positions[2]
    kind = "relative" if relative else "learned" if positions[0] else "none"
    return {"position": kind, "pooling": pool, "grid": "4x4"}


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("pool", ["avg", "token"])
def test_timm_and_transformers_compute_the_same(name: str, pool: str) -> None:
    positions = POSITIONS[name]
    one = of_timm(positions, pool)
    two = of_hf("BeitForImageClassification", positions, pool=pool == "avg", seed=1)
    told = facts(positions, pool)
    weights = dict(one.state_dict())
    moved = translate(weights, "beit", "hf-beit-5", facts=told)
    two.load_state_dict({**{k: v for k, v in two.state_dict().items() if k.endswith("_index")}, **moved})
    assert near(two(X).logits, one(X)) < 1e-12
    assert same(translate(moved, "hf-beit-5", "beit", facts=told), weights)


def test_without_relative_positions_the_names_are_an_eva_s() -> None:
    """Read as timm's Eva, which computes the same; what only masked pretraining has says that it is BEiT."""
    dialects = load_all(DIALECTS, plugins=False).values()
    shapes = {k: tuple(v.shape) for k, v in of_timm(POSITIONS["absolute"]).state_dict().items()}
    assert detect(shapes, dialects).dialect.name == "timm-eva"
    shapes |= {"mask_token": (1, 1, 16), "lm_head.weight": (7, 16), "lm_head.bias": (7,)}
    found = detect(shapes, dialects)
    assert (found.dialect.name, found.variant.names["relative_positions"]) == ("beit", "none")


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("epoch", ["hf-beit", "hf-beit-5"])
def test_masked_modelling_that_is_told_to_pool_norms_once(name: str, epoch: str) -> None:
    """By default it keeps its norm at the top level and none in the trunk; see BeitForMaskedImageModeling."""
    positions = POSITIONS[name]
    model = of_hf("BeitForMaskedImageModeling", positions, use_mask_token=True, vocab_size=7)
    weights = {k: v for k, v in model.state_dict().items() if not k.endswith("_index")}
    assert "layernorm.weight" in weights
    assert "beit.layernorm.weight" not in weights
    told = facts(positions, "none")
    on_disk = weights if epoch == "hf-beit-5" else translate(weights, "hf-beit-5", "hf-beit", facts=told)
    there = translate(on_disk, None, "beit", facts=told)
    assert {"norm.weight", "lm_head.weight", "mask_token"} <= there.keys()
    assert "fc_norm.weight" not in there
    assert same(translate(there, None, "hf-beit-5", facts=told), weights)
    # The same trunk, computed by the reference.
    canonical = translate(weights, "hf-beit-5", "canonical", facts=told)
    semantics = Semantics(
        heads=2, norm_placement="pre", norm_eps=1e-6, final_norm_eps=1e-6, activation="gelu", attention="softmax",
        kv_normalised=True, pooling="none", position=told["position"], grid=(4, 4),
    )  # fmt: skip
    vit = ViT(config_from_shapes({k: tuple(v.shape) for k, v in canonical.items()}, semantics)).double().eval()
    vit.load_state_dict(canonical)
    out = model(X, bool_masked_pos=torch.zeros(2, 16, dtype=torch.bool)).logits
    head = nn.functional.linear(vit(X)[:, 1:], weights["lm_head.weight"], weights["lm_head.bias"])
    assert near(head, out) < 1e-12


def test_two_norms_in_a_row_have_no_place_in_beit() -> None:
    from vitconv.errors import Refused

    model = of_hf("BeitForMaskedImageModeling", (0, 1, 0), pool=False, use_mask_token=True, vocab_size=7)
    weights = {k: v for k, v in model.state_dict().items() if not k.endswith("_index")}
    assert {"layernorm.weight", "beit.layernorm.weight"} <= weights.keys()
    with pytest.raises(Refused, match=r"no place for trunk_norm"):
        translate(weights, None, "beit")


def test_a_folder_of_masked_modelling_opens_as_it_was(tmp_path: Path) -> None:
    one = of_hf("BeitForMaskedImageModeling", (0, 0, 1), use_mask_token=True, vocab_size=7)
    one.save_pretrained(tmp_path / "in")
    assert run(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "hf-beit-5"]) == 0
    two = transformers.BeitForMaskedImageModeling.from_pretrained(tmp_path / "out").double().eval()
    masked = torch.arange(16)[None].repeat(2, 1) % 3 == 0
    assert near(two(X, bool_masked_pos=masked).logits, one(X, bool_masked_pos=masked).logits) < 1e-6


def test_two_norms_are_mixed_up_by_the_library_itself_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = of_hf("BeitForMaskedImageModeling", (0, 0, 1), pool=False, use_mask_token=True, vocab_size=7)
    one.save_pretrained(tmp_path / "in")
    assert run(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "hf-beit-5"]) == 0
    assert "mixes up beit.layernorm and layernorm" in capsys.readouterr().out
    two = of_hf("BeitForMaskedImageModeling", (0, 0, 1), pool=False, seed=1, use_mask_token=True, vocab_size=7)
    there = load_file(tmp_path / "out" / "model.safetensors")
    buffers = {k: v for k, v in two.state_dict().items() if k.endswith("_index")}
    two.load_state_dict({**buffers, **there})
    masked = torch.arange(16)[None].repeat(2, 1) % 3 == 0
    assert near(two(X, bool_masked_pos=masked).logits, one(X, bool_masked_pos=masked).logits) < 1e-6


AUTHOR = Path(__file__).parents[2] / "fixtures" / "golden" / "beit"


def test_what_beit_2_trains_its_class_token_through_is_left_aside_and_said(tmp_path: Path, capsys) -> None:
    """`cls_pt_layers` are blocks after the network's own, with a norm and a head unless these are shared."""
    state = torch.load(AUTHOR / "beit-author-shared.pth", weights_only=True)
    more = {k.replace("blocks.", "cls_pt_layers.", 1): v.clone() for k, v in state.items() if k.startswith("blocks.")}
    more |= {f"cls_pt_norm.{kind}": torch.randn(16) for kind in ("weight", "bias")}
    more |= {"cls_pt_lm_head.weight": torch.randn(20, 16), "cls_pt_lm_head.bias": torch.randn(20)}
    torch.save({"model": state | more}, tmp_path / "pretrained.pth")
    assert run(["convert", str(tmp_path / "pretrained.pth"), str(tmp_path / "o.safetensors"), "--to", "beit"]) == 0
    assert "cls_pt_layers.{0..1}.gamma_1" in capsys.readouterr().out
    written = load_file(tmp_path / "o.safetensors")
    assert written.keys() == state.keys()
    assert all(torch.equal(written[k], state[k]) for k in state)


def test_tables_by_block_and_for_all_blocks_are_refused_and_not_offered_to_be_dropped(tmp_path: Path, capsys) -> None:
    state = torch.load(AUTHOR / "beit-author.pth", weights_only=True)
    shared = {k.replace("blocks.0.attn.", "rel_pos_bias."): v.clone() for k, v in state.items() if "attn.rel" in k}
    torch.save(state | {k: v for k, v in shared.items() if k.startswith("rel_pos_bias.")}, tmp_path / "s.pth")
    assert run(["convert", str(tmp_path / "s.pth"), str(tmp_path / "o.safetensors"), "--to", "beit"]) == 3
    said = capsys.readouterr().err
    assert "by block and for all blocks at once" in said
    assert "--drop" not in said
