"""State dicts that the old releases really wrote are recognised, with the variant that their name says."""

from pathlib import Path

import pytest

from vitconv.io.source import open_checkpoint
from vitconv.layout.detect import detect
from vitconv.layout.match import Match
from vitconv.registry import DIALECTS, load_all

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "xformers"
FILES = sorted(FOLDER.glob("*.pth"))
NORMS = {"pre": "pre", "post": "post", "deepnorm": "post"}
# FusedMLP's layouts by release, of those among the golden files.
FUSED_MLP = {"0.0.9": "FusedMLP-no-bias"}


def read(path: Path) -> Match:
    with open_checkpoint(path) as ckpt:
        shapes = {t.key: t.shape for t in ckpt.tensors}
    return detect(shapes, load_all(DIALECTS, plugins=False).values())


def old(release: str) -> bool:
    return int(release.split(".")[2]) <= 11


def test_every_release_is_there() -> None:
    assert {p.stem.split("-")[1] for p in FILES} == {
        "0.0.3", "0.0.9", "0.0.10", "0.0.11", "0.0.12", "0.0.22", "0.0.28.post3",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_is_recognised(path: Path) -> None:
    _, release, style, mlp, case = path.stem.split("-", 4)
    m = read(path)
    assert m.dialect.name == ("xformers-fused" if old(release) else "xformers")
    names = m.variant.names
    assert (names["wrapper"], names["embedding"]) == ("trunk", "outside")
    assert names["norm"] == ("pre-final" if case == "one-layer" else NORMS[style])
    assert names["mlp"] == (FUSED_MLP.get(release, "FusedMLP") if mlp == "FusedMLP" else "MLP")
    assert m.sizes == {"d": 16, "a": 16, "m": 64}
    assert m.depth == (1 if case == "one-layer" else 2)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_says_whether_k_and_v_were_normalised_only_where_the_keys_do(path: Path) -> None:
    _, release, style, mlp, _ = path.stem.split("-", 4)
    says = read(path).variant.implies.get("kv_normalised")
    if style != "pre" or not old(release):
        assert says is True
    elif release == "0.0.9" and mlp == "FusedMLP":
        assert says is False
    else:
        assert says is None


@pytest.mark.parametrize("path", [p for p in FILES if old(p.stem.split("-")[1])], ids=lambda p: p.stem)
def test_both_names_of_a_branch_are_known_for_one_tensor(path: Path) -> None:
    m = read(path)
    assert all(alias.split(".")[2] in ("mha", "feedforward") for alias in m.copies)
    assert len(m.copies) == m.depth * (4 + (2 if m.variant.names["mlp"] == "FusedMLP-no-bias" else 4))


@pytest.mark.parametrize("keep", ["mha", "wrap_att"])
def test_one_of_the_two_names_is_enough(keep: str) -> None:
    with open_checkpoint(FOLDER / "xformers-0.0.9-pre-MLP-plain.pth") as ckpt:
        shapes = {t.key: t.shape for t in ckpt.tensors}
    gone = {"mha": ".sublayer.", "wrap_att": (".mha.", ".feedforward.")}[keep]
    gone = (gone,) if isinstance(gone, str) else gone
    left = {k: s for k, s in shapes.items() if not any(g in k for g in gone)}
    assert len(left) < len(shapes)
    m = detect(left, load_all(DIALECTS, plugins=False).values())
    assert m.dialect.name == "xformers-fused" and not m.copies
    assert {b.key for b in m.bound} == set(left)


def test_an_alias_of_another_shape_is_a_conflict() -> None:
    from vitconv.errors import NotRecognised

    with open_checkpoint(FOLDER / "xformers-0.0.9-pre-MLP-plain.pth") as ckpt:
        shapes = {t.key: t.shape for t in ckpt.tensors}
    with pytest.raises(NotRecognised, match=r"mha\.proj\.weight has another shape"):
        detect(shapes | {"encoders.1.mha.proj.weight": (16, 17)}, load_all(DIALECTS, plugins=False).values())
