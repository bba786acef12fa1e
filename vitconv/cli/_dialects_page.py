"""The page on layouts: what is read and written, what it was proved against, and every pair of one family."""

from __future__ import annotations

from collections.abc import Iterable

from vitconv.errors import Refused
from vitconv.layout.derived import derived_as
from vitconv.layout.dialect import Dialect, Variant
from vitconv.layout.encode import encode
from vitconv.layout.rule import Rule
from vitconv.registry import DIALECTS, load_all

_AUTHOR = "traces of the author's code"
_NAMES = "names and shapes as its source has them; not run"
# {layout: what computed the same function from converted weights, forward and gradients, in float64}
PROVED = {
    "beit": f"timm 1.0.31; {_AUTHOR} (microsoft/unilm 768a3c8)",
    "big-vision": f"{_AUTHOR} (google-research/big_vision 0127fb6, jax 0.10.2)",
    "canonical": "the reference network of this package",
    "canonical-stages": "the reference network of this package",
    "clip": f"{_AUTHOR} (openai/CLIP d05afc4)",
    "deit": f"{_AUTHOR} (facebookresearch/deit 7e160fe)",
    "dino": f"{_AUTHOR} (facebookresearch/dino 7c446df)",
    "dinov2": f"{_AUTHOR} (facebookresearch/dinov2 b8931f7)",
    "dinov3": f"{_AUTHOR} (facebookresearch/dinov3 6876159)",
    "eva": f"{_AUTHOR} (baaivision/EVA 5623d08)",
    "flatten-cswin": f"{_AUTHOR} (LeapLabTHU/FLatten-Transformer abdb115)",
    "flatten-pvt": f"{_AUTHOR} (LeapLabTHU/FLatten-Transformer abdb115)",
    "flatten-pvtv2": f"{_AUTHOR} (LeapLabTHU/FLatten-Transformer abdb115)",
    "flatten-swin": f"{_AUTHOR} (LeapLabTHU/FLatten-Transformer abdb115)",
    "hf-beit": "transformers 5.24.0",
    "hf-clip-vision": "transformers 5.24.0",
    "hf-deit": "transformers 5.24.0",
    "hf-dinov2": "transformers 5.24.0",
    "hf-dinov2-registers": "transformers 5.24.0",
    "hf-dinov3": "transformers 5.24.0",
    "hf-ijepa": "transformers 5.24.0",
    "hf-mae": "transformers 5.24.0",
    "hf-pvt": "transformers 5.24.0",
    "hf-pvtv2": "transformers 5.24.0",
    "hf-siglip": "transformers 5.24.0",
    "hf-siglip2": "transformers 5.24.0",
    "hf-swin": "transformers 5.24.0",
    "hf-swinv2": "transformers 5.24.0",
    "hf-vit": "transformers 5.24.0",
    "ijepa": f"{_AUTHOR} (facebookresearch/ijepa 52c1ae9)",
    "internvit": f"{_AUTHOR} (OpenGVLab/InternVL 2d93b09)",
    "jeonsworld": f"{_AUTHOR} (jeonsworld/ViT-pytorch 460a162); what its loader makes of Google's file",
    "mae": f"{_AUTHOR} (facebookresearch/mae efb2a80)",
    "megatron": "traces of Megatron-LM core 0.16.1, local layers; its own CLIP converter (d98e8a6)",
    "mmpretrain": "traces of mmpretrain 1.2.0",
    "mmpretrain-swin": "traces of mmpretrain 1.2.0",
    "moco-v3": f"{_AUTHOR} (facebookresearch/moco-v3 c349e6e)",
    "open-clip": "traces of open_clip_torch 3.3.0",
    "pretrained-vit": f"{_AUTHOR} (lukemelas/PyTorch-Pretrained-ViT 8ec2cab)",
    "pvt": f"{_AUTHOR} (whai362/PVT 57e2dfa)",
    "swin": f"{_AUTHOR} (microsoft/Swin-Transformer f82860b)",
    "swinv2": f"{_AUTHOR} (microsoft/Swin-Transformer f82860b)",
    "timm": "timm 1.0.31",
    "timm-eva": "timm 1.0.31",
    "timm-naflex": "timm 1.0.31",
    "timm-parallel": "timm 1.0.31",
    "timm-naflex-eva": "timm 1.0.31",
    "timm-pvtv2": "timm 1.0.31",
    "timm-swin": "timm 1.0.31",
    "timm-swinv2": "timm 1.0.31",
    "torch": "torch 2.14.1",
    "torchvision": "torchvision 0.29.1",
    "torchvision-swin": "torchvision 0.29.1",
    "torchvision-swinv2": "torchvision 0.29.1",
    "transformer-engine": _NAMES,
    "vit-jax": f"{_AUTHOR} (google-research/vision_transformer c6de1e5, jax 0.10.2)",
    "vit-pytorch-simple": "traces of vit-pytorch 0.40.2, 1.2.0, 1.6.9, 1.26.14",
    "vit-pytorch": "traces of vit-pytorch 0.40.2, 1.2.0, 1.6.9, 1.26.14",
    "xformers": "traces of xformers 0.0.12 to 0.0.28.post3",
    "xformers-fused": "traces of xformers 0.0.3 to 0.0.11",
}
# Of what is optional these are usual, and those rare.
_USUAL = ("embed.cls", "embed.patch.weight", "norm.weight", "head.weight", "embed.norm.weight")
_RARE = (
    "embed.norm", "embed.patch_norm", "embed.dist", "head_dist", "pool.", "trunk_", "norm_cls", "norm_local",
    "mim.",    "blocks.{i}.attn.q_norm", "blocks.{i}.attn.k_norm", "blocks.{i}.attn.norm", "blocks.{i}.mlp.norm",
)  # fmt: skip
EXACT, LEFT, NO = "●", "◐", "·"


