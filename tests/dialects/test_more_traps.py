"""More faults that no shape check sees, by the number they have in the list of traps.

Elsewhere: Swin's merging, heads and windows (7) in test_f_swin.py, weight-normed heads (14) in test_g_heads.py, shards
of tensor parallelism (10) in test_megatron.py, one-to-one names (13) in the laws of round trips.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.layout.detect import detect
from vitconv.registry import DIALECTS, load_all

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
State = dict[str, Tensor]


def golden(name: str) -> State:
    loaded: State = torch.load(GOLDEN / f"{name}.pth", weights_only=True)
    return loaded


def detected(weights: State, **more: Any) -> Any:
    shapes = {k: tuple(v.shape) for k, v in weights.items()}
    return detect(shapes, load_all(DIALECTS, plugins=False).values(), **more)


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("source", "home", "to"),
    [
        ("dino/dino-tiny", "dino", "hf-vit"),
        ("dinov2/dinov2-plain", "dinov2", "hf-dinov2"),
        ("dinov3/dinov3-swiglu", "dinov3", "hf-dinov3"),
    ],
)
def test_trap_1_names_on_disk_and_in_memory_are_told_apart_and_are_one_network(source: str, home: str, to: str) -> None:
    weights = golden(source)
    facts = {"heads": 2, "rope_theta": 100.0}
    disk, memory = (translate(weights, home, name, facts=facts) for name in (to, f"{to}-5"))
    assert disk.keys() != memory.keys()
    assert detected(disk).dialect.name == to
    assert detected(memory).dialect.name == f"{to}-5"
    assert same(translate(disk, None, "canonical", facts=facts), translate(memory, None, "canonical", facts=facts))


def test_trap_2_corrupted_decoder_names_are_read_and_never_written() -> None:
    weights = translate(golden("mae/mae-pretrain"), "mae", "hf-mae")
    assert any(".decoder_layers." in k for k in weights)
    corrupted = {k.replace("decoder.decoder_layers.", "decoder.decoder_encoder.layer."): v for k, v in weights.items()}
    assert corrupted.keys() != weights.keys()
    assert detected(corrupted).variant.taken["decoder"] == "corrupted"
    assert same(translate(corrupted, None, "hf-mae"), weights)


@pytest.mark.parametrize("dialect", ["hf-clip-vision", "hf-siglip"])
def test_trap_2_a_prefix_that_one_release_drops_is_put_back(dialect: str) -> None:
    if dialect == "hf-siglip":
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        config = transformers.SiglipVisionConfig(**sizes, image_size=16, patch_size=4)
        bare = dict(transformers.SiglipVisionModel(config).state_dict())
    else:
        full = translate(golden("clip/clip-tower"), "clip", dialect)
        bare = {k.removeprefix("vision_model."): v for k, v in full.items() if "visual_projection" not in k}
    assert not any(k.startswith("vision_model.") for k in bare)
    there = translate(bare, dialect, dialect, choices={"prefix": "vision_model"})
    assert {k.removeprefix("vision_model.") for k in there} == set(bare)
    assert all(torch.equal(there[f"vision_model.{k}"], v) for k, v in bare.items())


def test_trap_4_a_masked_key_bias_is_no_part_of_the_network_whatever_it_holds() -> None:
    weights = golden("dinov3/dinov3-masked")
    facts = {"heads": 2, "rope_theta": 100.0}
    width = weights["blocks.0.norm1.weight"].numel()
    moved = translate(weights, "dinov3", "hf-dinov3", facts=facts)
    for i in range(2):
        weights[f"blocks.{i}.attn.qkv.bias"][width : 2 * width] = torch.nan
    again = translate(weights, "dinov3", "hf-dinov3", facts=facts)
    assert same(again, moved)
    assert not any("k_proj.bias" in k or "key.bias" in k for k in moved)
    weights["blocks.1.attn.qkv.bias_mask"][width + 1] = 1
    with pytest.raises(Refused, match="should be the constant"):
        translate(weights, "dinov3", "hf-dinov3", facts=facts)


def test_trap_4_chunks_of_blocks_are_numbered_through(tmp_path: Path) -> None:
    """`blocks.1.1` of two chunks is the second block, not the second of a second stack."""
    source = GOLDEN / "dinov2" / "dinov2-chunked.pth"
    weights = golden("dinov2/dinov2-chunked")
    assert run(["convert", str(source), str(tmp_path / "o.safetensors"), "--to", "dinov2"]) == 0
    written = load_file(tmp_path / "o.safetensors")
    chunks = {k: v for k, v in weights.items() if k.startswith("blocks.")}
    for key, value in chunks.items():
        _, _, block, rest = key.split(".", 3)
        assert torch.equal(written[f"blocks.{block}.{rest}"], value)


def test_trap_9_the_two_orders_of_a_flat_patch_are_never_taken_for_each_other() -> None:
    """A linear patch projection under timm's keys has one of two orders, which no shape tells: it is asked."""
    from vitconv.errors import Ambiguous

    weights = golden("dino/dino-tiny")
    kernel = weights["patch_embed.proj.weight"]
    orders = {"linear-cpq": kernel.flatten(1), "linear-pqc": kernel.permute(0, 2, 3, 1).flatten(1)}
    for option, flat in orders.items():
        told = {**weights, "patch_embed.proj.weight": flat.contiguous()}
        with pytest.raises(Ambiguous, match=r"linear-cpq or linear-pqc"):
            detected(told, given={"p": 4, "q": 4})
        there = translate(told, "timm", "dino", source_choices={"stem": option}, axes={"p": 4, "q": 4})
        assert torch.equal(there["patch_embed.proj.weight"], kernel)


