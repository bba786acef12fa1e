"""DeepNorm (arXiv:2203.00555, fig. 2) as plain post-norm.

LN(a x + f(x)) with eps is LN(x + f(x)/a) with eps/a^2: the norm takes the factor a out of numerator and deviation.
"""

from __future__ import annotations

from vitconv.errors import Refused
from vitconv.layout.edits.edit import Edit, Values, named, sized
from vitconv.layout.edits.scale import divided
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Network

LAYERS = ("blocks.{i}.attn.out", "blocks.{i}.mlp.down")


def _apply(network: Network, _: Values) -> Network:
    facts = network.facts
    if facts.norm_placement not in (None, "deepnorm"):
        raise Refused(f"--edit fold-deepnorm: this network has norm_placement={facts.norm_placement}, not deepnorm")
    needed = {
        "norm_placement=deepnorm": facts.norm_placement,
        "residual_alpha=A (for one stack of N layers (2N)^(1/4))": facts.residual_alpha,
        "norm_eps=E": facts.norm_eps,
    }
    unknown = [name for name, known in needed.items() if known is None]
    if unknown:
        raise Refused(
            "--edit fold-deepnorm: the weights do not say "
            + ", ".join(name.partition("=")[0] for name in unknown)
            + "; say "
            + " ".join(f"--set {name}" for name in unknown)
        )
    alpha, eps = facts.residual_alpha, facts.norm_eps
    assert alpha is not None
    assert eps is not None
    if "trunk_norm.weight" in network.cells:
        raise Refused(
            "--edit fold-deepnorm: trunk_norm has the eps of the norms in the blocks, which the fold changes; it"
            " cannot stay what it is"
        )
    if alpha <= 0:
        raise Refused(f"--edit fold-deepnorm: residual_alpha={alpha:g}, expected a number above zero")
    scaled = [
        name
        for layer in LAYERS
        for kind in ("weight", "bias")
        for name in named(f"{layer}.{kind}", network.depth)
        if name in network.cells
    ]
    for name in scaled:
        network = network.with_made(name, divided(f"divided by alpha = {alpha:g}", network.cells[name], alpha))
    folded = {"norm_placement": "post", "residual_alpha": None, "norm_eps": eps / alpha**2}
    what = (
        f"{', '.join(collapse(scaled))} divided by alpha = {alpha:g}, norm eps {eps:g} becomes {eps / alpha**2:g};"
        " deepnorm becomes post"
    )
    adjoint = "gradients divided by alpha"
    return sized(network, folded).noted(Applied("fold-deepnorm", what, True, (), (), adjoint))


FOLD_DEEPNORM = Edit(
    name="fold-deepnorm",
    title="turn DeepNorm blocks into post-norm blocks: divide both branches by alpha, and the norm's eps by its square",
    exact="yes in real arithmetic, with the new eps",
    adjoint="gradients divided by alpha",
    params=(),
    apply=_apply,
)
