"""The canonical schema: one slot per template, concrete names to templates and back, roles."""

from __future__ import annotations

import pytest

from vitconv.errors import LayoutError
from vitconv.layout.canonical import SCHEMA, STACKS, layer_of, role_of, slot, stack_of, template_of

AXES = {"a", "c", "d", "columns", "d2", "d3", "e", "m", "n", "o", "p", "q", "r", "rows"}
# l rows of a relative table, h heads, f rotary periods, f2 frequencies, s visual words, u and w of a pooling head, k
# queries of width v (and v2), y g x the widths of a decoder, z what it predicts per patch.
AXES |= {"k", "v", "v2", "f", "f2", "2", "g", "h", "l", "s", "u", "w", "x", "y", "z", "3"}


@pytest.mark.parametrize("template", SCHEMA)
def test_slots_are_plain_axes_of_the_legend(template: str) -> None:
    s = SCHEMA[template]
    assert set(s.axes) <= AXES
    assert len(set(s.axes)) == len(s.axes)
    assert s.role
    assert s.title
    concrete = template.replace("{i}", "11")
    assert template_of(concrete) == template
    assert layer_of(concrete) == (11 if "{i}" in template else None)
    assert role_of(concrete) == s.role


@pytest.mark.parametrize("template", [t for t in SCHEMA if t.endswith(".bias")])
def test_a_bias_has_the_axis_that_its_weight_puts_out(template: str) -> None:
    assert SCHEMA[template].axes[0] == SCHEMA[template.removesuffix("bias") + "weight"].axes[0]


@pytest.mark.parametrize(
    ("name", "template", "layer"),
    [
        ("blocks.3.ls1", "blocks.{i}.ls1", 3),
        ("blocks", "blocks", None),
        ("blocks.x.ls1", "blocks.x.ls1", None),
        ("norm.weight", "norm.weight", None),
        ("embed.pos", "embed.pos", None),
    ],
)
def test_templates(name: str, template: str, layer: int | None) -> None:
    assert template_of(name) == template
    assert layer_of(name) == layer


def test_a_decoder_is_a_stack_of_its_own() -> None:
    assert {stack_of(t) for t in SCHEMA} == set(STACKS)
    assert stack_of("decoder.blocks.0.norm1.weight") == "decoder."
    assert stack_of("decoder.embed.weight") == stack_of("blocks.1.ls1") == ""


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"'blocks\.\{i\}\.attn\.w' is not a canonical tensor of the plain family"):
        slot("blocks.{i}.attn.w")
