"""Does the network compute what its family computes: norms, eps, keys and values, residual factor, dtype"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from vitconv.checks.base.check import Check, Finding, Limits
from vitconv.checks.base.context import Context
from vitconv.inits.base.deepnet import alpha

# Dosovitskiy et al.'s own code, timm and DeiT; transformers' ViT has 1e-12.
USUAL_EPS = (1e-6, 1e-5)


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Compare what is known about the network with the conventions of the plain family."""
    facts = context.facts
    if facts.kv_normalised is False:
        yield Finding(
            "error",
            "keys and values read the stream un-normalised, only queries the norm's output (xformers up to 0.0.9): "
            "values grow with the stream and the stream with the values",
            {"kv_normalised": False},
            advice="use xformers 0.0.10 or later, or normalise all three inputs; a lower peak learning rate and fewer "
            "than 12 blocks only hide it",
        )
    yield from _eps(context)
    yield from _residual(context, limits)
    yield from _final_norm(context)
    yield from _dtype(context)
    if facts.norm_placement == "post":
        yield Finding("info", "post-norm: its failure shows in no activation; see gradient-profile", {})
    known = facts.known()
    named = ("norm_placement", "norm_eps", "final_norm_eps", "activation", "kv_normalised", "residual_alpha", "release")
    yield Finding(
        "ok",
        ", ".join(f"{k}={known[k]}" for k in named if k in known) or "nothing is known beside the tensors",
        {k: known[k] for k in named if k in known},
    )


def _eps(context: Context) -> Iterator[Finding]:
    facts = context.facts
    for name in ("norm_eps", "final_norm_eps", "embed_norm_eps", "qk_norm_eps"):
        eps = getattr(facts, name)
        if eps is None:
            continue
        if eps == 0.0 or eps > 1e-3:
            text = f"{name}={eps:g}: a norm with this eps " + ("divides by zero" if eps == 0 else "shrinks its output")
            yield Finding("warn", text, {name: eps}, advice="1e-6 is what the family uses")
        elif eps not in USUAL_EPS:
            yield Finding("info", f"{name}={eps:g}; the family uses 1e-6, xformers and torch 1e-5", {name: eps})
    if facts.norm_eps is not None and facts.final_norm_eps is not None and facts.norm_eps != facts.final_norm_eps:
        yield Finding(
            "info",
            f"norm_eps={facts.norm_eps:g} in the blocks and {facts.final_norm_eps:g} at the end",
            {"norm_eps": facts.norm_eps, "final_norm_eps": facts.final_norm_eps},
        )


def _residual(context: Context, limits: Limits) -> Iterator[Finding]:
    facts = context.facts
    if facts.norm_placement != "deepnorm" or context.weights is None or facts.residual_alpha is None:
        return
    depth = context.arch.depth
    right = alpha(depth)
    if abs(facts.residual_alpha / right - 1.0) > limits["alpha"]:
        yield Finding(
            "error",
            f"DeepNorm's alpha is {facts.residual_alpha:.4f}; (2N)^(1/4) = {right:.4f} for {depth} blocks",
            {"alpha": facts.residual_alpha, "expected": right},
            advice="take N as the number of blocks of the whole stack, not of one configuration of it",
        )


def _final_norm(context: Context) -> Iterator[Finding]:
    if context.weights is None or context.placement not in ("pre", "res-post"):
        return
    # PVTv2 ends every stage with a norm.
    last = max((n.split(".")[1] for n in context.weights if n.startswith("stages.")), key=int, default="0")
    places = ("norm", "pool.norm", "trunk_norm", f"stages.{last}.norm")
    if not any(f"{place}.weight" in context.weights for place in places):
        yield Finding(
            "warn",
            "no norm stands between the last block and the head; a pre-norm stream is as large as its depth makes it",
            advice="add a final norm (xformers leaves it out for stacks of more than one layer)",
        )


def _dtype(context: Context) -> Iterator[Finding]:
    """Tell parameters in half precision, by kind of layer where the kinds are known."""
    if context.weights is not None:
        kept = {n: t.dtype for n, t in context.weights.items()}
        kind_of = _kind
    else:
        kept = {n: dtype for n, dtype in context.stored.items() if dtype.is_floating_point}
        owners = {} if context.built is None else dict(context.built.module.named_modules())

        def kind_of(name: str) -> str:
            return type(owners[name.rpartition(".")[0]]).__name__

    half = [n for n, dtype in kept.items() if dtype in (torch.float16, torch.bfloat16)]
    if half and not context.trained:
        kinds = sorted({_short(kept[n]) for n in half})
        eps16 = "float16" in kinds
        yield Finding(
            "error" if eps16 else "warn",
            f"{len(half)} of {len(kept)} parameters are {', '.join(kinds)} ({_policy(kept, kind_of)})"
            + (
                "; Adam's eps 1e-8 is 0 in float16, so its first step divides by zero, and GradScaler refuses to "
                "unscale float16 gradients"
                if eps16
                else ""
            ),
            {"half": len(half)},
            tuple(half[:8]),
            "keep parameters in float32 and let autocast make half-precision copies",
        )


def _kind(name: str) -> str:
    """Return the kind of layer of a canonical name."""
    return "norms" if "norm" in name else "embeddings" if name.startswith("embed.") else "linear layers"


def _policy(kept: Mapping[str, torch.dtype], kind_of: Callable[[str], str]) -> str:
    """Return the dtypes by kind of layer."""
    found: dict[str, set[str]] = {}
    for name, dtype in kept.items():
        found.setdefault(kind_of(name), set()).add(_short(dtype))
    return ", ".join(f"{kind} {' and '.join(sorted(dtypes))}" for kind, dtypes in sorted(found.items()))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


CHECK = Check(
    id="facts",
    title="Does it compute what its family computes?",
    measures="norm placement, eps of every norm, whether keys and values are normalised, the residual's factor, the "
    "final norm, the dtype of the parameters",
    threshold="error where a training is known to fail: un-normalised keys and values (12 blocks at learning rate 4e-3 "
    "collapsed in 3 of 3 seeds on digits, with them normalised in none), a wrong alpha, float16 parameters under Adam; "
    "warn where an eps is 0 or above 1e-3, or the final norm is missing",
    advice="set the fact as the family has it",
    cost="facts",
    run=run,
    limits={"alpha": 0.01},
    source="xformers 78bc58cb (2022-03-11); Wang et al., DeepNet, 2022, figure 2; openai/CLIP#40",
)