def centred(weights: State) -> State:
    norms = ("layernorm.weight", "layer_norm_weight", "ln_pre.weight")
    return {k: v - 1 if k.endswith(norms) else v for k, v in weights.items()}


def test_trap_10_norms_that_are_stored_less_one_are_warned_of_and_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = golden("megatron/megatron-clip")
    torch.save(weights, tmp_path / "plain.pt")
    torch.save(centred(weights), tmp_path / "less.pt")
    command = ["--to", "canonical", "--axis", "h=2"]
    assert run(["convert", str(tmp_path / "plain.pt"), str(tmp_path / "a.safetensors"), *command]) == 0
    assert "add-one-to-norms" not in capsys.readouterr().out
    assert run(["convert", str(tmp_path / "less.pt"), str(tmp_path / "b.safetensors"), *command]) == 0
    assert "--edit add-one-to-norms puts it back" in capsys.readouterr().out
    edit = ["--edit", "add-one-to-norms"]
    assert run(["convert", str(tmp_path / "less.pt"), str(tmp_path / "c.safetensors"), *command, *edit]) == 0
    one, wrong, two = (load_file(tmp_path / f"{x}.safetensors") for x in "abc")
    assert max(float((one[k] - two[k]).abs().max()) for k in one) < 1e-15
    assert not torch.equal(one["blocks.0.norm1.weight"], wrong["blocks.0.norm1.weight"])


def test_trap_13_w1_is_not_found_inside_w12() -> None:
    """DINOv2's packed gate is `w12`, DINOv3's are `w1` and `w2`: each name is taken whole."""
    packed, apart = golden("dinov2/dinov2-swiglu"), golden("dinov3/dinov3-swiglu")
    assert detected(packed).dialect.name == "dinov2"
    assert detected(apart).dialect.name == "dinov3"
    there = translate(packed, "dinov2", "canonical")
    gate, up = packed["blocks.0.mlp.w12.weight"].chunk(2)
    assert torch.equal(there["blocks.0.mlp.gate.weight"], gate)
    assert torch.equal(there["blocks.0.mlp.up.weight"], up)


def test_trap_15_nothing_is_shared_with_the_source() -> None:
    """timm's own filters add to the caller's class token in place; see the sheet's fact 11."""
    weights = golden("dino/dino-tiny")
    before = {k: v.clone() for k, v in weights.items()}
    there = translate(weights, "dino", "hf-vit")
    for value in there.values():
        value.fill_(7)
    assert same(weights, before)
    again = translate(before, "dino", "hf-vit")
    assert any(not torch.equal(again[k], there[k]) for k in again)


def test_trap_18_which_attention_a_side_runs_is_known() -> None:
    """Both sides on one fused kernel can differ by nothing at all, which is no floor of rounding."""
    timm = pytest.importorskip("timm")
    from vitconv.hosts.base.host import Spec
    from vitconv.registry import HOSTS, load

    net = timm.models.VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=0)
    host = load(HOSTS, "timm")
    assert host.describe(net, Spec("", {})).survey.attention_backend == "sdpa"
    net.blocks[0].attn.fused_attn = False
    assert host.describe(net, Spec("", {})).survey.attention_backend == "eager"
