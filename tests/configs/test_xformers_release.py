"""What a release fixes: the eps in effect, and what keys and values read."""

from __future__ import annotations

import pytest

from vitconv.configs.xformers import with_release
from vitconv.configs.xformers_release import facts_from_release, norm_eps, release_number, trunk_norm_eps
from vitconv.errors import UsageError
from vitconv.layout.semantics import Semantics


# None where it depends on whether Triton was there.
@pytest.mark.parametrize(
    ("release", "without", "with_triton", "unknown"),
    [
        ("0.0.3", 1e-5, 1e-5, 1e-5),
        ("v0.03", 1e-5, 1e-5, 1e-5),
        ("0.0.9", 1e-5, 1e-5, 1e-5),
        ("0.0.10", 1e-5, 1e-6, None),
        ("0.0.16rc424", 1e-5, 1e-6, None),
        ("0.0.26.post1", 1e-5, 1e-6, None),
        ("0.0.27", 1e-5, 1e-5, 1e-5),
        ("0.0.28.post3", 1e-5, 1e-5, 1e-5),
    ],
)
def test_eps_in_effect(release: str, without: float, with_triton: float, unknown: float | None) -> None:
    got = tuple(norm_eps(release, triton=t) for t in (False, True, None))
    assert got == (without, with_triton, unknown)
    assert norm_eps(release, triton=True, use_triton=False) == 1e-5


@pytest.mark.parametrize("text", ["0.0.29", "1.0", "0.0.0", "0.0.100", "latest", ""])
def test_no_release_of_the_factory(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected 0\.0\.1 to 0\.0\.28\.post3"):
        release_number(text)


def test_the_tables_agree_with_the_twin_of_the_factory() -> None:
    from vitconv.vit.xformers_style.release import Environment, release

    for text in [f"0.0.{z}" for z in range(1, 29)] + ["0.0.10.dev"]:
        twin = release(text)
        for triton in (False, True):
            for use in (False, True):
                where = (text, triton, use)
                env = Environment(triton=triton, cuda=triton)
                assert norm_eps(text, triton=triton, use_triton=use) == twin.norm(env, use)[1], where
                final = use or not twin.final_norm_heeds_use_triton
                assert trunk_norm_eps(text, triton=triton, use_triton=use) == twin.norm(env, final)[1], where
        assert facts_from_release(text, "pre").kv_normalised == twin.kv_normalised, text


def test_facts_are_completed_by_their_own_release() -> None:
    facts = with_release(Semantics(norm_placement="pre", release="0.0.9"))
    assert (facts.norm_eps, facts.kv_normalised) == (1e-5, False)
    assert with_release(Semantics(norm_placement="post", release="0.0.9")).kv_normalised is True
    assert with_release(Semantics(release="0.0.9")).kv_normalised is None
    assert with_release(Semantics(heads=3)) == Semantics(heads=3)
