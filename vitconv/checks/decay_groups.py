"""Which parameters does an optimiser decay, and at which layer id, by role"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits
from vitconv.checks.base.context import Context
from vitconv.inits.base.groups import groups


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """List decayed and other roles, and what a rule by the number of axes in the network's own layout would decay."""
    placed = groups(dict(context.arch.shapes))
    kept = [g for g in placed if not g.decayed]
    decayed = sorted({g.role for g in placed if g.decayed})
    yield Finding(
        "ok",
        f"{len(placed) - len(kept)} tensors are decayed ({', '.join(decayed)}), {len(kept)} are not; layer ids 0 "
        "(embeddings) "
        f"to {max(g.layer_id for g in placed)} (head)",
        {"decayed": len(placed) - len(kept), "kept": len(kept)},
    )
    if context.bridge is None or context.built is None:
        return
    state = context.built.module.state_dict()
    cells, prefix = context.bridge.network.cells, context.bridge.prefix
    tokens = [g.name for g in kept if state[prefix + cells[g.name].view.tensor].dim() >= limits["axes"]]
    if tokens:
        yield Finding(
            "info",
            f"a rule by the number of axes would decay {', '.join(tokens[:6])}: they have more than one axis here",
            {"tokens": len(tokens)},
            tuple(tokens),
            "name them in no_weight_decay, or group by role: vitconv.inits.base.groups",
        )


CHECK = Check(
    id="decay-groups",
    title="Which parameters does an optimiser decay, and at which layer id?",
    measures="weight decay and layer id of every tensor by its role, against the usual rule that vectors are not "
    "decayed",
    threshold="nothing fails: a list to hold the training script against; class token, registers and positions are "
    "no vectors "
    "in most codebases and are decayed by a rule that looks at axes",
    advice="group by role",
    cost="facts",
    run=run,
    limits={"axes": 2},
    source="timm 1.0.31 no_weight_decay and #2712; facebookresearch/deit#60",
)
