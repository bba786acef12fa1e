"""What was told, and what a configuration says, is held against the keys of files of xformers' factory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitconv.cli.main import run

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "xformers"


def config(style: str | None, key: str = "residual_norm_style", width: int = 16) -> list[dict[str, Any]]:
    block = {
        "block_type": "encoder",
        "dim_model": width,
        "num_layers": 2,
        "multi_head_config": {"num_heads": 2, "residual_dropout": 0.0, "attention": {"name": "scaled_dot_product"}},
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }
    return [{**block, key: style} if style else block]


def inspected(path: Path, capsys: Any, *more: str) -> dict[str, Any]:
    assert run(["inspect", str(path), "--json", *more]) == 0, capsys.readouterr().err
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def beside(case: str, folder: Path, **configs: Any) -> Path:
    path = folder / "w.pth"
    path.write_bytes((GOLDEN / f"{case}.pth").read_bytes())
    for name, raw in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(raw))
    return path


TOLD = [
    ("0.0.22-pre-MLP-plain", "release=0.0.9", r"release=0.0.9: q, k and v are apart, as in 0.0.12 to 0.0.28"),
    ("0.0.11-pre-MLP-plain", "release=0.0.28.post3", r"q, k and v are fused, as in 0.0.1 to 0.0.11"),
    ("0.0.9-pre-FusedMLP-plain", "release=0.0.10", r"FusedMLP without biases, q, k and v fused, as in 0.0.8 to 0.0.9"),
    ("0.0.22-pre-FusedMLP-plain", "release=0.0.28", r"FusedMLP, as in 0.0.12 to 0.0.26"),
    ("0.0.22-pre-MLP-plain", "norm_placement=deepnorm", "norm_placement=deepnorm: the keys say pre"),
    ("0.0.22-post-MLP-plain", "norm_placement=pre", "norm_placement=pre: the keys say post or deepnorm"),
    ("0.0.22-pre-MLP-plain", "kv_normalised=false", "kv_normalised=false: the keys say true"),
    ("0.0.9-pre-FusedMLP-plain", "kv_normalised=true", "kv_normalised=true: the keys say false"),
]


@pytest.mark.parametrize(("case", "told", "says"), TOLD, ids=[f"{c}-{t}" for c, t, _ in TOLD])
def test_what_the_keys_contradict_is_wrong_usage(case: str, told: str, says: str, capsys) -> None:
    assert run(["inspect", str(GOLDEN / f"xformers-{case}.pth"), "--set", told]) == 2
    assert says in capsys.readouterr().err


FITS = [
    ("0.0.22-pre-MLP-plain", "release=0.0.12"),
    ("0.0.11-pre-MLP-plain", "release=0.0.1"),
    ("0.0.9-pre-FusedMLP-plain", "release=0.0.8"),
    ("0.0.22-post-MLP-plain", "norm_placement=deepnorm"),
]


@pytest.mark.parametrize(("case", "told"), FITS, ids=[f"{c}-{t}" for c, t in FITS])
def test_what_fits_the_keys_is_taken(case: str, told: str, capsys) -> None:
    inspected(GOLDEN / f"xformers-{case}.pth", capsys, "--set", told)


def facts_of(told: dict[str, Any]) -> dict[str, Any]:
    rows = next(s["rows"] for s in told["sections"] if s["key"] == "facts")
    return {row["fact"]: row["value"] for row in rows if row["value"] != "unknown"}


def test_a_configuration_of_other_norms_is_of_another_network(tmp_path: Path, capsys) -> None:
    path = beside("xformers-0.0.22-pre-MLP-plain", tmp_path, config=config("deepnorm"))
    told = inspected(path, capsys)
    assert "norm_placement: deepnorm in" in json.dumps(told) and "not used" in json.dumps(told)
    assert "residual_alpha" not in facts_of(told)


def test_the_alpha_of_one_of_two_configurations_is_not_taken(tmp_path: Path, capsys) -> None:
    path = beside("xformers-0.0.22-pre-MLP-plain", tmp_path, config=config("pre"), xformers=config("deepnorm"))
    told = inspected(path, capsys)
    assert "residual_alpha" not in facts_of(told)


def test_a_newer_configuration_does_not_normalise_keys_of_an_old_file(tmp_path: Path, capsys) -> None:
    path = beside("xformers-0.0.9-pre-MLP-plain", tmp_path, config=config("pre"))
    told = inspected(path, capsys)
    assert "kv_normalised" not in facts_of(told)
    assert facts_of(told)["heads"] == "2"
    assert "up to 0.0.9 they were not: say --set release=" in json.dumps(told)
    told = inspected(path, capsys, "--set", "release=0.0.9")
    assert facts_of(told)["kv_normalised"] == "False"


def test_files_of_other_networks_that_also_contradict_each_other_are_not_used(tmp_path: Path, capsys) -> None:
    others = {"config": config("pre", width=32), "xformers": config("pre", width=64)}
    others["config"][0]["multi_head_config"]["num_heads"] = others["xformers"][0]["multi_head_config"]["num_heads"] = 4
    path = beside("xformers-0.0.22-pre-MLP-plain", tmp_path, **others)
    told = inspected(path, capsys)
    assert json.dumps(told).count("not used, since it describes another network") == 2
    assert "heads" not in facts_of(told)


def test_a_file_of_another_network_leaves_the_own_one_in_force(tmp_path: Path, capsys) -> None:
    path = beside("xformers-0.0.22-pre-MLP-plain", tmp_path, config=config("pre"), xformers=config("pre", width=64))
    told = inspected(path, capsys)
    assert json.dumps(told).count("not used, since it describes another network") == 1
    assert str(facts_of(told)["heads"]) == "2"
