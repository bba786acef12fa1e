"""config.json of Swin and Swin V2: read as transformers takes it, written so that transformers opens the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.configs.hf_swin import read
from vitconv.conversion.convert import convert
from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order
from vitconv.conversion.recognise import recognise
from vitconv.errors import BadFile, Refused

TINY: dict[str, Any] = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
TINY |= {"window_size": 4, "num_labels": 5}


def model(v2: bool) -> Any:
    transformers = pytest.importorskip("transformers")
    kind = "Swinv2" if v2 else "Swin"
    more = {"pretrained_window_sizes": [2, 4]} if v2 else {"hidden_act": "relu", "layer_norm_eps": 1e-3}
    torch.manual_seed(0)
    net = getattr(transformers, f"{kind}ForImageClassification")(getattr(transformers, f"{kind}Config")(**TINY, **more))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    return net.eval()


@pytest.mark.parametrize("v2", [False, True], ids=["swin", "swinv2"])
def test_a_folder_of_transformers_says_its_facts(tmp_path: Path, v2: bool) -> None:
    model(v2).save_pretrained(tmp_path)
    found = recognise(tmp_path / "model.safetensors")
    found.checkpoint.close()
    facts = found.facts
    assert (facts.stage_heads, facts.window, facts.image_size) == ((2, 4), (4, 4), (32, 32))
    assert facts.pretrained_window == ((2, 0) if v2 else None)
    assert facts.activation == ("gelu" if v2 else "relu")
    assert facts.norm_eps == facts.final_norm_eps == (1e-5 if v2 else 1e-3)
    assert facts.embed_norm_eps == 1e-5


@pytest.mark.parametrize("v2", [False, True], ids=["swin", "swinv2"])
def test_a_written_folder_is_opened_strictly_and_computes_the_same(tmp_path: Path, v2: bool) -> None:
    import transformers

    net = model(v2)
    net.save_pretrained(tmp_path / "one")
    there, back = tmp_path / "published.safetensors", tmp_path / "two"
    name = "swinv2" if v2 else "swin"
    convert(tmp_path / "one" / "model.safetensors", there, Order(name))
    order = Order(f"hf-{name}", Wishes(facts={} if v2 else {"activation": "relu"}))
    convert(there, back, order)
    opened = getattr(transformers, type(net).__name__)
    again, loading = opened.from_pretrained(back, output_loading_info=True)
    assert not any(loading[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(net(images).logits, again.eval()(images).logits)
    mine = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert mine["depths"] == [2, 2]
    if v2:
        assert mine["pretrained_window_sizes"] == [2, 0]
    one, two = (load_file(f / "model.safetensors") for f in (tmp_path / "one", back))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"depths": [2, "2"]}, "depths"), ({"num_heads": [2]}, "num_heads"), ({"num_heads": 3}, "num_heads")],
    ids=["text", "too-few", "no-list"],
)
def test_values_of_the_wrong_kind_are_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadFile, match=says):
        read({"model_type": "swin", **TINY, **change}, "config.json")


def test_without_the_window_no_configuration_is_written(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    save_file(timm.create_model("swinv2_tiny_window8_256", **sizes).state_dict(), tmp_path / "s.safetensors")
    convert(tmp_path / "s.safetensors", tmp_path / "out", Order("hf-swinv2"))
    assert not (tmp_path / "out" / "config.json").exists()


def test_buffers_that_are_asked_for_ask_for_the_window(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    save_file(timm.create_model("swinv2_tiny_window8_256", **sizes).state_dict(), tmp_path / "s.safetensors")
    with pytest.raises(Refused, match="--set window=7"):
        convert(tmp_path / "s.safetensors", tmp_path / "out", Order("hf-swinv2", choices={"buffers": "held"}))
    assert not (tmp_path / "out").exists()
