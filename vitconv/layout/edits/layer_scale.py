"""LayerScale (arXiv:2103.17239) put into the linear layer before it: diag(g) (W x + b) = (diag(g) W) x + g b."""

from __future__ import annotations

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Values, without
from vitconv.layout.edits.scale import by_rows
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Network

BRANCHES = (("ls1", "attn.out"), ("ls2", "mlp.down"))


def _apply(network: Network, _: Values) -> Network:
    folds = [
        (f"blocks.{i}.{scale}", f"blocks.{i}.{layer}")
        for i in range(network.depth)
        for scale, layer in BRANCHES
        if f"blocks.{i}.{scale}" in network.cells
    ]
    if not folds:
        raise UsageError("--edit fold-layer-scale: this network has no LayerScale (blocks.{i}.ls1, blocks.{i}.ls2)")
    if network.facts.norm_placement == "res-post":
        raise Refused(
            "--edit fold-layer-scale: with norm_placement=res-post a norm stands between the linear layer and the"
            " scale, so it cannot be put into the linear layer"
        )
    lacking = [layer for _, layer in folds if f"{layer}.weight" not in network.cells]
    if lacking:
        raise Refused(f"--edit fold-layer-scale: no weight to put the scale into: {', '.join(collapse(lacking))}")
    for scale, layer in folds:
        for name in (f"{layer}.weight", f"{layer}.bias"):
            if name in network.cells:
                made = by_rows("LayerScale folded in", network.cells[name], network.cells[scale])
                network = network.with_made(name, made)
    gone = tuple(scale for scale, _ in folds)
    into = ", ".join(collapse(layer for _, layer in folds))
    what = f"{', '.join(collapse(gone))} multiplied into weight and bias of {into}"
    adjoint = "by the chain rule: the layer's gradient times the scale, and that of the scale summed over the row"
    return without(network, gone).noted(Applied("fold-layer-scale", what, True, gone, (), adjoint))


FOLD_LAYER_SCALE = Edit(
    name="fold-layer-scale",
    title="multiply LayerScale into the output projection and the second MLP layer",
    exact="yes in real arithmetic; each product is rounded once",
    adjoint="by the chain rule, the gradient of the scale included",
    params=(),
    apply=_apply,
)
