"""Configuration files found beside a checkpoint: joined, held against the tensors, and never trusted to be sound."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vitconv.configs.found import Found, joined
from vitconv.configs.kinds import READERS, reader_of, writer_for
from vitconv.configs.parse import MAX_YAML
from vitconv.configs.read import facts_beside, facts_from_file
from vitconv.configs.torchvision import implied_facts
from vitconv.errors import BadFile, UsageError
from vitconv.layout.semantics import Semantics

VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "layer_norm_eps": 1e-6}
IMAGES = {
    "image_processor_type": "ViTImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.2, 0.2, 0.2],
    "size": {"height": 224, "width": 224},
    "resample": 3,
}
BLOCK = """
block_type: encoder
num_layers: 2
dim_model: 16
residual_norm_style: pre
multi_head_config: {num_heads: 4, attention: {name: scaled_dot_product}}
feedforward_config: {name: MLP, dropout: 0.0, activation: gelu, hidden_layer_multiplier: 2}
"""


def put(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    weights = folder / "weights.safetensors"
    weights.write_bytes(b"")
    return weights


def test_the_files_of_one_library_are_joined(tmp_path: Path) -> None:
    weights = put(tmp_path, config__json=VIT, preprocessor_config__json=IMAGES)
    found = facts_beside(weights)
    assert (found.facts.norm_eps, found.facts.heads) == (1e-6, 12)
    assert (found.facts.mean, found.facts.std) == ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    assert found.extra["interpolation"] == "bicubic"
    assert found.source == "config.json (transformers vit), preprocessor_config.json (transformers image processor)"
    assert facts_beside(tmp_path) == found


@pytest.mark.parametrize("name", ["args__yaml", "xformers__yaml", "weights__yml", "vit_b__yaml"])
def test_yaml_is_found_under_the_usual_names_and_by_its_words(name: str, tmp_path: Path) -> None:
    found = facts_beside(put(tmp_path, **{name: BLOCK}))
    assert (found.facts.heads, found.facts.norm_placement) == (4, "pre")


def test_yaml_of_something_else_is_not_even_read(tmp_path: Path) -> None:
    assert facts_beside(put(tmp_path, docker__yaml="services: {a: {image: b}}")) == Found()


def test_nothing_beside_is_nothing_known(tmp_path: Path) -> None:
    assert facts_beside(put(tmp_path)) == Found()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"model_type": "vit", "layer_norm_eps": "small"}', "layer_norm_eps is 'small', expected a number"),
        ('{"hello": 1}', "of no kind that is read here"),
        ("[1, 2]", "of no kind that is read here"),
        ("null", "of no kind that is read here"),
    ],
    ids=["cut", "deep", "wrong-value", "foreign", "list", "null"],
)
def test_a_bad_file_is_a_note_beside_and_an_error_when_named(content: str, text: str, tmp_path: Path) -> None:
    weights = put(tmp_path, config__json=content)
    found = facts_beside(weights)
    assert not found.facts.known()
    assert not found.sizes
    assert len(found.notes) == 1
    assert text in found.notes[0]
    assert "config.json" in found.notes[0]
    with pytest.raises(BadFile, match=text.split(",")[0]):
        facts_from_file(tmp_path / "config.json")


@pytest.mark.parametrize(
    "content",
    ["!!python/object/apply:os.system ['touch {}']", "a: !!python/name:os.system", "a: [", "\t- x", "- !foo bar"],
    ids=["call", "name", "open", "tab", "tag"],
)
def test_yaml_builds_no_objects(content: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "config.yaml"
    path.write_text(content.format(marker))
    with pytest.raises(BadFile, match="not plain YAML"):
        facts_from_file(path)
    assert not facts_beside(tmp_path).facts.known()
    assert not marker.exists()


def test_large_yaml_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("#" * (MAX_YAML + 1))
    with pytest.raises(BadFile, match="more than the"):
        facts_from_file(path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="not text in UTF-8"):
        facts_from_file(path)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        facts_from_file(tmp_path / "config.json")


def test_yaml_without_pyyaml_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = put(tmp_path, vit__yaml=BLOCK)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"pip install 'vitconv\[yaml\]'"):
        facts_from_file(tmp_path / "vit.yaml")
    found = facts_beside(weights)
    assert not found.facts.known()
    assert "vitconv[yaml]" in found.notes[0]


def test_files_that_contradict_each_other_leave_the_fact_unknown(tmp_path: Path) -> None:
    args = {"model": "vit_base_patch16_224", "opt": "adamw", "gp": "avg", "model_kwargs": {"num_heads": 6}}
    found = facts_beside(put(tmp_path, config__json=VIT, args__yaml=json.dumps(args)))
    assert found.facts.heads is None
    assert found.facts.pooling is None
    assert found.facts.norm_eps == 1e-6
    note = next(n for n in found.notes if n.startswith("heads is"))
    assert "12 in config.json" in note
    assert "6 in args.yaml" in note
    assert "--set heads=" in note


def test_sizes_that_files_state_differently_are_dropped() -> None:
    found = joined([Found(sizes={"d": 8, "m": 3}, sources=("a",)), Found(sizes={"d": 9}, sources=("b",))])
    assert found.sizes == {"m": 3}
    assert any("width (d)" in note for note in found.notes)


def test_a_file_of_another_network_is_told_by_its_sizes(tmp_path: Path) -> None:
    found = facts_beside(put(tmp_path, config__json=VIT))
    right = {"d": 768, "m": 3072, "i": 12, "p": 16, "q": 16, "n": 196, "c": 3, "o": 2}
    assert found.disagreements(right) == ()
    wrong = found.disagreements({**right, "d": 384, "n": 195})
    assert len(wrong) == 2
    assert "width (d): 768 in config.json (transformers vit), 384 in the tensors" in wrong
    grid = Found(Semantics(grid=(2, 8)), sources=("x",))
    assert grid.disagreements({"n": 16}) == ()
    assert grid.disagreements({"n": 15}) == ("grid: 2x8 in x, 15 positions in the tensors",)


@pytest.mark.parametrize(
    ("changes", "mean"),
    [
        ({}, (0.5, 0.5, 0.5)),
        ({"rescale_factor": 1 / 127.5}, None),
        ({"do_rescale": False}, None),
        ({"do_normalize": False}, None),
    ],
    ids=["plain", "other-range", "no-rescale", "no-normalise"],
)
def test_mean_counts_only_after_scaling_to_one(changes: dict[str, Any], mean: Any, tmp_path: Path) -> None:
    found = facts_beside(put(tmp_path, preprocessor_config__json={**IMAGES, **changes}))
    assert found.facts.mean == mean
    assert bool(found.notes) == (mean is None)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (VIT, "hf"),
        ({"model_type": "timm_wrapper", "architecture": "vit_base_patch16_224"}, "timm"),
        (IMAGES, "preprocessor"),
        ({"model": "vit_base_patch16_224", "opt": "sgd", "gp": None}, "timm-args"),
        ([{"block_config": {"block_type": "encoder"}}], "xformers"),
        ({"model": "vit_base"}, None),
        ("text", None),
        ([], None),
        ({}, None),
    ],
)
def test_each_content_is_of_one_kind(raw: Any, kind: str | None) -> None:
    reader = reader_of(raw)
    assert (reader.kind if reader else None) == kind
    assert sum(r.accepts(raw) for r in READERS) == int(kind is not None)


def test_writers_stand_for_dialects_that_exist() -> None:
    import importlib

    for name in ("timm", "hf-vit", "hf-vit-5", "hf-deit", "hf-deit-5", "xformers", "xformers-fused"):
        assert writer_for(name) is not None
        assert importlib.import_module(f"vitconv.dialects.{name.replace('-', '_')}").DIALECT.name == name
    assert writer_for("torchvision") is None


@pytest.mark.parametrize("name", ["vit_b_16", "vit_h_14"])
def test_what_torchvision_implies_is_what_it_builds(name: str, act_name: Any) -> None:
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model = getattr(models, name)()
    facts = implied_facts()
    layer = model.encoder.layers[0]
    assert {layer.ln_1.eps, layer.ln_2.eps} == {facts.norm_eps}
    assert model.encoder.ln.eps == facts.final_norm_eps
    assert act_name(layer.mlp[1]) == facts.activation
    assert facts.heads is None


def test_reading_imports_no_heavy_library(tmp_path: Path) -> None:
    import subprocess

    weights = put(tmp_path, config__json=VIT, preprocessor_config__json=IMAGES, xformers__yaml=BLOCK)
    code = (
        "import sys; from pathlib import Path; import vitconv.configs.kinds;"
        "from vitconv.configs.read import facts_beside;"
        "assert 'yaml' not in sys.modules;"
        f"facts_beside(Path({str(weights)!r}));"
        "heavy = {'torch', 'timm', 'transformers', 'numpy', 'xformers'};"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
