"""What a release of xformers' factory fixes that neither weights nor configuration say.

Source: facebookresearch/xformers, tags v0.0.2 to v0.0.28.post3; the commits are named at the rules.
"""

from __future__ import annotations

import re

from vitconv.errors import UsageError
from vitconv.layout.semantics import Semantics

# Builds of main from d4c28fbb (2022-03-01, the new Triton eps) to 78bc58cb (2022-03-11, keys and values normalised).
DEVELOPMENT = "0.0.10.dev"
_LAST = 28


def release_number(text: str) -> tuple[int, int]:
    """Return (z, 0) of release 0.0.z, and (9, 1) of the builds between 0.0.9 and 0.0.10.

    Post releases and candidates count as their release: "0.0.28.post3" is (28, 0).

    Raises:
        UsageError: not a release that has the factory, 0.0.1 to 0.0.28.post3.
    """
    bare = text.strip().removeprefix("v")
    if bare == DEVELOPMENT:
        return 9, 1
    # Release 0.0.3 was tagged "v0.03".
    found = re.fullmatch(r"0\.0\.?0?(\d{1,2})(?:\.post\d+|rc\d+)?", bare)
    if found is None or not 1 <= int(found[1]) <= _LAST:
        raise UsageError(
            f"xformers release {text!r}: expected 0.0.1 to 0.0.28.post3 (0.0.29 has no factory any more), "
            f"or {DEVELOPMENT}"
        )
    return int(found[1]), 0


def norm_eps(release: str, *, triton: bool | None, use_triton: bool = True) -> float | None:
    """Return the eps of the norms in effect, or None when it depends on whether Triton was there.

    `triton`: CUDA and Triton were available; `use_triton`: the configuration's flag. The PyTorch path has 1e-5 in
    every release; the Triton class has 1e-6 from d4c28fbb (0.0.10) until it went in 0.0.27 (and on float16 inputs
    at least 1.6e-5 from 498e0093, 0.0.11).
    """
    number = release_number(release)
    if not (9, 1) <= number < (27, 0) or triton is False or not use_triton:
        return 1e-5
    return 1e-6 if triton else None


def trunk_norm_eps(release: str, *, triton: bool | None, use_triton: bool = True) -> float | None:
    """Return the eps of the encoder's own final norm, which heeds `use_triton` only since 22c1bab4 (0.0.12)."""
    heeds = release_number(release) >= (12, 0)
    return norm_eps(release, triton=triton, use_triton=use_triton or not heeds)


def kv_normalised(release: str, norm: str | None) -> bool | None:
    """Return False where pre-norm normalised the queries only, before 78bc58cb (0.0.10).

    With the norm after the residual all three read the same input; with unknown placement the answer may be unknown.
    """
    if release_number(release) >= (10, 0) or norm in ("post", "deepnorm"):
        return True
    return False if norm == "pre" else None


def facts_from_release(
    release: str, norm: str | None, triton: bool | None = None, *, use_triton: bool = True
) -> Semantics:
    """Return the eps of the blocks and whether keys and values are normalised.

    `norm`: the residual norm style, pre, post or deepnorm. `triton`: as in `norm_eps`.

    Raises:
        UsageError: an unknown release, or deepnorm before 0.0.10, which brought it (c8baac00).
    """
    number = release_number(release)
    if norm == "deepnorm" and number < (9, 1):
        raise UsageError(f"xformers {release} has no deepnorm; it came with 0.0.10")
    return Semantics(
        norm_kind="layernorm",
        norm_eps=norm_eps(release, triton=triton, use_triton=use_triton),
        kv_normalised=kv_normalised(release, norm),
        release=release.strip().removeprefix("v"),
    )
