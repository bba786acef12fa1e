"""The reference ViT of this package: built from canonical shapes and the facts"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.hosts.base import stages
from vitconv.hosts.base.facts import eps_facts
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.places import locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.hosts.base.tap import Tap
from vitconv.vit.config import ViTConfig, config_from_shapes
from vitconv.vit.model import ViT

TABLE = {
    "blocks.{i}": ("blocks.{i}",),
    **{
        f"blocks.{{i}}.{part}": (f"blocks.{{i}}.{part}",)
        for part in ("norm1", "norm2", "attn", "mlp", "attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm")
    },
    **{part: (part,) for part in ("embed.norm", "trunk_norm", "norm", "pool.norm", "head", "head_dist")},
}

# 224 pixels in patches of 16.
_PATCHES = 14

STAGES = stages.Names(
    block=r"stages\.(\d+)\.blocks\.(\d+)",
    norms=("norm1", "norm2"),
    act="mlp.act",
    attn="attn",
    patch="embed.patch",
    stem="embed.norm",
    norm="norm",
    head="head",
)


def accepts(module: nn.Module) -> bool:
    """Return True for the reference of either family."""
    return isinstance(module, ViT) or type(module).__module__ == "vitconv.vit.stages.model"


def make(spec: Spec) -> nn.Module:
    """Build the reference ViT of `spec.shapes` and `spec.facts`.

    Raises:
        UsageError: no shapes.
        Refused: facts are missing; see `config_from_shapes`.
    """
    if spec.shapes is None:
        raise UsageError("the reference is built from the canonical shapes of a checkpoint; give it one")
    if any(name.startswith("stages.") for name in spec.shapes):
        from vitconv.vit.stages.config import config_of_stages
        from vitconv.vit.stages.model import StageViT

        return StageViT(config_of_stages(spec.shapes, spec.facts)).eval()
    return ViT(config_from_shapes(spec.shapes, spec.facts)).eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network is: its facts are those it was built with, the eps those of the live norms."""
    if not isinstance(module, ViT):
        return _describe_stages(module, spec)
    config, places = module.config, locate(module, TABLE)
    facts = config.facts.replaced(eps_facts(places))
    taps = taps_of(places, head=module.head)
    if module.head is None:
        taps["pool"] = dataclasses.replace(taps["embed"], module=module.pool, side="output")
    return Built(
        host="reference",
        model=spec.model,
        module=module,
        dialects=("canonical",),
        facts=facts,
        survey=survey(module, places, "softmax"),
        taps=taps,
        inputs=_inputs(config),
        run=run,
    )


def _inputs(config: ViTConfig) -> Inputs:
    if not config.channels:
        return Inputs("tokens", (17, config.width))
    if config.sized:
        return Inputs("images", (config.channels, *config.image_size))
    # Without tables of positions a network takes images of any size; the usual number of patches then.
    return Inputs("images", (config.channels, *(_PATCHES * side for side in config.patch)))


def _describe_stages(module: nn.Module, spec: Spec) -> Built:
    from vitconv.vit.stages.model import StageViT

    assert isinstance(module, StageViT)
    config = module.config
    kind = stages.Kind("reference", STAGES, ("canonical-stages",), run, config.image_size)
    built = stages.describe(module, spec, kind)
    taps = dict(built.taps)
    taps["pool"] = Tap(module.pool, "output")
    size = built.facts.image_size
    facts = built.facts.replaced({**config.facts.known(), "image_size": size})
    return dataclasses.replace(built, taps=taps, facts=facts)


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits [b o], or the features of a network without a head."""
    return module(images)


HOST = Host(
    name="reference",
    title="the reference ViT",
    dialects=("canonical", "canonical-stages"),
    options={},
    make=make,
    describe=describe,
    accepts=accepts,
)
