"""Every rule for resizing positions equals its library's own code, bit for bit in float32; no two are the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitconv.errors import Refused
from vitconv.layout.edits import interpolate
from vitconv.layout.edits.interpolate import RULES, pull_back_grid, resize_grid, resize_matrix
from vitconv.layout.semantics import CHOICES

D = 32
SQUARE = [((4, 4), (6, 6)), ((8, 8), (4, 4)), ((4, 4), (3, 7)), ((14, 14), (16, 16)), ((7, 7), (15, 11))]
ANY = [*SQUARE, ((2, 8), (4, 4)), ((3, 5), (6, 7))]


def table(grid: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (grid[0] * grid[1], D)).astype(np.float32)


def with_class(rows: np.ndarray) -> torch.Tensor:
    return torch.cat([torch.zeros(1, 1, rows.shape[1]), torch.from_numpy(rows)[None]], 1)


def timm_rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    from timm.layers import resample_abs_pos_embed

    new = resample_abs_pos_embed(with_class(rows), list(target), list(source), num_prefix_tokens=1)
    return new[0, 1:].numpy()


def transformers_rule(kind: str):
    def rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
        from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings
        from transformers.models.vit.modeling_vit import ViTEmbeddings
        from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings

        cls = {"vit": ViTEmbeddings, "dinov2": Dinov2Embeddings, "mae": ViTMAEEmbeddings}[kind]
        self = SimpleNamespace(
            position_embeddings=with_class(rows),
            patch_size=16,
            patch_embeddings=SimpleNamespace(patch_size=(16, 16)),
            config=SimpleNamespace(patch_size=16),
        )
        tokens = torch.empty(1, 1 + target[0] * target[1], rows.shape[1])
        new = cls.interpolate_pos_encoding(self, tokens, 16 * target[0], 16 * target[1])
        return new[0, 1:].numpy()

    return rule


def siglip2_rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

    grid = torch.from_numpy(rows).reshape(*source, -1)
    n = target[0] * target[1]
    new = Siglip2VisionEmbeddings.resize_positional_embeddings(grid, torch.tensor([target]), max_length=n)
    return new[0].numpy()


def torchvision_rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    from torchvision.models.vision_transformer import interpolate_embeddings

    state = {"encoder.pos_embedding": with_class(rows)}
    new = interpolate_embeddings(16 * target[0], 16, state)
    return new["encoder.pos_embedding"][0, 1:].numpy()


def dino_rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    # As facebookresearch/dino and dinov2 call it (interpolate_pos_encoding): no size, two scale factors, offset 0.1.
    side = len(rows) ** 0.5
    square = torch.from_numpy(rows)[None].reshape(1, int(side), int(side), -1).permute(0, 3, 1, 2)
    factors = ((target[0] + 0.1) / side, (target[1] + 0.1) / side)
    new = torch.nn.functional.interpolate(square, scale_factor=factors, mode="bicubic")
    assert new.shape[2:] == target
    return new.permute(0, 2, 3, 1).reshape(-1, rows.shape[1]).numpy()


def dinov2_registers_rule(rows: np.ndarray, source: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    # dinov2 with interpolate_offset=0 and interpolate_antialias=True passes the size.
    side = int(len(rows) ** 0.5)
    square = torch.from_numpy(rows)[None].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    new = torch.nn.functional.interpolate(square, size=target, mode="bicubic", antialias=True)
    return new.permute(0, 2, 3, 1).reshape(-1, rows.shape[1]).numpy()


EQUAL = {
    "timm": ("bicubic-antialias", timm_rule, ANY),
    "transformers-vit": ("bicubic", transformers_rule("vit"), SQUARE),
    "transformers-dinov2": ("bicubic", transformers_rule("dinov2"), SQUARE),
    "transformers-mae": ("bicubic", transformers_rule("mae"), SQUARE),
    "transformers-siglip2": ("bilinear-antialias", siglip2_rule, SQUARE),
    "torchvision": ("bicubic-corners", torchvision_rule, [c for c in SQUARE if c[1][0] == c[1][1]]),
    "dino": ("bicubic-offset", dino_rule, SQUARE),
    "dinov2-registers": ("bicubic-antialias", dinov2_registers_rule, SQUARE),
}

# transformers 5 multiplies by weights that it computes in float32 itself: both are 1e-6 from the float64 result.
REWRITTEN = {"transformers-siglip2"}


@pytest.mark.parametrize("library", EQUAL)
def test_a_rule_equals_its_library(library: str) -> None:
    rule, theirs, grids = EQUAL[library]
    for source, target in grids:
        rows = table(source)
        ours = resize_grid(rows, source, target, rule)
        assert ours.dtype == np.float32
        expected = theirs(rows, source, target)
        if library in REWRITTEN:
            assert np.abs(ours - expected).max() < 5e-6
        else:
            assert np.array_equal(ours, expected), (source, target, np.abs(ours - expected).max())


@pytest.mark.parametrize("library", EQUAL)
def test_another_rule_would_be_seen(library: str) -> None:
    rule, theirs, grids = EQUAL[library]
    for other in set(RULES) - {rule}:
        worst = 0.0
        for source, target in grids:
            rows = table(source)
            far = np.abs(resize_grid(rows, source, target, other) - theirs(rows, source, target)).max()
            worst = max(worst, float(far))
        assert worst > 0.1, other


@pytest.mark.parametrize(("source", "target"), [c for c in SQUARE if c[1][0] == c[1][1]])
def test_big_vision_zooms_from_corner_to_corner(source: tuple[int, int], target: tuple[int, int]) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    rows = table(source)
    # google-research/big_vision models/vit.py, resample_posemb.
    zoomed = ndimage.zoom(rows.reshape(*source, -1), (target[0] / source[0], target[1] / source[1], 1), order=1)
    assert np.abs(resize_grid(rows, source, target, "bilinear-corners") - zoomed.reshape(-1, D)).max() < 2e-6


def test_the_rules_differ_by_the_published_amounts() -> None:
    # Recipes C03 to C07: N(0, 1), 4x4 to 6x6, against bicubic by size; and 8x8 to 4x4.
    def apart(rule: str, source: tuple[int, int] = (4, 4), target: tuple[int, int] = (6, 6)) -> float:
        rows = table(source)
        return float(
            np.abs(resize_grid(rows, source, target, rule) - resize_grid(rows, source, target, "bicubic")).max()
        )

    assert 0.15 < apart("bicubic-offset") < 0.45
    assert 0.15 < apart("bicubic-antialias") < 0.45
    assert 0.4 < apart("bilinear") < 1.0
    assert 0.9 < apart("bicubic-antialias", (8, 8), (4, 4)) < 2.0


def test_the_offset_saves_every_size() -> None:
    # Recipe C02: without the offset, a scale factor loses a row for some sizes; with it for none.
    x = torch.zeros(1, 1, 11, 11)
    assert torch.nn.functional.interpolate(x, scale_factor=15 / 11, mode="bicubic").shape[-1] == 14
    for side in range(2, 20):
        for target in (*range(1, 20), 60, 79):
            rows = np.zeros((side * side, 1), np.float32)
            assert resize_grid(rows, (side, side), (target, target), "bicubic-offset").shape == (target**2, 1)


def test_a_scale_factor_that_loses_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = interpolate.Rule("bicubic", "no offset", align_corners=None, offset=-1e-9)
    monkeypatch.setattr(interpolate, "RULES", {**RULES, "broken": broken})
    with pytest.raises(Refused, match="broken gives 14x14, not 15x15"):
        resize_grid(np.zeros((121, 1), np.float32), (11, 11), (15, 15), "broken")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("source", "target"), [((4, 4), (6, 6)), ((8, 8), (4, 4)), ((2, 3), (5, 4))])
def test_the_adjoint(rule: str, source: tuple[int, int], target: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(source[0] * source[1], 5)), rng.normal(size=(target[0] * target[1], 5))
    left = np.sum(resize_grid(x, source, target, rule) * y)
    assert left == pytest.approx(np.sum(x * pull_back_grid(y, source, target, rule)), rel=1e-12)
    b = resize_matrix(source, target, rule)
    assert np.allclose(b @ x, resize_grid(x, source, target, rule), rtol=0, atol=1e-13)


@pytest.mark.parametrize("rule", RULES)
def test_a_constant_table_stays_constant(rule: str) -> None:
    rows = np.full((16, 3), 2.5)
    assert np.abs(resize_grid(rows, (4, 4), (7, 5), rule) - 2.5).max() < 1e-12


def test_every_rule_that_the_facts_can_name_exists() -> None:
    assert set(CHOICES["position_resize"]) <= set(RULES)
