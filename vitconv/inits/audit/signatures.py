"""Signatures of known defects: what public code does to weights, recognised from the weights alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from vitconv.inits.audit.finding import Finding
from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.deepnet import HIGH, LOW, beta, bound

Shown = Mapping[str, Measured]


@dataclass(frozen=True)
class Profile:
    """Stds by part of a block, over depth: {part: std of each block}, and the network they come from."""

    arch: Architecture
    measured: Shown
    stds: Mapping[str, tuple[float, ...]]

    def middle(self, part: str) -> float:
        """Return the median std of a part over the blocks."""
        return median(self.stds[part])

    def names(self, *parts: str) -> tuple[str, ...]:
        """Return the canonical names of these parts in every block."""
        return tuple(f"blocks.{i}.{part}.weight" for part in parts for i in range(self.arch.depth))


PARTS = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.down")


def signatures(arch: Architecture, measured: Shown, *, untrained: bool) -> Iterator[Finding]:
    """Yield the known defects whose signature the weights show; most can only be told before training."""
    # Stages differ in width, so nothing is followed over the depth of a network of them.
    stds = {} if arch.staged else {p: _over_depth(arch, measured, p) for p in PARTS}
    profile = Profile(arch, measured, stds)
    yield from _norm_gains(profile)
    if untrained and arch.staged:
        yield from (found for test in EITHER if (found := test(profile)) is not None)
    if (
        not untrained
        or arch.staged
        or any(min(profile.stds[part]) <= 0.0 for part in ("attn.v", "attn.out", "mlp.up", "mlp.down"))
    ):
        return
    yield from _deepnorm_bound(profile)
    for test in TESTS:
        found = test(profile)
        if found is not None:
            yield found


def _over_depth(arch: Architecture, measured: Shown, part: str) -> tuple[float, ...]:
    return tuple(measured[f"blocks.{i}.{part}.weight"].std for i in range(arch.depth))


def _near(value: float, target: float, within: float = 0.05) -> bool:
    return value > 0 and target > 0 and abs(math.log(value / target)) < within


def _norm_gains(p: Profile) -> Iterator[Finding]:
    small = [
        m
        for name, m in p.measured.items()
        if name.endswith((".norm1.weight", ".norm2.weight")) and max(abs(m.low), abs(m.high)) < 1e-3
    ]
    if not small:
        return
    names = tuple(m.name for m in small)
    if p.arch.placement in ("post", "deepnorm"):
        yield Finding(
            "gain-deletes-stream", "fail", names,
            f"{len(small)} norms after the sum have a gain of about 0: stream and gradient end there",
            "a small gain fits x + norm(f(x)) only (Swin-v2); set these gains to 1",
        )  # fmt: skip
    elif p.arch.placement == "pre":
        yield Finding(
            "gain-switches-off", "warn", names,
            f"{len(small)} norms ahead of their branch have a gain of about 0: the branches are switched off",
            "this is no Swin-v2 init, which needs the norm after the branch",
        )  # fmt: skip
    elif p.arch.placement is None:
        yield Finding(
            "gain-switches-off", "warn", names,
            f"{len(small)} norms of the blocks have a gain of about 0, and where they stand is not known: right for "
            "x + norm(f(x)) alone",
            "say --set norm_placement=res-post if it is Swin-v2's block; else set these gains to 1",
        )  # fmt: skip


def _deepnorm_bound(p: Profile) -> Iterator[Finding]:
    if p.arch.placement != "deepnorm":
        return
    found = bound(p.arch, {name: m.std for name, m in p.measured.items()})
    if found is not None and not LOW <= found <= HIGH:
        which = "beta is missing in the weights" if found > HIGH else "the branches are too small for this alpha"
        yield Finding(
            "deepnet-bound", "warn", p.names("attn.v", "attn.out", "mlp.up", "mlp.down"),
            f"N[(v²+w²) of attention + (v²+w²) of the MLP] / alpha² = {found:.3g}, expected 1: {which}",
            "init with the scheme deepnorm, and nothing after it",
        )  # fmt: skip


def _xavier(p: Profile, part: str) -> float:
    rows, columns = p.arch.shapes[f"blocks.0.{part}.weight"]
    return math.sqrt(2.0 / (rows + columns))


def _scaled_queries(p: Profile) -> Finding | None:
    if p.arch.placement != "deepnorm":
        return None
    b, q, v = beta(p.arch.depth), p.middle("attn.q"), p.middle("attn.v")
    if not (_near(q, v) and _near(v, p.middle("attn.out")) and v < 0.7 * _xavier(p, "attn.v")):
        return None
    return Finding(
        "query-key-scaled", "warn", p.names("attn.q", "attn.k"),
        f"query and key have the std of value ({q:.4g}): beta {b:.4g} was applied to them too; gain 1 is {q / b:.4g}",
        "xformers 0.0.12 to 0.0.28 does so (deepnorm_style is never passed on); init with the scheme deepnorm",
    )  # fmt: skip


def _value_without_beta(p: Profile) -> Finding | None:
    if p.arch.placement != "deepnorm":
        return None
    b, v, out = beta(p.arch.depth), p.middle("attn.v"), p.middle("attn.out")
    if not (_near(p.middle("attn.q"), v) and v > 1.5 * out and _near(out, b * _xavier(p, "attn.out"))):
        return None
    return Finding(
        "value-without-beta", "warn", p.names("attn.v"),
        f"value has std {v:.4g}, the output projection {out:.4g}: beta {b:.4g} did not reach value",
        "xformers 0.0.10 does so: its rule does not match the joined q, k, v weight; init with the scheme deepnorm",
    )  # fmt: skip


def _fused(p: Profile) -> Finding | None:
    q, v, out = p.middle("attn.q"), p.middle("attn.v"), p.middle("attn.out")
    if not (_near(q, v, 0.03) and _near(out, _xavier(p, "attn.out"), 0.03) and _near(q / out, math.sqrt(0.5), 0.03)):
        return None
    return Finding(
        "fused-xavier", "info", p.names("attn.q", "attn.k", "attn.v"),
        f"query, key and value have .7071 of Xavier's std ({q:.4g}): they were drawn as one matrix of three",
        "timm's jax mode, MAE and nn.MultiheadAttention do so; the JAX reference draws each by itself (scheme jax)",
    )  # fmt: skip


# Largest value over std -> what leaves that fingerprint. A normal of this size reaches 4 and more.
_CUTS = (
    (2.1262, 3.0**0.5, "xformers' timm style cuts at sqrt 3 sigma, which takes 18.5 % off the std"),
    (1.8534, 1.0, "BEiT's pre-training cuts at 1 sigma, which takes 46 % off the std"),
    (2.2737, 2.0, "a cut at 2 sigma without compensation takes 12 % off the std"),
)


def _narrow(p: Profile) -> Finding | None:
    shown = [p.measured[name] for name in p.names("attn.out", "mlp.up") if p.measured[name].n >= 1024]
    if not shown:
        return None
    reach = median(m.reach for m in shown)
    for fingerprint, cut, text in _CUTS:
        if not _near(reach, fingerprint, 0.02):
            continue
        std = median(m.std for m in shown)
        before = std * fingerprint / cut
        # Compensated on purpose, the std itself is the round number.
        if not _near(before, 0.02 * _step(before), 0.03):
            return None
        return Finding(
            "cut-narrows", "info", tuple(m.name for m in shown),
            f"no weight is above {reach:.3f} std: std is {std:.4g}, not {before:.4g}; {text}",
            "name the cut you want: timm (none), timm-2sigma, timm-compensated",
        )  # fmt: skip
    return None


def _step(sigma: float) -> float:
    """Return sigma in units of .02 when it is at most .02, so that any gain below 1 is let through; else 1."""
    return min(sigma / 0.02, 1.0)


def _rescaled_twice(p: Profile) -> Finding | None:
    if p.arch.depth < 4:
        return None
    first = p.stds["attn.out"][0]
    if not all(_near(s * (i + 1), first, 0.08) for i, s in enumerate(p.stds["attn.out"])):
        return None
    return Finding(
        "rescaled-twice", "warn", p.names("attn.out", "mlp.down"),
        "output and second MLP layer fall as 1/l with depth: BEiT's division by sqrt(2 l) was done twice",
        "the public function divides in place; call it once, or init with the scheme beit",
    )  # fmt: skip


def _layer_scale(p: Profile) -> Finding | None:
    ones = tuple(n for n, m in p.measured.items() if n.endswith((".ls1", ".ls2")) and m.constant and m.low == 1.0)
    if not ones:
        return None
    return Finding(
        "layer-scale-one", "warn", ones,
        "LayerScale is 1 everywhere: it was reset, or left at a default (transformers' Dinov2); the papers start it at"
        " .1, 1e-5 or 1e-6 by depth",
        "init with the scheme layer-scale or dinov2, or set the value of the family",
    )  # fmt: skip


def _positions(p: Profile) -> Finding | None:
    m = p.measured.get("embed.pos")
    if m is None or not (m.constant and m.low == 0.0):
        return None
    return Finding(
        "positions-zero", "warn", ("embed.pos",),
        "the position table is all zero: fine when it is trained, fatal when it is frozen (transformers' ViTMAE 5.24)",
        "draw it from N(0, .02), or a sine table where it is fixed",
    )  # fmt: skip


def _tokens(p: Profile) -> Finding | None:
    m = p.measured.get("embed.cls")
    # CLIP's starts at 1/sqrt d.
    if m is None or m.std <= max(0.05, 1.3 * m.shape[-1] ** -0.5):
        return None
    return Finding(
        "token-large", "info", ("embed.cls",),
        f"the class token has std {m.std:.3g}; public code starts it at 0, 1e-6, .02 or 1/sqrt d",
    )  # fmt: skip


EITHER: tuple[Callable[[Profile], Finding | None], ...] = (_layer_scale, _positions, _tokens)
TESTS: tuple[Callable[[Profile], Finding | None], ...] = (
    _scaled_queries, _value_without_beta, _fused, _narrow, _rescaled_twice, *EITHER,
)  # fmt: skip
