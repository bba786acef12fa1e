"""State dicts of the real old releases: read, carried to timm where that is exact, and back to the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vitconv.cli.main import run
from vitconv.io.source import open_checkpoint

GOLDENS = sorted((Path(__file__).parents[2] / "fixtures" / "golden" / "xformers").glob("*.pth"))


def bits(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return {key: (dtype, shape, bytes)} of a checkpoint."""
    with open_checkpoint(path) as c:
        return {t.key: (t.dtype, t.shape, bytes(c.read(t))) for t in c.tensors}


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_there_and_back_through_the_canonical_layout(path: Path, tmp_path: Path) -> None:
    middle, back, residue = tmp_path / "c.safetensors", tmp_path / "b.safetensors", tmp_path / "r.safetensors"
    # A shared projection is three equal tensors in a .pth: it reads as three.
    fused = "in_proj_container.in_proj_weight" in "".join(bits(path))
    home = "xformers-fused" if fused else "xformers"
    assert run(["convert", str(path), str(middle), "--to", "canonical", "--residue", str(residue)]) == 0
    assert not residue.exists()
    with open_checkpoint(middle) as c:
        variant = json.loads(c.metadata["vitconv.source"])["variant"]
    sets = [x for k, v in variant.items() for x in ("--set", f"{k}={v}")]
    style = path.name.split("-")[2]
    # The FusedMLP of 0.0.9 proves by its keys that keys and values were not normalised.
    proved = "0.0.9-pre-FusedMLP" in path.name
    open_fact = "kv_normalised=true" if style == "pre" else f"norm_placement={style}"
    sets += [] if proved else ["--set", open_fact]
    assert run(["convert", str(middle), str(back), "--to", home, "--plain", *sets]) == 0
    assert bits(back) == bits(path)


PRE = [p for p in GOLDENS if "-pre-" in p.name and "deepnorm" not in p.name]


@pytest.mark.parametrize("path", PRE, ids=lambda p: p.stem)
def test_a_bare_trunk_is_no_whole_vit_for_timm(path: Path, tmp_path: Path, capsys) -> None:
    """The trunk has no patches, tokens or head: timm needs them, and nothing is made up."""
    release = path.name.split("-")[1]
    sets = ["--set", f"release={release}"]
    code = run(["convert", str(path), str(tmp_path / "t.safetensors"), "--to", "timm", *sets])
    said = capsys.readouterr().err
    assert code == 3
    old = tuple(map(int, release.split(".")[2:3])) < (10,)
    assert ("kv normalised" in said) if old else ("patch_embed.proj.weight" in said), said
    assert not (tmp_path / "t.safetensors").exists()


def around(path: Path, folder: Path) -> Path:
    """Put the first report's patches, tokens and head around a golden trunk, so that it is a whole network."""
    gen = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    state = {f"backbone.{k}": v for k, v in torch.load(path, weights_only=True).items()}
    d = 16
    state |= {"cls_token": draw(1, 1, d), "pos_embed": draw(1, 17, d)}
    state |= {"patch_embed.proj.weight": draw(d, 3, 4, 4), "patch_embed.proj.bias": draw(d)}
    state |= {"head.0.weight": draw(d), "head.0.bias": draw(d), "head.1.weight": draw(5, d), "head.1.bias": draw(5)}
    out = folder / "whole.pth"
    torch.save(state, out)
    return out


WHOLE = [p for p in PRE if "one-layer" not in p.name]


@pytest.mark.parametrize("path", WHOLE, ids=lambda p: p.stem)
def test_whole_networks_to_timm_and_back(path: Path, tmp_path: Path, capsys) -> None:
    release = path.name.split("-")[1]
    source, there, back = around(path, tmp_path), tmp_path / "t.safetensors", tmp_path / "b.safetensors"
    code = run(["convert", str(source), str(there), "--to", "timm", "--set", f"release={release}"])
    said = capsys.readouterr()
    if tuple(map(int, release.split(".")[2:3])) < (10,):
        assert code == 3
        assert "kv normalised" in said.err
        return
    assert code == 0, said.err
    with open_checkpoint(there) as c:
        variant = json.loads(c.metadata["vitconv.source"])["variant"]
        home = json.loads(c.metadata["vitconv.source"])["dialect"]
    made_up = "made up" in said.out
    sets = [x for k, v in variant.items() for x in ("--set", f"{k}={v}")]
    drops = ["--drop", "blocks.{i}.mlp.*.bias"] if made_up else []
    assert run(["convert", str(there), str(back), "--to", home, "--plain", *sets, *drops]) == 0, capsys.readouterr().err
    assert bits(back) == bits(source)


def test_an_alias_that_is_no_copy_is_refused(tmp_path: Path, capsys) -> None:
    path = next(p for p in GOLDENS if "0.0.11-post-MLP" in p.name)
    state = torch.load(path, weights_only=True)
    key = next(k for k in state if ".mha." in k and k.endswith("weight"))
    state[key] = state[key].clone() + 1
    torch.save(state, tmp_path / "s.pth")
    assert run(["convert", str(tmp_path / "s.pth"), str(tmp_path / "o.safetensors"), "--to", "canonical"]) == 3
    said = capsys.readouterr().err
    assert key in said
    assert "largest difference 1" in said
    assert not (tmp_path / "o.safetensors").exists()
