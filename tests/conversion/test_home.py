"""On the way back to its layout a network has the names and buffers that it had there; buffers are made anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitconv.cli.main import run
from vitconv.io.source import open_checkpoint

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
State = dict[str, Tensor]
# What the authors' code opens strictly: its own state dict, key by key.
OWN = {
    "beit": ("beit/beit-author", "beit", "canonical"),
    "beit-square": ("beit/beit-author-square", "beit", "hf-beit"),
    "beit-shared": ("beit/beit-author-shared", "beit", "canonical"),
    "eva-02": ("eva/eva-02", "eva", "timm-eva"),
    "eva-02-mlp": ("eva/eva-02-mlp", "eva", "timm-eva"),
    "eva-02-packed": ("eva/eva-02-packed", "eva", "canonical"),
    "dinov2-chunked": ("dinov2/dinov2-chunked", "dinov2", "hf-dinov2"),
    "mmpretrain": ("mmpretrain/mmpretrain-tiny", "mmpretrain", "timm"),
}

# What a file of canonical names does not say without its metadata.
PRE = ("norm_placement=pre", "kv_normalised=true")


def read(path: Path) -> State:
    """Return the tensors of a file as float64 or int64."""
    if path.suffix == ".pth":
        loaded: State = torch.load(path, weights_only=True)
        return loaded
    from safetensors.torch import load_file

    return load_file(path)


def keys_and_shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in state.items()}


@pytest.mark.parametrize("name", OWN)
def test_what_came_from_an_author_s_code_is_opened_by_it_again(name: str, tmp_path: Path, capsys) -> None:
    path, home, away = OWN[name]
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    own = read(GOLDEN / f"{path}.pth")
    assert run(["convert", str(GOLDEN / f"{path}.pth"), str(there), "--to", away]) == 0, capsys.readouterr().err
    assert run(["convert", str(there), str(back), "--to", home, "--prove"]) == 0, capsys.readouterr().err
    written = read(back)
    assert keys_and_shapes(written) == keys_and_shapes(own)
    for key, value in own.items():
        if "freqs_" in key:
            # Made anew in float32, a cosine may be off in its last place.
            assert (written[key] - value).abs().max() <= 2.0**-24
        else:
            assert torch.equal(written[key], value), key


def converted(source: Path, out: Path, *more: str) -> State:
    assert run(["convert", str(source), str(out), *more]) == 0
    return read(out)


def test_without_a_memory_of_it_the_user_says_what_is_to_be_held(tmp_path: Path) -> None:
    source, bare = GOLDEN / "beit/beit-author-square.pth", tmp_path / "bare.safetensors"
    own = read(source)
    converted(source, bare, "--to", "canonical", "--plain")
    facts = [x for fact in PRE for x in ("--set", fact)]
    out = converted(bare, tmp_path / "timm.safetensors", "--to", "beit", *facts)
    index = [k for k in own if k.endswith("relative_position_index")]
    assert index
    assert set(own) - set(out) == set(index), "timm's Beit opens no file that holds an index"
    out = converted(bare, tmp_path / "unilm.safetensors", "--to", "beit", *facts, "--set", "buffers=held")
    assert all(torch.equal(out[k], own[k]) for k in index)


def test_what_a_library_is_to_open_holds_no_buffers_that_it_makes(tmp_path: Path, capsys) -> None:
    import timm

    import vitconv

    source = GOLDEN / "beit/beit-author-square.pth"
    module = vitconv.load(source, host="timm")
    assert run(["convert", str(source), str(tmp_path / "own"), "--set", "grid=4x4"]) == 0
    opened = timm.create_model(f"local-dir:{tmp_path / 'own'}", pretrained=True)
    assert opened.state_dict().keys() == module.state_dict().keys()
    # Told to write the author's layout as it is, no configuration says that timm opens it.
    assert run(["convert", str(source), str(tmp_path / "as-it-is"), "--to", "beit"]) == 0
    assert "--set buffers=left-out" in capsys.readouterr().out
    assert not (tmp_path / "as-it-is" / "config.json").exists()


def test_blocks_go_into_as_many_chunks_as_are_said(tmp_path: Path, capsys) -> None:
    source, out = GOLDEN / "dinov2/dinov2-plain.pth", tmp_path / "o.safetensors"
    with open_checkpoint(source) as c:
        flat = {t.key for t in c.tensors}
    written = converted(source, out, "--to", "dinov2", "--axis", "chunks=2", "--prove")
    want = {k.replace("blocks.", f"blocks.{k.split('.')[1]}.") if k.startswith("blocks.") else k for k in flat}
    assert set(written) == want
    flat_again = converted(out, tmp_path / "f.safetensors", "--to", "dinov2")
    assert set(flat_again) == flat
    for more, said in ((["dinov2", "--axis", "chunks=3"], "2 blocks do not fill 3"), (["timm"], "names no blocks so")):
        args = ["--to", *more] if len(more) > 1 else ["--to", "hf-dinov2", "--axis", "chunks=2"]
        assert run(["convert", str(source), str(tmp_path / "no.safetensors"), *args]) == 3
        assert said in capsys.readouterr().err


def test_waves_that_depend_on_what_is_unknown_are_asked_for(tmp_path: Path, capsys) -> None:
    source, bare = GOLDEN / "eva/eva-02.pth", tmp_path / "bare.safetensors"
    converted(source, bare, "--to", "canonical", "--plain")
    facts = [x for fact in (*PRE, "position=rope", "rope_layout=interleaved") for x in ("--set", fact)]
    args = ["convert", str(bare), str(tmp_path / "o.safetensors"), "--to", "eva", *facts]
    assert run(args) == 3
    said = capsys.readouterr().err
    assert all(how in said for how in ("--set rope_reference=N", "--set heads=N", "freqs_cos")), said
    told = ["--set", "heads=2", "--set", "rope_reference=4", "--set", "grid=4x4"]
    assert run([*args, *told]) == 0, capsys.readouterr().err
    own, written = read(source), read(tmp_path / "o.safetensors")
    assert keys_and_shapes(written) == keys_and_shapes(own)


def test_what_eva_02_is_pre_trained_with_goes_where_there_is_a_place(tmp_path: Path, capsys) -> None:
    """Its authors' pre-training has a mask token and predicts the features of a CLIP (`lm_head`)."""
    state = torch.load(GOLDEN / "eva/eva-02.pth", weights_only=True)
    state = {k: v for k, v in state.items() if not k.startswith(("head.", "fc_norm."))}
    gen = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    state |= {"mask_token": draw(1, 1, 32), "lm_head.weight": draw(7, 32), "lm_head.bias": draw(7)}
    state |= {"norm.weight": draw(32), "norm.bias": draw(32)}
    source = tmp_path / "pretrained.pth"
    torch.save({"module": state}, source)
    assert keys_and_shapes(converted(source, tmp_path / "own.safetensors", "--to", "eva")) == keys_and_shapes(state)
    capsys.readouterr()
    assert run(["convert", str(source), str(tmp_path / "timm")]) == 0
    said = capsys.readouterr().out
    assert "training.safetensors keeps what only training uses: embed.mask, mim.*" in said
    # The waves of every block are one module's, made anew where they are needed.
    assert "the same bytes" not in said
    home = ["--to", "eva", "--restore", str(tmp_path / "timm" / "training.safetensors")]
    back = converted(tmp_path / "timm", tmp_path / "back.safetensors", *home)
    assert all(torch.equal(back[k], v) for k, v in state.items() if "freqs" not in k)


