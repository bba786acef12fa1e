"""The reference ViT of this package: built from canonical shapes and the facts"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.hosts.base.facts import eps_facts
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

TABLE = {
    "blocks.{i}": ("blocks.{i}",),
    **{
        f"blocks.{{i}}.{part}": (f"blocks.{{i}}.{part}",)
        for part in ("norm1", "norm2", "attn", "mlp", "attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm")
    },
    **{part: (part,) for part in ("embed.norm", "trunk_norm", "norm", "pool.norm", "head", "head_dist")},
}


def make(spec: Spec) -> nn.Module:
    """Build the reference ViT of `spec.shapes` and `spec.facts`.

    Raises:
        UsageError: no shapes.
        Refused: facts are missing; see `config_from_shapes`.
    """
    if spec.shapes is None:
        raise UsageError("the reference is built from the canonical shapes of a checkpoint; give it one")
    return ViT(config_from_shapes(spec.shapes, spec.facts)).eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network is: its facts are those it was built with, the eps those of the live norms."""
    assert isinstance(module, ViT)
    config, places = module.config, locate(module, TABLE)
    facts = config.facts.replaced(eps_facts(places))
    taps = taps_of(places, head=module.head)
    if module.head is None:
        taps["pool"] = dataclasses.replace(taps["embed"], module=module.pool, side="output")
    inputs = Inputs("images", (config.channels, *config.image_size)) if config.channels else None
    return Built(
        host="reference",
        model=spec.model,
        module=module,
        dialects=("canonical",),
        facts=facts,
        survey=survey(module, places, "softmax"),
        taps=taps,
        inputs=inputs or Inputs("tokens", (17, config.width)),
        run=run,
    )


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o], or the features of a network without a head."""
    return module(images)


HOST = Host(
    name="reference",
    title="the reference ViT",
    dialects=("canonical",),
    options={},
    make=make,
    describe=describe,
    accepts=lambda module: isinstance(module, ViT),
)
