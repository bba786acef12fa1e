"""`vitconv init`, as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitconv.cli.main import run
from vitconv.configs.sizes import SIZES

SMALL = [
    "--set",
    "dim=64",
    "--set",
    "heads=4",
    "--set",
    "depth=2",
    "--set",
    "image=32",
    "--set",
    "patch=8",
    "--set",
    "classes=5",
]


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_network_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.safetensors"
    code, text, _ = called(
        capsys, "init", "vit_tiny", str(out), "--scheme", "mae", "--to", "timm", "--seed", "7", *SMALL
    )
    assert code == 0
    assert out.is_file()
    assert "q, k, v as one matrix" in text
    assert "reproduced with its fault" in text
    assert {p.name for p in tmp_path.iterdir()} <= {"a.safetensors", "config.json"}


def test_the_json_has_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "a.safetensors")
    code, text, _ = called(capsys, "init", "vit_tiny", out, "--scheme", "timm", "--to", "hf-vit", "--json", *SMALL)
    assert code == 0
    rows = {row["tensor"]: row for row in json.loads(text)["sections"][0]["rows"]}
    q = rows["blocks.{0..1}.attn.q.weight"]
    assert (q["std"], q["count"]) == (0.02, 2)
    assert q["drawn"] == pytest.approx(0.02, rel=0.05)


def test_the_wrong_architecture_exits_3_and_offers_the_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.safetensors"
    code, _, err = called(capsys, "init", "vit_tiny", str(out), "--scheme", "deepnorm", "--to", "xformers", *SMALL)
    assert code == 3
    assert "--set norm=deepnorm" in err
    assert not out.exists()
    code, text, _ = called(
        capsys,
        "init",
        "vit_tiny",
        str(out),
        "--scheme",
        "deepnorm",
        "--to",
        "xformers",
        "--set",
        "norm=deepnorm",
        *SMALL,
    )
    assert code == 0
    assert "pre became deepnorm" in text
    assert "in 0.5 to 2" in text


def test_a_bound_that_is_off_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "a.safetensors")
    code, text, _ = called(
        capsys, "init", "vit_tiny", out, "--scheme", "jax", "--to", "xformers", "--set", "norm=post", *SMALL
    )
    assert code == 0
    assert "outside DeepNet's bound" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vit_tinny", "--scheme", "timm"], "vit_tiny"),
        (["vit_tiny", "--scheme", "tim"], "Did you mean 'timm'"),
        (["vit_tiny", "--scheme", "timm", "--set", "depth=many"], "depth=many"),
        (["vit_tiny", "--scheme", "timm", "--set", "norm=middle"], "norm=middle"),
        (["vit_tiny", "--scheme", "timm", "--set", "colour=red"], "colour"),
    ],
    ids=["size", "scheme", "value", "change", "name"],
)
def test_wrong_usage_exits_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what, *rest = arguments
    code, _, err = called(capsys, "init", what, str(tmp_path / "a.safetensors"), "--to", "timm", *rest)
    assert code == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_listed_with_a_summary() -> None:
    assert list(SIZES)[:5] == ["vit_tiny", "vit_small", "vit_base", "vit_large", "vit_huge"]
    assert len(SIZES) == len(list(SIZES)) > 50
    assert SIZES["vit_base"].summary == "width 768, 12 blocks, 12 heads, patch 16, image 224, 1000 classes"
    assert SIZES["vit_base"].changed({"embed_dim": 640}).args["num_heads"] == 10
    with pytest.raises(KeyError):
        SIZES["vit_none"]


def test_a_name_of_timms_that_is_no_plain_vit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm", reason="timm builds what has such a name")
    out, name = tmp_path / "a.safetensors", "swinv2_tiny_window8_256"
    code, _, err = called(capsys, "init", "swin_tiny_patch4_window7_224", str(out), "--scheme", "small-gain")
    assert code == 3
    assert "norm=res-post" in err
    code, text, _ = called(capsys, "init", name, str(out), "--scheme", "small-gain", "--set", "classes=5", "--json")
    assert code == 0
    rows = {row["tensor"]: row for row in json.loads(text)["sections"][0]["rows"]}
    assert rows["stages.{s}.blocks.{i}.attn.logit_scale"]["distribution"] == "ln 10"
    assert rows["stages.{s}.blocks.{i}.norm1.weight"]["distribution"] == "0"
    assert rows["norm.weight"]["distribution"] == "1"
    import timm
    from safetensors.torch import load_file

    network = timm.create_model(name, num_classes=5)
    network.load_state_dict(load_file(out))
    assert all(not bool(b.norm1.weight.any()) for stage in network.layers for b in stage.blocks)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["swinv2_tiny_window8_256", "--scheme", "timm", "--set", "depth=2"], 2, "depth"),
        (["convnext_atto", "--scheme", "timm"], 3, "not known by role"),
    ],
    ids=["an option it does not take", "no transformer"],
)
def test_names_of_timms_that_do_not_go(
    arguments: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm", reason="timm builds what has such a name")
    what, *rest = arguments
    found, _, err = called(capsys, "init", what, str(tmp_path / "a.safetensors"), *rest)
    assert found == code
    assert said in err
    assert list(tmp_path.iterdir()) == []