def test_an_index_tells_the_grid_that_a_table_leaves_open(tmp_path: Path, capsys) -> None:
    """Tables of a grid of 4x6 places have 77 offsets, as those of 6x4."""
    source = GOLDEN / "beit/beit-author.pth"
    there = tmp_path / "o.safetensors"
    converted(source, there, "--to", "canonical")
    with open_checkpoint(there) as c:
        assert json.loads(c.metadata["vitconv.facts"])["grid"] == [4, 6]
    args = ["convert", str(source), str(there), "--to", "canonical", "--set", "grid=6x4"]
    capsys.readouterr()
    assert run(args) == 3
    assert "the stored index" in capsys.readouterr().err


def test_transformers_4_has_the_index_of_swin_in_its_files(tmp_path: Path) -> None:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=4)
    model = SwinForImageClassification(config)
    model.save_pretrained(tmp_path / "hf")
    out = converted(tmp_path / "hf", tmp_path / "4.safetensors", "--to", "hf-swin", "--set", "buffers=held")
    found = {k: v for k, v in out.items() if k.endswith("relative_position_index")}
    assert len(found) == 2
    of_5 = next(b for n, b in model.named_buffers() if n.endswith("relative_position_index"))
    assert all(torch.equal(v.flatten(), of_5) for v in found.values())
    told = ["--to", "hf-swin", "--set", "buffers=left-out"]
    again = converted(tmp_path / "4.safetensors", tmp_path / "5.safetensors", *told)
    assert set(out) - set(again) == set(found)