_INTRO = (
    f"The usual network of a layout in its default variant, written in every other one: {EXACT} exact, all of it has a"
    f" place; {LEFT} something has no place and is kept with `--residue` or dropped by name; {NO} refused, for the"
    " reasons below. Optional tensors, and edits, change the picture: `vitconv show FROM TO` tells of any pair. Names"
    " in memory of transformers 5 (`-5`) go as those on disk."
)


def proved(name: str) -> str:
    """Return what a layout was proved against; the two epochs of transformers' names are one network."""
    return PROVED.get(name) or PROVED.get(name.removesuffix("-5"), "")


def dialect_table() -> str:
    """Return the table of layouts, as it stands in README.md."""
    lines = ["| name | what it is | read | written | proved against |", "|---|---|---|---|---|"]
    for name, d in sorted(load_all(DIALECTS, plugins=False).items()):
        lines.append(f"| `{name}` | {d.title} | yes | yes | {proved(name)} |")
    return "\n".join(lines)


def source_table() -> str:
    """Return the table of where each layout is defined and what opens it."""
    lines = ["| name | opened by | defined in |", "|---|---|---|"]
    for name, d in sorted(load_all(DIALECTS, plugins=False).items()):
        lines.append(f"| `{name}` | {d.library} | {d.source} |")
    return "\n".join(lines)


def page() -> str:
    """Return docs/dialects.md."""
    plain = [d for d in load_all(DIALECTS, plugins=False).values() if d.family == "plain"]
    shown = [d for d in plain if d.name != "canonical" and not d.name.endswith("-5")]
    return (
        "\n\n".join(
            [
                "# Layouts",
                "Made from the layouts themselves by `make docs`; a test fails when it is stale.",
                "## Where they are defined",
                source_table(),
                "## From any to any",
                _INTRO,
                matrix(shown),
            ]
        )
        + "\n"
    )


def matrix(dialects: list[Dialect]) -> str:
    """Return every ordered pair as a table, and the reasons of those that are refused."""
    number = {d.name: str(j) for j, d in enumerate(dialects, 1)}
    head = "| from \\ to | " + " | ".join(number.values()) + " |"
    lines = [head, "|" + "---|" * (len(dialects) + 1)]
    reasons: dict[str, dict[str, list[str]]] = {}
    for a in dialects:
        cells = []
        for b in dialects:
            mark, reason = outcome(a.variants[0], b)
            cells.append(mark)
            if reason:
                reasons.setdefault(b.name, {}).setdefault(reason, []).append(a.name)
        lines.append(f"| {number[a.name]} `{a.name}` | " + " | ".join(cells) + " |")
    lines += ["", "Refused, by what is to be written:", ""]
    for name, why in reasons.items():
        said = "; ".join(f"{reason}: {', '.join(sources)}" for reason, sources in why.items())
        lines.append(f"- `{name}`: {said}")
    return "\n".join(lines)


def outcome(source: Variant, target: Dialect) -> tuple[str, str]:
    """Return how the usual network of a variant goes into a dialect, and why it does not."""
    depth = 2
    names = {name: (1,) for t in _usual(source) for name in _concrete(t, depth)}
    facts = {**source.author, **source.implies}
    try:
        said = encode(target, names, depth, facts)
    except Refused as e:
        return NO, ", ".join(line.strip().replace(f" {target.title}", " it") for line in str(e).split("\n")[1:])
    if said.missing:
        lacking = sorted({_template(n) for lacks in said.missing.values() for n in lacks})
        return NO, f"lacks {', '.join(lacking[:3])}{' and more' if len(lacking) > 3 else ''}"
    left = [n for n in said.residue if not derived_as(target, n)]
    return (LEFT if left else EXACT), ""


def _usual(variant: Variant) -> set[str]:
    """Return the canonical templates of the usual network of a variant: what it needs, biases, and the usual rest."""
    items = [x for x in variant.items if isinstance(x.entry, Rule)]
    barred = {n for o in variant.options for n in o.without}
    must = {p for x in items if not x.optional for p in x.parts} | {n for o in variant.options for n in o.needs}
    taken = [x for x in items if not x.optional or any(p.endswith(".bias") or p in _USUAL for p in x.parts)]
    found = {p for x in taken for p in x.parts} | {n for o in variant.options for n in o.needs}
    return {p for p in found if p not in barred and (not p.startswith(_RARE) or p in must)}


def _concrete(template: str, depth: int) -> Iterable[str]:
    return (template.replace("{i}", str(i)) for i in range(depth)) if "{i}" in template else (template,)


def _template(name: str) -> str:
    from vitconv.layout.canonical import template_of

    return template_of(name).replace("blocks.{i}.", "")
