"""Names in messages."""

from __future__ import annotations

import pytest

from vitconv.io.contents import some


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["größe ☃"], "'größe ☃'"),
        (["a\x1b[31m", "b\u202e"], "'a\\x1b[31m', 'b\\u202e'"),
        (["\udcff"], "'\\udcff'"),
        (list("abcdef"), "'a', 'b', 'c', 'd' and 2 more"),
        (["x" * 200], f"'{'x' * 95}...'"),
        ([7], "7"),
    ],
    ids=["any script", "what drives a terminal", "no text", "many", "long", "a number"],
)
def test_names_are_quoted_and_cannot_drive_a_terminal(names: list[object], text: str) -> None:
    assert some(names) == text
