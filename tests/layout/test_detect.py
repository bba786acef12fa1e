"""Detection: exactly one dialect, or a message that says what decides, what is nearest, or why it cannot be carried."""

from __future__ import annotations

import pytest

from vitconv.errors import Ambiguous, NotRecognised, Refused
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, rule

B = "blocks.{i}."
W = rule(B + "w: a d", B + "attn.q.weight: a d")


def dialect(name: str, *entries: tuple[Entry, ...], **more: object) -> Dialect:
    return Dialect(name, f"the {name} layout", "this test", "none", tuple(e for t in entries for e in t), **more)


def shapes(depth: int = 3, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {**{f"blocks.{i}.w": (3, 4) for i in range(depth)}, **more}


ONE = dialect("one", W, rule("norm: d", "norm.weight: d"))
TWO = dialect("two", W, rule("ln: d", "norm.weight: d"))


def test_exactly_one_is_found() -> None:
    m = detect(shapes(norm=(4,)), [ONE, TWO])
    assert m.dialect is ONE
    assert (m.depth, dict(m.sizes)) == (3, {"a": 3, "d": 4})


def test_two_dialects_that_fit_are_both_named() -> None:
    twin = dialect("twin", W, rule("norm: d", "norm.weight: d"))
    with pytest.raises(Ambiguous) as e:
        detect(shapes(norm=(4,)), [ONE, twin])
    assert str(e.value) == "the tensors fit one and twin; say which with --from one|twin"


def test_two_variants_that_fit_name_the_option_and_their_sizes() -> None:
    position = Choice(
        "position",
        (
            Option("class", rule("pos: (1+n) d", "embed.pos_cls: d", "embed.pos: n d")),
            Option("patches", rule("pos: n d", "embed.pos: n d")),
        ),
        square="n",
    )
    d = dialect("one", W, (position,))
    with pytest.raises(Ambiguous) as e:
        detect(shapes(pos=(12, 4)), [d])
    said = str(e.value)
    assert "position may be class or patches (class: n=11; patches: n=12)" in said
    assert "--set from.position=class|patches or --set grid=HxW" in said
    assert detect(shapes(pos=(12, 4)), [d], choices={"position": "patches"}).sizes["n"] == 12
    assert detect(shapes(pos=(12, 4)), [d], facts={"grid": (3, 4)}).sizes["n"] == 12


def test_the_closest_is_named_with_unknown_and_missing_collapsed_over_layers() -> None:
    with pytest.raises(NotRecognised) as e:
        detect(shapes(4, **{f"blocks.{i}.odd": (1,) for i in range(4)}), [ONE, TWO])
    assert str(e.value).split("\n") == [
        "no dialect explains these 8 tensors; closest: one",
        "  unknown here: blocks.{0..3}.odd",
        "  missing: norm",
    ]


def test_shapes_that_do_not_fit_are_said() -> None:
    with pytest.raises(NotRecognised, match=r"shapes do not fit: axis d=4 \(from blocks\.0\.w\), but norm has 5"):
        detect(shapes(norm=(5,)), [ONE, TWO])


def test_forbidden_keys_give_the_reason() -> None:
    d = dialect("one", W, forbids=(Forbid(r"\.moe\.", "a mixture of experts has no equivalent"),))
    with pytest.raises(Refused) as e:
        detect(shapes(2, **{f"blocks.{i}.moe.w": (1,) for i in range(2)}), [d])
    assert "this is one, but it cannot be carried" in str(e.value)
    assert "a mixture of experts has no equivalent (blocks.{0..1}.moe.w)" in str(e.value)


def test_nothing_to_look_at_or_to_compare_with() -> None:
    with pytest.raises(NotRecognised, match="holds no tensors"):
        detect({}, [ONE])
    with pytest.raises(NotRecognised, match="no dialect to compare with"):
        detect(shapes(), [])


def test_long_lists_are_cut() -> None:
    odd = {f"odd_{x}": (1,) for x in "abcdefghijkl"}
    with pytest.raises(NotRecognised, match="odd_h, and 4 more"):
        detect(shapes(norm=(4,), **odd), [ONE])
