"""One experiment: a small ViT on scikit-learn's digits, what the checks say of it, and how its training goes."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import cache
from math import isfinite
from statistics import fmean as mean
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.checks.base.context import Context
from vitconv.checks.base.data import Data, digits
from vitconv.checks.base.passes import watched_attention
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import chosen, run_checks
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import train
from vitconv.hosts.base.host import Built
from vitconv.parity.bridge import state_of
from vitconv.registry import HOSTS, load
from vitconv.vit.xformers_style.release import release

# How often a training is looked at, in steps.
EVERY = 20
HEADS = 3
# What the page shows of the checks' figures.
FIGURES = frozenset(
    {
        "gradient-profile.rho",
        "gradient-profile.token_cosine",
        "attention.largest",
        "stream-growth.power_attn",
        "stream-growth.growth",
        "deepnorm-bound.bound",
        "gate-growth.reach",
    }
)


@dataclass(frozen=True)
class Twin:
    """The first report's network in a release of xformers.

    Attributes:
        release: whose behaviour.
        eps: of the norms in the blocks, or None for the release's own.
        scheme: how it is initialised; `first-report` misses what the report's function misses.
        mlp: MLP or FusedMLP.
    """

    release: str
    eps: float | None = 1e-6
    scheme: str = "deit"
    mlp: str = "MLP"


@dataclass(frozen=True)
class Size:
    """A network by name: `--set` texts, the init scheme, and what is changed in its weights after that.

    `gain`: of the norms in the blocks, or None for the scheme's. `queries`: a factor of the matrices of queries and
    keys, `matrices`: of the others in the blocks.
    """

    sets: tuple[str, ...]
    scheme: str
    gain: float | None = None
    matrices: float = 1.0
    queries: float = 1.0


@dataclass(frozen=True)
class Cell:
    """One experiment: which network, and how it is trained (AdamW 0.9/0.95, no clipping).

    `until`: the steps that are run of those that are planned; 0 for all.
    """

    study: str
    variant: str
    network: Twin | Size
    depth: int
    width: int
    lr: float
    warmup: int
    steps: int
    batch: int
    decay: float
    seed: int = 0
    precision: str = "fp32"
    until: int = 0

    @property
    def id(self) -> str:
        """Return a name that no other experiment has."""
        parts: tuple[str, ...] = (
            self.study,
            self.variant,
            f"depth {self.depth}",
            f"lr {self.lr:g}",
            f"warm-up {self.warmup}",
        )
        more = (f"first {self.until} of {self.steps} steps",) if self.until else ()
        if self.study == "gates":
            parts = (*parts, f"{self.steps} steps")
        return ", ".join((*parts, f"seed {self.seed}", self.precision, *more))

    @property
    def plan(self) -> Plan:
        """Return the training."""
        return Plan(
            lr=self.lr,
            decay=self.decay,
            warmup=self.warmup,
            steps=self.steps,
            batch=self.batch,
            precision=self.precision,
            seed=self.seed,
        )


def context(cell: Cell) -> Context:
    """Build the network of an experiment."""
    data = digits()[0]
    if isinstance(cell.network, Size):
        sets = (
            *(f"depth={cell.depth}", f"dim={cell.width}", f"heads={HEADS}", "patch=2", "image=8"),
            *("channels=1", "classes=10"),
            *cell.network.sets,
        )
        wanted = Wanted(sets, scheme=cell.network.scheme, data=data, plan=cell.plan, seed=cell.seed)
        return changed(context_of("vit_tiny", wanted), cell.network)
    twin = cell.network
    options = {"config": factory(cell, twin), "release": twin.release, "image": 8, "patch": 2, "channels": 1}
    options |= {"classes": 10, "triton": twin.mlp == "FusedMLP"}
    wanted = Wanted(options=options, scheme=twin.scheme, data=data, plan=cell.plan, seed=cell.seed)
    found = context_of("xformers-style:config", wanted)
    return found if twin.eps is None else with_eps(found, twin.eps)


def changed(of: Context, size: Size) -> Context:
    """Change the weights as a size says."""
    if (size.gain, size.matrices, size.queries) == (None, 1.0, 1.0):
        return of
    weights = {name: t.clone() for name, t in of.canonical.items()}
    for name, t in weights.items():
        if name.endswith((".norm1.weight", ".norm2.weight")) and size.gain is not None:
            t.fill_(size.gain)
        elif name.startswith("blocks.") and t.dim() == 2:
            t.mul_(size.queries if ".attn.q." in name or ".attn.k." in name else size.matrices)
    assert of.bridge is not None
    of.bridge.write(weights, state_of(of.network.module))
    return dataclasses.replace(of, weights=weights)


def factory(cell: Cell, twin: Twin) -> dict[str, Any]:
    """Return the configuration of the first report at this size, without its dropout."""
    return {
        "block_type": "encoder",
        "num_layers": cell.depth,
        "dim_model": cell.width,
        release(twin.release).style_key: "pre",
        "multi_head_config": {
            "num_heads": HEADS,
            "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {
            "name": twin.mlp,
            "dropout": 0.0,
            "activation": "gelu",
            "hidden_layer_multiplier": 4,
        },
    }


def with_eps(of: Context, eps: float) -> Context:
    """Give every norm of a twin this eps, as the report's own function does."""
    module = of.network.module
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = eps
        elif hasattr(part, "epsilon"):
            part.epsilon = eps
    built = load(HOSTS, of.network.host).describe(module, of.spec)
    return dataclasses.replace(of, built=built, facts=of.facts.replaced({"norm_eps": built.facts.norm_eps}))


