"""H: the index of shards and single shards, named on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import equal, rand_t, save, tensors, vitconv


def shards(folder: Path, stem: str, suffix: str) -> tuple[Path, list[Path]]:
    """Write rand(T) in two shards and return the index and the shards."""
    state = rand_t()
    keys = sorted(state)
    names = [f"{stem}-{k:05d}-of-00002{suffix}" for k in (1, 2)]
    halves = keys[:16], keys[16:]
    files = [save(folder / n, {k: state[k] for k in half}) for n, half in zip(names, halves, strict=True)]
    index = folder / f"{stem}{suffix}.index.json"
    weight_map = {k: n for n, half in zip(names, halves, strict=True) for k in half}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index, files


@pytest.mark.parametrize(("stem", "suffix"), [("model", ".safetensors"), ("pytorch_model", ".bin")])
def test_the_index_may_be_named_itself(stem: str, suffix: str, tmp_path: Path) -> None:
    index, _ = shards(tmp_path / "in", stem, suffix)
    answer = vitconv("convert", index, tmp_path / "out.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(tmp_path / "out.safetensors"), rand_t())
    assert "of no kind" not in answer.text


@pytest.mark.parametrize(("stem", "suffix"), [("model", ".safetensors"), ("pytorch_model", ".bin")])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without"])
def test_one_shard_alone_is_refused_by_what_it_is(stem: str, suffix: str, indexed: bool, tmp_path: Path) -> None:
    index, files = shards(tmp_path / "in", stem, suffix)
    if not indexed:
        index.unlink()
    answer = vitconv("convert", files[1], tmp_path / "out.safetensors", "--to", "timm")
    assert answer.code == 2
    assert f"one shard of 2; name {f'{index} or ' if indexed else ''}the folder {tmp_path / 'in'}" in answer.err
    assert not (tmp_path / "out.safetensors").exists()


def test_a_shard_that_is_the_only_one_is_read(tmp_path: Path) -> None:
    source = save(tmp_path / "model-00001-of-00001.safetensors", rand_t())
    answer = vitconv("convert", source, tmp_path / "out.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
