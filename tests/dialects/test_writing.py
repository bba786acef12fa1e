"""Which variant a network is written as, what is made up, what has no place, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitconv.errors import Refused, UsageError
from vitconv.layout.detect import detect
from vitconv.layout.encode import Encoding, encode, explain_residue, undecided
from vitconv.layout.match import Match
from vitconv.layout.network import Network, decode
from vitconv.layout.plan import plan
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
FOLDER = Path(__file__).parents[2] / "fixtures" / "manifests"
NAMES = sorted(p.stem for p in FOLDER.glob("*.json"))
Reader = Callable[[str], tuple[Match, Network]]


def facts_of(net: Network) -> dict[str, Any]:
    return {**net.open, **net.facts.known()}


def write(network: Reader, name: str, to: str, **wanted: str) -> Encoding:
    _, net = network(name)
    return encode(ALL[to], net.shapes, net.depth, facts_of(net), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_written_back_under_the_same_keys(network: Reader, name: str) -> None:
    m, net = network(name)
    said = encode(m.dialect, net.shapes, net.depth, facts_of(net), m.variant.names)
    # What has no rows is no part of a network; where the layout keeps it, it is made up again.
    empty = {"embed.reg": 0.0} if m.sizes.get("r") == 0 else {}
    assert (said.residue, dict(said.missing), dict(said.fills)) == ((), {}, empty)
    kept = {b.key for b in said.bound}
    assert {b.key for b in m.bound} | set(m.copies) <= kept | set(said.copies)
    if m.dialect.name != "xformers-fused":
        assert kept == {b.key for b in m.bound} and not said.copies


def test_fused_xformers_writes_both_names_whatever_was_read(network: Reader) -> None:
    said = write(network, "xformers-fused-saved-model", "xformers-fused", wrapper="trunk")
    assert len(said.copies) == 8
    assert said.copies["encoders.0.mha.proj.bias"] == "encoders.0.wrap_att.layer.sublayer.proj.bias"
    assert said.copies["encoders.0.feedforward.mlp.3.weight"] == (
        "encoders.0.wrap_ff.sublayer.layer.sublayer.mlp.3.weight"
    )


FITTING = [
    ("timm-tiny", "xformers", {"wrapper": "vit", "norm": "pre", "mlp": "MLP", "projection": "separate"}),
    ("timm-tiny", "xformers-fused", {"wrapper": "vit", "norm": "pre", "mlp": "MLP", "attention_bias": "all"}),
    ("timm-tiny", "hf-vit", {"model": "classification", "qkv_bias": "true"}),
    ("timm-tiny", "hf-vit-5", {"model": "classification"}),
    ("timm-tiny", "torchvision", {"mlp": "current", "heads": "head"}),
    ("timm-headless", "hf-vit", {"model": "base"}),
    ("timm-headless", "xformers", {"wrapper": "vit"}),
    ("timm-no-qkv-bias", "hf-vit", {"qkv_bias": "false"}),
    ("timm-deit-tiny-distilled", "hf-deit", {"model": "with-teacher"}),
    ("hf-deit-with-teacher", "timm", {"position": "class+distillation+patches"}),
    ("torchvision-legacy", "torchvision", {"mlp": "current"}),
    ("xformers-embedding-no-class", "timm", {"position": "patches"}),
    ("xformers-report-base", "timm", {"position": "class+patches", "mlp": "Mlp"}),
    ("hf-vit-classification", "hf-vit-5", {"model": "classification"}),
]


@pytest.mark.parametrize(("name", "to", "variant"), FITTING, ids=lambda x: x if isinstance(x, str) else "")
def test_it_fits_as_this_variant(network: Reader, name: str, to: str, variant: dict[str, str]) -> None:
    said = write(network, name, to)
    assert (said.residue, dict(said.missing), dict(said.fills)) == ((), {}, {})
    assert said.variant.names.items() >= variant.items()


def test_a_trunk_takes_the_final_norm_into_its_last_block(network: Reader) -> None:
    said = write(network, "timm-headless", "xformers", wrapper="trunk")
    assert said.residue == () and not said.missing
    assert (said.variant.names["norm"], said.variant.names["embedding"]) == ("pre-final", "class+patches")
    keys = {b.key for b in said.bound}
    assert {"encoders.1.wrap_ff.norm.weight", "encoders.0.patch_emb.1.weight"} < keys
    assert "encoders.0.wrap_ff.norm.weight" not in keys


NO_PLACE = [
    ("timm-layer-scale", "xformers", "fold-layer-scale"),
    ("timm-registers", "torchvision", "register tokens"),
    ("timm-qk-norm", "xformers", "norms of queries and keys"),
    ("timm-swiglu", "hf-vit", "gated MLP"),
    ("timm-clip-base", "xformers", "norm before the first block"),
    ("timm-deit-tiny-distilled", "hf-vit", "hf-deit has"),
    ("timm-scale-norms", "torchvision", "norm before the output projection"),
    ("timm-fc-norm", "hf-vit", "norm after pooling"),
    ("xformers-report-double-norm", "timm", "second final norm"),
    ("hf-vit-model", "timm", "a pooler"),
]


@pytest.mark.parametrize(("name", "to", "reason"), NO_PLACE, ids=lambda x: x)
def test_what_has_no_place_is_told_with_the_reason(network: Reader, name: str, to: str, reason: str) -> None:
    said = write(network, name, to)
    assert said.residue
    assert any(reason in line for line in explain_residue(ALL[to], said.residue))


@pytest.mark.parametrize(
    ("name", "to", "lacking"),
    [
        ("xformers-pre", "timm", "embed.patch.weight"),
        ("timm-no-class-token", "torchvision", "embed.cls"),
        ("timm-no-proj-bias", "hf-vit", "blocks.0.mlp.up.bias"),
        ("timm-tiny", "hf-deit", "embed.dist"),
        ("xformers-fusedmlp", "torchvision", "blocks.1.mlp.down.bias"),
    ],
)
def test_what_the_target_needs_is_named(network: Reader, name: str, to: str, lacking: str) -> None:
    assert lacking in {n for names in write(network, name, to).missing.values() for n in names}


@pytest.mark.parametrize("to", ["timm", "hf-vit", "hf-vit-5", "torchvision", "xformers-fused"])
def test_a_bias_that_softmax_does_not_feel_is_made_up(network: Reader, to: str) -> None:
    said = write(network, "xformers-no-key-bias", to)
    assert {n: x for n, x in said.fills.items() if "attn" in n} == {f"blocks.{i}.attn.k.bias": 0.0 for i in range(2)}


def test_a_missing_projection_bias_of_timm_is_a_zero_bias(network: Reader) -> None:
    said = write(network, "xformers-fusedmlp", "timm")
    biases = {f"blocks.{i}.mlp.{x}.bias": 0.0 for i in range(2) for x in ("up", "down")}
    assert said.fills.items() >= biases.items()


def test_post_norm_is_no_timm(network: Reader) -> None:
    with pytest.raises(Refused, match=r"norm placement: deepnorm or post here, but timm .* computes pre or res-post"):
        write(network, "xformers-report-deepnorm", "timm")


@pytest.mark.parametrize("name", ["xformers-fused-fused-mlp-buffers", "xformers-fused-fused-mlp-no-bias"])
def test_unnormalised_k_and_v_are_refused(network: Reader, name: str) -> None:
    with pytest.raises(Refused, match="kv normalised: False here"):
        write(network, name, "xformers")


@pytest.mark.parametrize("name", ["xformers-fused-pre", "xformers-fused-fused-mlp", "xformers-fused-report-base"])
@pytest.mark.parametrize("to", ["timm", "xformers", "hf-vit", "torchvision"])
def test_whether_k_and_v_were_normalised_is_asked(network: Reader, name: str, to: str) -> None:
    _, net = network(name)
    assert "kv_normalised" in undecided(write(network, name, to).variant, facts_of(net))


@pytest.mark.parametrize("name", ["xformers-fused-embedding", "xformers-fused-post", "xformers-pre"])
def test_where_the_keys_prove_it_nothing_is_asked(network: Reader, name: str) -> None:
    _, net = network(name)
    assert "kv_normalised" not in undecided(write(network, name, "xformers").variant, facts_of(net))


def test_a_network_with_normalised_k_and_v_is_never_written_as_one_without(network: Reader) -> None:
    with pytest.raises(Refused, match="kv normalised"):
        write(network, "timm-tiny", "xformers-fused", mlp="FusedMLP-no-bias")


def test_rms_norm_is_not_layer_norm(network: Reader) -> None:
    with pytest.raises(Refused, match="norm kind: rmsnorm here"):
        write(network, "timm-qk-norm-rms", "hf-vit")


def test_the_attention_width_must_be_the_width(network: Reader) -> None:
    wide = dict(network("timm-tiny")[1].shapes)
    for n, s in wide.items():
        if any(f".attn.{x}." in n for x in "qkv"):
            wide[n] = (32, *s[1:])
        elif n.endswith("attn.out.weight"):
            wide[n] = (16, 32)
    m = detect(wide, ALL.values())
    net = decode(m, dict.fromkeys(wide, "F32"), Semantics(kv_normalised=True, norm_placement="pre"))
    with pytest.raises(Refused, match="axis a=32, but xformers holds only networks in which it equals d=16"):
        plan(m, net, ALL["xformers"])


def test_options_that_do_not_go_together_are_told() -> None:
    with pytest.raises(UsageError, match="do not go together: wrapper=vit, embedding=patches"):
        ALL["xformers"].variant({"wrapper": "vit", "embedding": "patches"})


def test_a_shared_projection_is_a_tie(network: Reader) -> None:
    _, net = network("xformers-shared")
    assert net.shapes["blocks.0.attn.q.weight"] == (16, 16)
    said = write(network, "timm-tiny", "xformers", projection="shared")
    assert said.residue == () and {t.of for t in said.variant.ties} == {"blocks.{i}.attn.k.weight"}
    assert not any("q_proj.weight" in b.key for b in said.bound)