def verdicts(cell: Cell) -> dict[str, Any]:
    """Run the checks that need no training, with this plan; return their levels, and what warns or fails in words."""
    looked = dataclasses.replace(context(cell), plan=dataclasses.replace(cell.plan, batch=8))
    levels: dict[str, str] = {}
    said: dict[str, str] = {}
    figures: dict[str, float] = {}
    for outcome in run_checks(looked, chosen()):
        if not outcome.findings:
            continue
        name = outcome.check.id
        levels[name] = outcome.level
        texts = [f.text for f in outcome.findings if f.level == outcome.level and f.level in ("warn", "error")]
        if texts:
            said[name] = texts[0]
        for finding in outcome.findings:
            for key, value in finding.figures.items():
                if f"{name}.{key}" in FIGURES:
                    figures[f"{name}.{key}"] = float(f"{value:.4g}")
    return {"levels": levels, "said": said, "figures": figures, "stream": signals(looked)}


def signals(of: Context) -> list[float]:
    """Return the stream's RMS ahead of the blocks, after the first, the middle and the last."""
    from vitconv.checks.base.passes import rms

    sizes = [rms(x) for _, x in of.signals.stream()]
    places = (0, 1, len(sizes) // 2, len(sizes) - 1)
    return [float(f"{sizes[i]:.3g}") for i in places]


def training(cell: Cell) -> dict[str, Any]:
    """Train, and return how it went: verdict, losses, accuracy on held-out digits, logits and stream on the way."""
    of = context(cell)
    built, start = of.fresh(), time.perf_counter()
    held = _held().fitted(built.inputs)
    seen: list[tuple[int, float, float]] = []

    def watch(step: int) -> bool:
        last = step == (cell.until or cell.steps) - 1
        if step % EVERY == 0 or last:
            seen.append((step, *look(of, built, held.images[:16])))
        return last

    run = train(built, of.data, of.plan, of.bridge, watch=watch)
    built.module.eval()
    with torch.no_grad():
        right = (built.run(built.module, held.images).argmax(-1) == held.labels).float().mean()
    return {
        "verdict": run.verdict,
        "first": round(run.losses[0], 3),
        "best": round(run.best, 3),
        # JSON has no number for what is none.
        "last": round(run.last, 3) if isfinite(run.last) else None,
        "accuracy": round(float(right), 3),
        "steps": len(run.losses),
        "skipped": sum(kind != "clean" for kind in run.steps),
        "largest_logit": float(f"{max(x for _, x, _ in seen):.4g}"),
        "stream_end": float(f"{seen[-1][2]:.4g}"),
        "stream_largest": float(f"{max(x for _, _, x in seen):.4g}"),
        "losses": [round(x, 3) if isfinite(x) else None for x in map(mean, _parts(run.losses, 10))],
        "logits": [float(f"{x:.3g}") for _, x, _ in seen],
        "stream": [float(f"{x:.3g}") for _, _, x in seen],
        "seconds": round(time.perf_counter() - start, 1),
    }


def look(of: Context, built: Built, images: Tensor) -> tuple[float, float]:
    """Return the largest |attention logit| and the RMS of the stream after the last block."""
    attention, stream = watched_attention(built, of.bridge, images, of.facts)
    return max((a.largest for a in attention), default=0.0), stream


@cache
def _held() -> Data:
    return digits()[1]


def _parts(values: tuple[float, ...], size: int) -> list[tuple[float, ...]]:
    return [values[i : i + size] for i in range(0, len(values), size)]
