"""The experiments, in the order in which they are worth running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vitconv.bench.experiments.cell import Cell, Size, Twin

DEPTHS = (6, 12, 24, 48)

# Xavier where the scheme leaves the choice, so that placement is what differs.
PLACEMENTS: Mapping[str, Size] = {
    "pre": Size((), "timm-moco"),
    "post": Size(("norm=post",), "timm-moco"),
    "DeepNorm": Size(("norm=deepnorm",), "deepnorm"),
    "DeepNorm, beta on q and k too": Size(("norm=deepnorm",), "xformers-vit"),
    "DeepNorm, no beta": Size(("norm=deepnorm",), "timm-moco"),
    "res-post-norm, gain 0": Size(("norm=res-post",), "small-gain"),
    "res-post-norm, gain 1": Size(("norm=res-post",), "timm-moco"),
    "pre, K and V raw": Size(("kv_normalised=false",), "timm-moco"),
}

# 0.0.11 normalises keys and values and else is as 0.0.9: one projection weight, LayerNorm at 1e-5.
RAW, RIGHT = "0.0.9", "0.0.11"
FACTORS: Mapping[str, Twin] = {
    "nothing": Twin(RIGHT),
    "K and V raw": Twin(RAW),
    "eps 1e-5": Twin(RIGHT, eps=1e-5),
    "init misses q, k, v": Twin(RIGHT, scheme="first-report"),
    # The first release after 0.0.9 whose FusedMLP leaves its biases out of the parameters as well.
    "FusedMLP": Twin("0.0.12", mlp="FusedMLP"),
    "K and V raw, eps 1e-5": Twin(RAW, eps=1e-5),
    "K and V raw, init misses q, k, v": Twin(RAW, scheme="first-report"),
    "K and V raw, FusedMLP": Twin(RAW, mlp="FusedMLP"),
    "eps 1e-5, init misses q, k, v": Twin(RIGHT, 1e-5, "first-report"),
    "all: 0.0.9 as it was": Twin(RAW, None, "first-report", "FusedMLP"),
}

_GRID = Cell("placement", "", PLACEMENTS["pre"], 12, 48, 1e-3, 1, 150, 32, 0.05)
_REPORT = Cell("report", "", FACTORS["nothing"], 12, 96, 4e-3, 40, 300, 64, 0.1)


def placement(seeds: tuple[int, ...] = (0, 1)) -> list[Cell]:
    """Depth x placement x warm-up: the shallow ones first."""
    return [
        replace(_GRID, variant=name, network=size, depth=depth, warmup=warmup, seed=seed)
        for seed in seeds
        for depth in DEPTHS
        for name, size in PLACEMENTS.items()
        for warmup in (1, 40)
    ]


def report() -> list[Cell]:
    """Return the first report's network: one fault over depth, learning rate, seeds and AMP; then others alone."""
    pair = {name: FACTORS[name] for name in ("K and V raw", "nothing")}

    def cells(names: Mapping[str, Twin], **more: object) -> list[Cell]:
        return [replace(_REPORT, variant=n, network=t, **more) for n, t in names.items()]  # type: ignore[arg-type]

    rest = {n: t for n, t in FACTORS.items() if n not in pair}
    rows = [*cells(pair), *cells(pair, seed=1), *cells(pair, seed=2)]
    # What collapses does so between steps 40 and 120; the other half of the schedule changes no verdict.
    half = {"until": 150}
    rows += [*cells(rest, **half), *cells(pair, precision="amp-fp16", **half), *cells(pair, depth=6, **half)]
    rows += [*cells(pair, lr=2e-3, **half), *cells(pair, lr=1e-3, **half), *cells(pair, depth=24, **half)]
    rows += cells({"eps 1e-5": FACTORS["eps 1e-5"]}, precision="amp-fp16", **half)
    rows += [*cells(pair, depth=24, lr=1e-3, **half), *cells(pair, lr=2e-3, precision="amp-fp16", **half)]
    rows += [*cells(pair, depth=6, lr=1e-3, **half), *cells(pair, lr=2e-3, seed=1, **half)]
    return rows + cells(rest, seed=1, **half)


# Res-post-norm whose gain is taken apart from the matrices; 7 takes .02 to Xavier's .144 at width 48.
_RES = ("norm=res-post",)
GATES: Mapping[str, Size] = {
    "gain 0, matrices .02": Size(_RES, "small-gain"),
    "gain 0, matrices Xavier": Size(_RES, "timm-moco", gain=0.0),
    "gain .1, matrices .02": Size(_RES, "small-gain", gain=0.1),
    "gain .1, matrices Xavier": Size(_RES, "timm-moco", gain=0.1),
    "gain 1, matrices .02": Size(_RES, "small-gain", gain=1.0),
    "gain 1, matrices Xavier": Size(_RES, "timm-moco", gain=1.0),
    "gain 1, matrices .02, queries and keys Xavier": Size(_RES, "small-gain", gain=1.0, queries=7.0),
    "pre-norm, matrices .02": Size((), "timm"),
    "pre-norm, matrices .02, LayerScale 1e-5": Size(("layer_scale=true",), "dinov2"),
}


def gates() -> list[Cell]:
    """Return res-post-norm with gains and matrices of several sizes, then gain 0 with longer and faster plans."""
    base = replace(_GRID, study="gates", depth=6, warmup=40)
    rows = [replace(base, variant=n, network=s) for n, s in GATES.items()]
    none = {n: s for n, s in GATES.items() if n.startswith(("gain 0", "gain 1, matrices Xavier"))}
    for more in ({"steps": 300}, {"lr": 2e-3}, {"steps": 600}, {"lr": 4e-3}):
        rows += [replace(base, variant=n, network=s, **more) for n, s in none.items()]  # type: ignore[arg-type]
    rows += [replace(base, variant=n, network=s, depth=12) for n, s in GATES.items()]
    return rows + [replace(base, variant=n, network=s, seed=1) for n, s in GATES.items()]


STUDIES = {"placement": placement, "report": report, "gates": gates}
