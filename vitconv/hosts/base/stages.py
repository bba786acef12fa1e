"""Describe a live stage-wise network: its blocks by a pattern of module names, its facts off the modules themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from vitconv.errors import Refused
from vitconv.hosts.base.facts import common, name_of
from vitconv.hosts.base.host import Built, Inputs, Spec
from vitconv.hosts.base.survey import eps_of, survey
from vitconv.hosts.base.tap import Tap
from vitconv.layout.semantics import Semantics
from vitconv.layout.windows import contested, square, told_windows


@dataclass(frozen=True)
class Names:
    """Where a codebase keeps the parts: module names, those of a block below the block.

    Attributes:
        block: pattern of a block's name with two groups, stage and block; `step` and `first` count the stages:
            stage = (number - first) / step.
        norms: the norms of a block; act: the activation of its MLP; attn: its attention.
        stem: the norm after the patch projection; patch: that projection.
        norm, head: the final norm ("" where there is none) and the classifier, whose input is the pooled value.
        ways: pattern of the other norms that lead to the blocks or stand in them: of mergings, patches, reduced keys.
    """

    block: str
    norms: tuple[str, ...]
    act: str
    attn: str
    patch: str
    stem: str
    norm: str
    head: str
    first: int = 0
    step: int = 1
    ways: str = r"(.*\.)?(downsample|features\.\d+)\.norm"


@dataclass(frozen=True)
class Kind:
    """A host's network of stages: who it is, its names, the dialects of its state dict, and how it runs.

    `rule` is the fact `window_rule` of this codebase, `pooling` the fact of that name.
    """

    host: str
    names: Names
    dialects: tuple[str, ...]
    run: Callable[[nn.Module, Tensor], Tensor]
    image_size: tuple[int, int] | None = None
    pretrained: tuple[int, ...] | None = None
    backend: str = "eager"
    rule: str | None = None
    pooling: str = "avg"


def blocks_of(module: nn.Module, names: Names) -> dict[tuple[int, int], tuple[str, nn.Module]]:
    """Return {(stage, block): (name, module)} in running order."""
    found = {}
    for name, m in module.named_modules():
        hit = re.fullmatch(names.block, name)
        if hit and (int(hit[1]) - names.first) % names.step == 0:
            found[(int(hit[1]) - names.first) // names.step, int(hit[2])] = (name, m)
    return dict(sorted(found.items()))


def describe(module: nn.Module, spec: Spec, kind: Kind) -> Built:
    """Tell what this network of stages is.

    Raises:
        Refused: its blocks are not where this kind of network has them.
    """
    modules, names = dict(module.named_modules()), kind.names
    blocks = blocks_of(module, names)
    if not blocks:
        raise Refused(f"{type(module).__name__} has no blocks of a stage-wise network")
    places = {f"stages.{s}.blocks.{i}": m for (s, i), (_, m) in blocks.items()}
    for (s, i), (name, _) in blocks.items():
        for j, part in enumerate(names.norms):
            places[f"stages.{s}.blocks.{i}.norm{j + 1}"] = modules[f"{name}.{part}"]
    for place, name in (("embed.norm", names.stem), ("norm", names.norm), ("head", names.head)):
        if name and name in modules and not isinstance(modules[name], nn.Identity):
            places[place] = modules[name]
    facts, patch = _facts(modules, blocks, places, kind), modules[names.patch]
    size = kind.image_size or spec.facts.image_size or spec.options.get("image_size") or _usual(facts, patch)
    size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return Built(
        host=kind.host,
        model=spec.model or type(module).__name__,
        module=module,
        dialects=kind.dialects,
        facts=facts.replaced({"image_size": size, "window_rule": _rule(facts, kind, size, patch)}),
        survey=survey(module, places, kind.backend),
        taps=_taps(modules, blocks, names),
        inputs=Inputs("images", (patch.in_channels, *size)),  # type: ignore[arg-type]
        run=kind.run,
    )


def _facts(
    modules: Mapping[str, nn.Module],
    blocks: Mapping[tuple[int, int], tuple[str, nn.Module]],
    places: Mapping[str, nn.Module],
    kind: Kind,
) -> Semantics:
    stages = range(max(s for s, _ in blocks) + 1)
    inside = {b: _holder(modules[f"{name}.{kind.names.attn}"]) for b, (name, _) in blocks.items()}
    attns: list[list[Any]] = [[a for (t, _), a in inside.items() if t == s] for s in stages]
    cosine = any(hasattr(a, "logit_scale") for row in attns for a in row)
    eps = {
        "norm_eps": common(eps_of(m) for p, m in places.items() if re.search(r"\.norm\d$", p)),
        # That of the patches, of the mergings and of reduced keys, which are one in every codebase.
        "embed_norm_eps": common(
            eps
            for p, m in modules.items()
            if (p == kind.names.stem or re.fullmatch(kind.names.ways, p)) and (eps := eps_of(m))
        ),
        "final_norm_eps": eps_of(places["norm"]) if "norm" in places else None,
    }
    heads = [common(getattr(a, "num_heads", getattr(a, "num_attention_heads", None)) for a in row) for row in attns]
    windows, widths = ([common(_side(a, axis) for a in row) for row in attns] for axis in (0, 1))
    known: dict[str, Any] = {
        "norm_placement": "res-post" if cosine else "pre",
        "norm_kind": "layernorm",
        "activation": common(name_of(attrgetter(kind.names.act)(m)) for _, m in blocks.values()),
        "attention": "cosine" if cosine else "softmax",
        "kv_normalised": True,
        "pooling": kind.pooling,
        "stage_heads": tuple(heads) if all(heads) else None,
        "window": tuple(windows) if all(windows) else None,
        "window_width": tuple(widths) if all(windows) and all(widths) and widths != windows else None,
        **{k: v for k, v in eps.items() if v is not None},
    }
    if cosine and all(windows):
        trained: tuple[Any, ...] = kind.pretrained or tuple(common(map(_pretrained, row)) for row in attns)
        if None not in trained:
            # Of the same window is as without.
            known["pretrained_window"] = tuple(0 if p == w else p for p, w in zip(trained, windows, strict=True))
    return Semantics().replaced({k: v for k, v in known.items() if v is not None})


def _holder(attn: nn.Module) -> nn.Module:
    """Return the module that holds the head count: the attention itself, or the one inside it."""
    named = ("num_heads", "num_attention_heads")
    return next((m for m in attn.modules() if any(hasattr(m, n) for n in named)), attn)


def _side(attn: Any, axis: int) -> int | None:
    size = getattr(attn, "window_size", None)
    if size is None:
        return None
    return int(size if isinstance(size, int) else size[axis])


def _pretrained(attn: Any) -> int | None:
    size = getattr(attn, "pretrained_window_size", None)
    return None if size is None else int(size[0] if isinstance(size, (tuple, list)) else size)


def _usual(facts: Semantics, patch: Any) -> int:
    """Return the least side that all windows fit in, two of them when there is one stage."""
    windows = (*(facts.window or (7,)), *(facts.window_width or ()))
    stages = len(facts.window or (7,))
    return int(patch.stride[0]) * max(w * 2 ** (j % stages) for j, w in enumerate(windows)) * (1 if stages > 1 else 2)


def _rule(facts: Semantics, kind: Kind, size: tuple[int, int], patch: Any) -> str | None:
    """Return whose windows these are, where codebases lay them out in different ways and it matters."""
    told = told_windows(facts.known(), len(facts.window or ()))
    rows, columns = (-(-n // int(p)) for n, p in zip(size, patch.stride, strict=True))
    maps = [(-(-rows // 2**s), -(-columns // 2**s)) for s in range(len(told))]
    pairs = [(square(t), m) for t, m in zip(told, maps, strict=True)]
    return kind.rule if any(w is not None and contested(w, m) for w, m in pairs) else None


def _taps(
    modules: Mapping[str, nn.Module], blocks: Mapping[tuple[int, int], tuple[str, nn.Module]], names: Names
) -> dict[str, Tap]:
    first = next(iter(blocks.values()))[1]
    taps = {"embed": Tap(first, "input", flat=True)}
    taps |= {f"stages.{s}.blocks.{i}": Tap(m, "output", flat=True) for (s, i), (_, m) in blocks.items()}
    if names.norm and names.norm in modules:
        taps["norm"] = Tap(modules[names.norm], "output", flat=True)
    if names.head in modules:
        taps["pool"] = Tap(modules[names.head], "input")
        if not isinstance(modules[names.head], nn.Identity):
            taps["head"] = Tap(modules[names.head], "output")
    return taps
