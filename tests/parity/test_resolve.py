"""From what the user writes to two sides."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.parity.resolve import asked, resolve
from vitconv.parity.side import module_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
DIGITS = Path(__file__).parents[2] / "fixtures" / "digits"
X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def output(side) -> torch.Tensor:
    return module_of(side, dtype=torch.float64)(X.double())


def test_a_checkpoint_with_its_facts_is_built_as_the_reference(write):
    a, b = resolve(write("a"), write("b"))
    assert a.built.host == "reference"
    assert (a.own, b.own) == (True, True)
    assert a.facts.heads == 4
    assert torch.equal(output(a), output(b))


def test_the_weights_of_one_side_are_carried_over_to_the_other(write, network):
    spec, options = network("timm")
    a, b = resolve(spec, write("b"), ask_a=asked(options))
    assert (a.own, b.own) == (False, True)
    assert a.origin == b.origin
    torch.testing.assert_close(output(a), output(b), rtol=1e-12, atol=1e-12)


def test_a_host_with_its_own_checkpoint(write, network):
    spec, options = network("timm")
    path = write("own")
    a, b = resolve(f"{spec}@{path}", write("b"), ask_a=asked(options))
    assert (a.own, b.own, a.built.host) == (True, True, "timm")
    torch.testing.assert_close(output(a), output(b), rtol=1e-12, atol=1e-12)


def test_one_checkpoint_for_both(write, network, weights):
    weights["norm.bias"] += 1
    timm, options = network("timm")
    vision, more = network("torchvision")
    a, b = resolve(timm, vision, weights=write("w", weights), ask_a=asked(options), ask_b=asked(more))
    assert (a.own, b.own) == (False, False)
    assert torch.equal(a.weights["norm.bias"].double(), weights["norm.bias"].float().double())
    torch.testing.assert_close(output(a), output(b), rtol=1e-12, atol=1e-12)


def test_no_side_has_weights(network):
    timm, options = network("timm")
    vision, more = network("torchvision")
    a, b = resolve(timm, vision, ask_a=asked(options), ask_b=asked(more))
    assert a.weights is None
    assert b.weights is None
    assert a.shapes == b.shapes


def test_the_reference_of_the_other_sides_weights(write, network):
    a, b = resolve(write("a"), "reference", ask_b=asked(["norm_eps=1e-5"]))
    assert a.facts.norm_eps == 1e-6
    assert b.facts.norm_eps == 1e-5
    assert not b.own


def test_ones_own_network_by_its_factory(write, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import timm\n"
        "def make(depth=2):\n"
        "    return timm.create_model('vit_small_patch16_224', img_size=16, patch_size=4, embed_dim=32, depth=depth,\n"
        "                             num_heads=4, mlp_ratio=2, num_classes=5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    a, b = resolve(write("a"), "python:mine:make", ask_b=asked({"depth": 2}))
    torch.testing.assert_close(output(a), output(b), rtol=1e-12, atol=1e-12)
    sys.modules.pop("mine", None)


def test_a_live_network_has_weights_of_its_own(write, network):
    import timm

    _, options = network("timm")
    torch.manual_seed(1)
    live = timm.create_model("vit_small_patch16_224", **options)
    a, b = resolve(write("a"), live)
    assert b.own
    assert b.origin == "the live network of B"
    assert torch.equal(b.weights["norm.weight"], live.norm.weight)
    # It is copied, never written to.
    before = live.norm.weight.clone()
    module_of(b, weights=a.weights)
    assert torch.equal(live.norm.weight, before)


def test_a_bare_checkpoint_is_undecided_and_says_what_completes_it(tmp_path):
    bare = tmp_path / "bare.safetensors"
    shutil.copy(DIGITS / "vit_digits.safetensors", bare)
    with pytest.raises(Refused) as e:
        resolve(DIGITS / "vit_digits.safetensors", bare)
    assert e.value.exit_code == 3
    for said in (
        "B (",
        "heads",
        "--set-b heads=12",
        "--set-b norm_eps=1e-6",
        "--set-b pooling=token",
        f"timm:MODEL@{bare}",
    ):
        assert said in str(e.value)
    assert "--set heads" not in str(e.value)
    facts = [
        "heads=4",
        "norm_placement=pre",
        "norm_eps=1e-6",
        "final_norm_eps=1e-6",
        "activation=gelu",
        "pooling=token",
    ]
    a, b = resolve(DIGITS / "vit_digits.safetensors", bare, ask_b=asked(facts))
    assert a.facts.heads == b.facts.heads == 4


def test_a_bare_checkpoint_names_the_models_of_its_size(tmp_path):
    from safetensors.torch import save_file
    from timm import create_model

    bare = tmp_path / "bare.safetensors"
    save_file(create_model("vit_tiny_patch16_224").state_dict(), bare)
    with pytest.raises(Refused, match=f"timm:vit_tiny_patch16_224@{bare}"):
        resolve(bare, bare)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.safetensors", "no such checkpoint"),
        ("tim:vit", "hosts: .*timm"),
        ("timm:vit_nothing", "timm has no model"),
        ("timm:vit_small_patch16_224@nowhere.safetensors", "no such file"),
        ("reference", "neither side has one"),
    ],
)
def test_what_does_not_exist_is_said(spec, said):
    with pytest.raises(UsageError, match=said):
        resolve(spec, "timm:vit_small_patch16_224")


def test_a_fact_that_the_host_cannot_have_is_not_ignored(write, network):
    spec, options = network("timm")
    with pytest.raises(UsageError, match=r"--set-b cannot change .*\n  norm_eps: told 1e-05, the network has 1e-06"):
        resolve(write("a"), spec, ask_b=asked({**options, "norm_eps": 1e-5}))


def test_nothing_is_left_out_unasked(write, network, weights):
    spec, options = network("timm")
    weights["embed.mask"] = torch.ones(32)
    path = write("m", weights)
    with pytest.raises(Refused, match=r"(?s)B .*has no place for: embed.mask.*--edit-b drop"):
        resolve(path, spec, ask_b=asked(options))
    _, b = resolve(path, spec, ask_b=asked(options, edits=["drop:embed.mask"]))
    assert b.edits is not None
    assert "embed.mask" not in b.weights


def test_a_key_bias_that_is_not_felt_is_made_up_and_said(write, network, weights):
    spec, options = network("timm")
    for i in range(2):
        del weights[f"blocks.{i}.attn.k.bias"]
    _, b = resolve(write("k", weights), spec, ask_b=asked(options))
    assert not b.weights["blocks.0.attn.k.bias"].any()
    assert "blocks.0.attn.k.bias is made up as 0" in " ".join(b.notes)


@pytest.mark.parametrize("text", ["heads", "=4", "heads=four"])
def test_what_is_not_name_and_value_is_said(text):
    with pytest.raises(UsageError):
        asked([text])


def test_options_of_the_host_and_facts_are_told_apart():
    found = asked(["norm_eps=1e-5", "depth=3", "global_pool=avg", "from.wrapper=trunk", "image_size=16"])
    assert found.facts == {"norm_eps": 1e-5, "image_size": (16, 16)}
    assert found.options == {"depth": 3, "global_pool": "avg"}
    assert found.choices == {"wrapper": "trunk"}
    assert found.sizes == {"image_size": 16}
