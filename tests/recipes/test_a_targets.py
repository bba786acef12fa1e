"""A: a target that wants more than the file has, or something else; what was written is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DEPTH, DIM, State, equal, prefixed, rand_t, save, tensors, vitconv

import vitconv as package
from vitconv.errors import Refused
from vitconv.io import sink

FACTS = {
    "heads": 4, "norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu", "grid": (4, 4), "pooling": "token",
    "norm_placement": "pre", "kv_normalised": True, "mean": (0.5,), "std": (0.5,),
}  # fmt: skip


def hf_registers(tmp_path: Path, prefix: str) -> tuple[Path, State]:
    """Return a small DINOv2 with registers of transformers under a base-model prefix, and its tensors without one."""
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    sizes = {"hidden_size": DIM, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "mlp_ratio": 2}
    module = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes, image_size=16, patch_size=4))
    gen = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=gen))
    state = dict(module.state_dict())
    return save(tmp_path / "p.safetensors", prefixed(state, prefix)), state


@pytest.mark.parametrize("prefix", ["dinov2_with_registers.", "", "model.dinov2_with_registers."])
def test_a02_a_base_model_prefix_loses_no_tensor(prefix: str, tmp_path: Path) -> None:
    source, state = hf_registers(tmp_path, prefix)
    answer = vitconv("convert", source, tmp_path / "c.safetensors", "--to", "canonical", "--prove")
    assert answer.code == 0, answer.text
    bare = vitconv("convert", save(tmp_path / "b.safetensors", state), tmp_path / "d.safetensors", "--to", "canonical")
    assert bare.code == 0, bare.text
    assert equal(tensors(tmp_path / "c.safetensors"), tensors(tmp_path / "d.safetensors"))


@pytest.mark.parametrize("fault", ["nothing is copied", "one bit", "the last byte"])
def test_a02_a_writer_that_only_says_it_wrote(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the data never reach the file, in whole or in part; reading it again finds out."""
    write = sink.Writer.run

    def fake(writer: sink.Writer, chunks: object) -> None:
        write(writer, chunks)
        import os

        size = os.fstat(writer.fd).st_size
        start = 8 + int.from_bytes(os.pread(writer.fd, 8, 0), "little")
        if fault == "nothing is copied":
            os.pwrite(writer.fd, bytes(size - start), start)
        else:
            at = size - 1 if fault == "the last byte" else (start + size) // 2
            os.pwrite(writer.fd, bytes([os.pread(writer.fd, 1, at)[0] ^ 1]), at)

    monkeypatch.setattr(sink.Writer, "run", fake)
    source = save(tmp_path / "t.safetensors", rand_t())
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "hf-vit", "--prove")
    assert answer.code != 0
    assert "differs from the plan" in answer.err


def test_a02_never_trained_weights_are_flagged(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    module = VisionTransformer(img_size=16, patch_size=4, embed_dim=DIM, depth=DEPTH, num_heads=4, num_classes=5)
    fresh = vitconv("inspect", save(tmp_path / "f.safetensors", module.state_dict()), "--health")
    assert "never trained" in fresh.out
    assert "never trained" not in vitconv("inspect", save(tmp_path / "t.safetensors", rand_t()), "--health").out


def test_a04_every_nesting_gives_the_same_bytes(tmp_path: Path) -> None:
    written = set()
    for j, prefix in enumerate(["module._orig_mod.", "_orig_mod.module.", "_orig_mod._orig_mod.", ""]):
        out = tmp_path / f"{j}.safetensors"
        source = save(tmp_path / f"{j}.pth", prefixed(rand_t(), prefix))
        assert vitconv("convert", source, out, "--to", "timm", "--plain").code == 0
        written.add(out.read_bytes())
    assert len(written) == 1


def test_a23_a_target_with_a_head_names_what_is_new(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t(head=False))
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "hf-vit", "--set", "model=classification")
    assert answer.code == 3
    assert "head.weight, head.bias" in answer.err
    assert "classifier.weight, classifier.bias" in answer.err
    assert not out.exists()
    with pytest.raises(Refused, match=r"it lacks head\.weight, head\.bias"):
        package.load(source, "timm", facts=FACTS, options={"num_classes": 5})
    # Named and said: made up as zeros.
    fill = [x for name in ("head.weight", "head.bias") for x in ("--edit", f"fill:{name}=0")]
    answer = vitconv("convert", source, out, "--to", "hf-vit", "--axis", "o=5", *fill)
    assert answer.code == 0, answer.text
    assert "head.weight made up as 0" in answer.out
    assert not tensors(out)["classifier.weight"].any()


LAYOUTS = {"dinov3": ("--set", "heads=4"), "hf-dinov3": (), "timm-eva": ("--drop", "embed.mask")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a25_a26_one_network_in_every_layout(layout: str, tmp_path: Path) -> None:
    """A DINOv3-like network: registers, rotary positions, no key bias; each way gives equal tensors."""
    source, state = dinov3(tmp_path)
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    answer = vitconv("convert", source, there, "--to", layout, "--prove", "--plain", *LAYOUTS[layout])
    assert answer.code == 0, answer.text
    # By its keys and shapes, whatever the file is called.
    named = there.rename(tmp_path / "vit_base_patch16_224.safetensors")
    found = vitconv("inspect", named, "--json")
    assert layout in found.json["verdict"]["word"], found.text
    answer = vitconv("convert", named, back, "--to", "hf-dinov3", "--prove", "--plain")
    assert answer.code == 0, answer.text
    got = tensors(back)
    if layout == "timm-eva":
        # timm keeps no mask token, which only masked training uses.
        assert not got.pop("embeddings.mask_token").any()
        del state["embeddings.mask_token"]
    assert equal(got, state)


def dinov3(tmp_path: Path) -> tuple[Path, State]:
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    sizes = {"hidden_size": DIM, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "intermediate_size": 64}
    config = DINOv3ViTConfig(**sizes, image_size=16, patch_size=4, num_register_tokens=4)
    module = DINOv3ViTModel(config)
    gen = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=gen))
    module.save_pretrained(tmp_path / "dinov3")
    return tmp_path / "dinov3", tensors(tmp_path / "dinov3")


def test_a29_head_and_grid_are_both_reported_at_once(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t(classes=7, grid=(5, 5)))
    facts = FACTS | {"grid": (5, 5)}
    with pytest.raises(Refused, match=r"of another shape are pos_embed, head\.weight, head\.bias"):
        package.load(source, "timm", facts=facts, options={"num_classes": 5, "img_size": 16})
    (table,) = vitconv("diff", source, save(tmp_path / "o.safetensors", rand_t()), "--json").json["sections"][:1]
    odd = {row["tensor"] for row in table["rows"] if row["verdict"] == "shape"}
    assert odd == {"embed.pos", "head.weight", "head.bias"}
    edits = ["--edit", "change-classes:classes=5,how=keep-first", "--edit", "resize-position:to=4x4,rule=bicubic"]
    answer = vitconv("convert", source, tmp_path / "e.safetensors", "--to", "timm", "--set", "grid=5x5", *edits)
    assert answer.code == 0, answer.text
    got = tensors(tmp_path / "e.safetensors")
    assert got["head.weight"].shape == (5, DIM)
    assert got["pos_embed"].shape == (1, 17, DIM)


def test_a29_a_head_is_dropped_by_an_edit(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t(classes=7))
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", "--edit", "drop:head*")
    assert answer.code == 0, answer.text
    assert equal(tensors(tmp_path / "o.safetensors"), {k: v for k, v in rand_t(classes=7).items() if "head" not in k})
