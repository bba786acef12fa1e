"""Which parameters does an optimiser decay, and at which layer id, by role"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits
from vitconv.checks.base.context import Context
from vitconv.layout.groups import grouped, listed, preset
from vitconv.layout.match import collapse


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """List decayed and other roles, and what a rule by the number of axes in the network's own layout would decay."""
    tensors = ((name, (name,), shape) for name, shape in context.arch.shapes.items())
    placed = grouped(tensors, context.arch.depth, rule=preset("role"))
    kept = [g for g in placed if not g.decays]
    decayed = sorted({g.role for g in placed if g.decays})
    yield Finding(
        "ok",
        f"{len(placed) - len(kept)} tensors are decayed ({', '.join(decayed)}), {len(kept)} are not; layer ids 0 "
        "(embeddings) "
        f"to {max(g.layer for g in placed)} (head)",
        {"decayed": len(placed) - len(kept), "kept": len(kept)},
    )
    if context.plan.no_decay:
        yield from _patterns(context)
    if context.bridge is None or context.built is None:
        return
    state = context.built.module.state_dict()
    cells, prefix = context.bridge.network.cells, context.bridge.prefix
    tokens = [g.key for g in kept if state[prefix + cells[g.key].view.tensor].dim() >= limits["axes"]]
    if tokens:
        yield Finding(
            "info",
            f"a rule by the number of axes would decay {', '.join(tokens[:6])}: they have more than one axis here",
            {"tokens": len(tokens)},
            tuple(tokens),
            "name them in no_weight_decay, or group by role: vitconv inspect CKPT --groups",
        )


def _patterns(context: Context) -> Iterator[Finding]:
    """Hold the plan's no-decay names against the names and roles of the network's own parameters."""
    patterns = context.plan.no_decay
    if context.network.host == "reference":
        yield Finding(
            "info",
            f"no_decay ({', '.join(patterns)}) speaks of names of the training's code, and the network that is looked "
            "at is our reference of its tensors",
            advice="check it as HOST:MODEL, or hold the file's names against them: vitconv inspect CKPT --no-decay "
            "PATTERN",
        )
        return
    parts: dict[str, list[str]] = {}
    if context.bridge is not None:
        for name, cell in context.bridge.network.cells.items():
            parts.setdefault(context.bridge.prefix + cell.view.tensor, []).append(name)
    shapes = {name: tuple(p.shape) for name, p in context.network.module.named_parameters()}
    rows = grouped(((key, parts.get(key, ()), shape) for key, shape in shapes.items()), 0, rule=preset("role"))
    found = listed(rows, shapes, patterns)
    for pattern in found.idle:
        near = found.near(pattern)
        yield Finding(
            "warn",
            f"no_decay: {pattern} is in no parameter's name, so it does nothing{f'; {near} is' if near else ''}",
            {"pattern": pattern},
        )
    missed = (*found.lacking, *found.vectors)
    if missed and parts:
        yield Finding(
            "warn",
            f"no_decay takes in {len(found.caught)} parameters and misses {len(missed)} tokens, "
            f"positions, norms and biases, {len(found.vectors)} of them vectors: {', '.join(collapse(missed)[:6])}",
            {"missed": len(missed), "vectors": len(found.vectors)},
            missed[:8],
            "add them, or group by role; a rule by the number of axes beside the list frees the vectors",
        )
    elif not found.idle:
        yield Finding("ok", f"no_decay takes in {len(found.caught)} parameters, and misses none")


CHECK = Check(
    id="decay-groups",
    title="Which parameters does an optimiser decay, and at which layer id?",
    measures="weight decay and layer id of every tensor by its role, against the usual rule that vectors are not "
    "decayed",
    threshold="nothing fails: a list to hold the training script against; class token, registers and positions are "
    "no vectors "
    "in most codebases and are decayed by a rule that looks at axes. With no_decay in the recipe's training: warn on a "
    "name that is in no parameter, and on tokens, positions, norms and biases that no name takes in",
    advice="group by role",
    cost="facts",
    run=run,
    limits={"axes": 2},
    source="timm 1.0.31 no_weight_decay and #2712; facebookresearch/deit#60",
)
