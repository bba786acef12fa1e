"""Public reports on weights that are loaded and then drawn anew (J), seen beside the file they came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import rand_t, save, vitconv

pytest.importorskip("timm")
NETWORKS = """
import timm, torch
from safetensors.torch import load_file
from torch import nn

def plain():
    torch.manual_seed(1)
    return timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4,
                             num_classes=5)

def loaded():
    net = plain()
    net.load_state_dict(load_file("PATH"))
    return net

def rounded():
    return loaded().bfloat16()

def one_layer_anew():
    net = loaded()
    nn.init.normal_(net.blocks[1].mlp.fc2.weight, std=0.02)
    return net

def matrices_of_a_block_anew():
    net = loaded()
    for p in net.blocks[0].attn.parameters():
        if p.dim() > 1:
            nn.init.trunc_normal_(p, std=0.02)
    return net

def head_left_out():
    net = plain()
    state = {k: v for k, v in load_file("PATH").items() if not k.startswith("head")}
    net.load_state_dict(state, strict=False)
    return net

def all_anew():
    net = loaded()
    net.init_weights()
    return net
"""
FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "norm_placement=pre", "pooling=token")


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        pytest.param("one_layer_anew", 1, "blocks.1.mlp.down.weight", id="transformers#46620"),
        pytest.param("matrices_of_a_block_anew", 1, "blocks.0.attn.q.weight", id="transformers#45591"),
        pytest.param("head_left_out", 1, "head.weight", id="transformers#28244"),
        pytest.param("loaded", 0, "", id="loaded"),
        pytest.param("rounded", 0, "", id="loaded-and-rounded"),
        pytest.param("plain", 0, "", id="never-loaded"),
        pytest.param("all_anew", 0, "", id="all-drawn-anew"),
    ],
)
def test_a_network_that_came_with_most_of_a_file(made: str, code: int, says: str, tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    (tmp_path / "made.py").write_text(NETWORKS.replace("PATH", str(source)), encoding="utf-8")
    told = [x for fact in (*FACTS, "kv_normalised=true") for x in ("--set-a", fact)]
    words = ("--precision", "fp64", "--inputs", "coloured", "--skip", "why")
    answer = vitconv("verify", source, f"python:{tmp_path / 'made.py'}:{made}", *told, *words, "--json")
    assert answer.code == code, answer.text
    sentence = answer.json["verdict"]["sentence"]
    assert says in sentence
    assert ("came with" in sentence) == (code == 1)
