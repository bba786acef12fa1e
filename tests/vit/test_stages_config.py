"""What a network of stages needs to know: sizes read off its tensors, and facts that are asked for, all at once."""

from __future__ import annotations

import pytest

from vitconv.errors import Refused
from vitconv.layout.semantics import Semantics
from vitconv.vit.stages.config import StagesConfig, config_of_stages

Shapes = dict[str, tuple[int, ...]]
KNOWN = {"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "activation": "gelu", "pooling": "avg"}
KNOWN |= {"norm_placement": "pre"}


def network(*attention: Shapes) -> Shapes:
    """Return the shapes of a network of one block per stage, with these tensors of attention."""
    shapes: Shapes = {"embed.patch.weight": (8, 3, 4, 4)}
    for s, own in enumerate(attention):
        d, at = 8 * 2**s, f"stages.{s}.blocks.0."
        shapes |= {f"{at}norm1.weight": (d,), f"{at}attn.q.weight": (d, d)}
        shapes |= {f"{at}attn.{name}": shape for name, shape in own.items()}
        if s:
            shapes[f"stages.{s}.merge.h0w0.weight"] = (d, d // 2)
    return shapes


def table(window: int, heads: int = 2) -> Shapes:
    return {"table": ((2 * window - 1) ** 2, heads)}


def focus(window: int, width: int) -> Shapes:
    return {"scale": (width,), "pos": (window**2, width), "dwc.weight": (4, 5, 5)}


@pytest.mark.parametrize(
    ("shapes", "side"),
    [
        (network(*[table(7)] * 4), 224),
        (network(*[table(12)] * 4), 384),
        (network(focus(56, 8), focus(28, 16), table(7), table(7)), 224),
        (network(table(7)), 56),
    ],
    ids=["swin-t", "swin-384", "flatten-swin-t", "one-stage"],
)
def test_the_image_that_all_windows_fit_in(shapes: Shapes, side: int) -> None:
    assert StagesConfig(shapes, Semantics()).image_size == (side, side)
    told = StagesConfig(shapes, Semantics(image_size=(320, 256)))
    assert told.image_size == (320, 256)


def test_heads_and_windows_are_read_off_the_tensors() -> None:
    config = StagesConfig(network(table(7, heads=2), focus(4, 16)), Semantics())
    assert [config.heads(s, 0) for s in (0, 1)] == [2, 4]
    assert [config.window(s, 0) for s in (0, 1)] == [(7, 7), (4, 4)]
    assert [config.focused(s, 0) for s in (0, 1)] == [False, True]


def test_all_that_is_lacking_is_told_at_once() -> None:
    with pytest.raises(Refused) as e:
        config_of_stages(network(focus(4, 8)), Semantics())
    for option in ("norm_eps=1e-5", "activation=gelu", "attention=focused-upstream-fix", "focusing_factor=3"):
        assert f"--set {option}" in str(e.value)


def test_swin_v2_asks_for_its_windows() -> None:
    with pytest.raises(Refused, match=r"--set window=8\n +--set pretrained_window=0"):
        config_of_stages(network({"logit_scale": (2,)}), Semantics(**KNOWN))


def test_pvt_asks_for_its_heads() -> None:
    shapes = {**network({}, {}), "stages.0.pos": (64, 8)}
    with pytest.raises(Refused, match=r"--set stage_heads=1,2,5,8"):
        config_of_stages(shapes, Semantics(**KNOWN))
    assert config_of_stages(shapes, Semantics(**KNOWN, stage_heads=(1, 2))).heads(1, 0) == 2


def test_tensors_of_another_family_are_named() -> None:
    with pytest.raises(Refused, match=r"not tensors of a stage-wise network: blocks\.0\.ls1"):
        config_of_stages({**network(table(7)), "blocks.0.ls1": (8,)}, Semantics(**KNOWN))


@pytest.mark.parametrize(
    ("table_rows", "facts", "window"),
    [
        (7 * 13, {"window": (4,), "window_width": (7,)}, (4, 7)),
        (7 * 13, {"window": (4,)}, (4, 7)),
        (7 * 13, {"window_width": (4,)}, (7, 4)),
        (7 * 13, {"image_size": (16, 32)}, (4, 7)),
        (49, {"image_size": (16, 32)}, (4, 4)),
        (81, {"window": (2,), "window_width": (14,)}, (2, 14)),
        (81, {"window": (5,)}, (5, 5)),
    ],
    ids=["both", "height", "width", "fits-the-map", "square", "square-rows-no-square", "side"],
)
def test_a_window_that_is_no_square(table_rows: int, facts: dict[str, object], window: tuple[int, int]) -> None:
    config = StagesConfig(network({"table": (table_rows, 2)}), Semantics(**facts))  # type: ignore[arg-type]
    assert config.window(0, 0) == window


def test_a_table_of_no_square_window_asks_for_its_sides() -> None:
    with pytest.raises(Refused, match=r"a table of 91 offsets .*of 1x46, 4x7, 7x4, 46x1.*--set window_width=WIDTH"):
        StagesConfig(network({"table": (91, 2)}), Semantics()).window(0, 0)
