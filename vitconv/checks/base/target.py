"""From what the user writes to a context: a checkpoint, the name of a size, host:model, or a live module."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.checks.base.context import Context
from vitconv.checks.base.data import GIVEN, Data, made_up
from vitconv.checks.base.plan import Plan
from vitconv.configs.sizes import SIZES
from vitconv.errors import NotRecognised, Refused, UsageError
from vitconv.hosts.base.copied import copied
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.initialise.network import Job, architecture, of_timm, options
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.change import changed
from vitconv.inits.base.draw import draw
from vitconv.inits.base.live import apply
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import Bridge, bridge_of, state_of
from vitconv.parity.resolve import asked
from vitconv.parity.weights import Weights, check_file, load_weights
from vitconv.registry import HOSTS, INITS, load, names, unknown


@dataclass(frozen=True)
class Wanted:
    """How a network is to be checked.

    Attributes:
        sets: NAME=VALUE texts: facts, options of the host, sizes and changes of an architecture by name.
        options: options of the host as values, beside those in `sets`.
        scheme: init scheme to draw the weights by; "" keeps a checkpoint's and a constructor's; for a size, timm.
        dialect, branch: how a checkpoint is to be read.
        data: images and labels, or None for made-up ones.
        count: how many images are made up.
        plan: the training that is planned.
        seed: of weights and made-up images.
    """

    sets: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    scheme: str = ""
    dialect: str | None = None
    branch: str | None = None
    data: Data | None = None
    count: int = 16
    plan: Plan = field(default_factory=Plan)
    seed: int = 0


def context_of(
    target: str | Path | nn.Module, wanted: Wanted | None = None, *, images: Tensor | None = None
) -> Context:
    """Build what is to be checked.

    Args:
        target: a checkpoint, a size, host:model, host:model@checkpoint, or a live module, which is copied.
        wanted: how.
        images: what the network takes, [b c height width] or [b t d], in place of made-up images.

    Raises:
        UsageError: no such thing.
        Refused: it cannot be built, for another reason than facts that are missing.
    """
    wanted = wanted or Wanted()
    if images is not None and wanted.data is None:
        labels = torch.randint(10, (len(images),), generator=torch.Generator().manual_seed(wanted.seed))
        wanted = dataclasses.replace(wanted, data=Data(images, labels, GIVEN))
    if isinstance(target, nn.Module):
        return _live(target, wanted, type(target).__name__)
    text = str(target)
    if not text:
        raise UsageError("the name of what is to be checked is empty; for the folder you are in say .")
    if text.partition(":")[0] in names(HOSTS) and ":" in text:
        return _hosted(text, wanted)
    if Path(text).exists():
        return _checkpoint(text, wanted)
    if text in SIZES:
        return _size(text, wanted)
    if of_timm(text):
        return _hosted(f"timm:{text}", wanted)
    raise unknown("size, checkpoint or host:model", text, list(SIZES)[:8] + [n for n in SIZES if text[:8] in n][:8])


def _size(name: str, wanted: Wanted) -> Context:
    sizes, changes, left = options(wanted.sets)
    facts = _facts(left, name)
    job = Job(wanted.scheme or "timm", size=sizes, facts=facts)
    arch, notes = changed(architecture(name, job)[0], changes)
    return from_architecture(name, arch, wanted, notes)


def from_architecture(name: str, arch: Architecture, wanted: Wanted, notes: tuple[str, ...] = ()) -> Context:
    """Draw the weights of an architecture and build the reference ViT of them."""
    scheme = load(INITS, wanted.scheme or "timm")
    more = scheme.check(arch)
    _held(name, arch)
    weights = draw(arch, scheme, wanted.seed)
    context = _reference(name, weights, arch.facts, wanted, (*notes, *more))
    return dataclasses.replace(context, scheme=scheme.name)


def _held(name: str, arch: Architecture) -> None:
    """Refuse a network whose weights, network and gradients in float32 are more than the machine's memory."""
    count = sum(prod(shape) for shape in arch.shapes.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    if 12 * count > memory:
        raise Refused(
            f"{name} has {count:.3g} parameters: its weights and gradients take {12 * count / 1e9:.3g} GB, the machine "
            f"has {memory / 1e9:.3g} GB; check a smaller one of its kind (--set depth= dim=)"
        )


def _checkpoint(text: str, wanted: Wanted) -> Context:
    sizes, changes, left = options(wanted.sets)
    if "heads" in sizes:
        left, sizes = [*left, f"heads={sizes.pop('heads')}"], sizes
    if sizes:
        raise UsageError(f"--set {next(iter(sizes))}: the sizes of a checkpoint are its own")
    if changes:
        raise UsageError(f"--set {next(iter(changes))}: a checkpoint is checked as it is; say --set norm_placement=...")
    found = _weights(text, tuple(left), wanted)
    if wanted.scheme:
        arch = Architecture({n: tuple(t.shape) for n, t in found.tensors.items()}, found.facts)
        return from_architecture(f"{text}, drawn anew", arch, wanted)
    return _reference(text, found.tensors, found.facts, wanted, found.notes)


def _weights(path: str, sets: tuple[str, ...], wanted: Wanted) -> Weights:
    ask = asked(sets, wanted.dialect, wanted.branch)
    return load_weights(check_file(path), ask.wishes)


def _reference(
    name: str, weights: Mapping[str, Tensor], facts: Semantics, wanted: Wanted, notes: tuple[str, ...]
) -> Context:
    """Build the reference ViT of canonical weights; where facts are missing, a context without a network."""
    spec = Spec(name, {}, facts, {n: tuple(t.shape) for n, t in weights.items()})
    host: Host = load(HOSTS, "reference")
    try:
        built = host.build(spec)
    except Refused as e:
        nothing = wanted.data or made_up(Inputs("tokens", (2, 2)), 1, 2)
        return Context(name, None, weights, facts, nothing, plan=wanted.plan, lacking=str(e), notes=notes)
    bridge = bridge_of(state_of(built.module), built.dialects, built.facts, built.choices, built.axes)
    bridge.write(weights, state_of(built.module))
    return _context(name, built, bridge, weights, spec, wanted, notes)


def _hosted(text: str, wanted: Wanted) -> Context:
    name, _, rest = text.partition(":")
    model, at, path = rest.rpartition("@")
    if not at or Path(rest).exists():
        model, path = rest, ""
    if name == "reference":
        raise UsageError("the reference is built from a checkpoint or a size: give that alone")
    ask = asked(wanted.sets, wanted.dialect, wanted.branch)
    host: Host = load(HOSTS, name)
    given = {**ask.options, **wanted.options}
    if "*" in host.options and name != "timm":
        given = {**ask.sizes, **given}
    spec = Spec(model, given, Semantics(**ask.facts))
    torch.manual_seed(wanted.seed)
    built = host.build(spec)
    # What is looked at is in float32; in what the parameters are kept is a matter of the facts.
    stored = {key: t.dtype for key, t in state_of(built.module).items()}
    context = _as_stored(_seen(text, built, spec, wanted), stored)
    if not path:
        return context
    if context.bridge is None:
        raise Refused(f"{text}: {context.lacking}, so a checkpoint cannot be carried into it")
    found = load_weights(check_file(path))
    context.bridge.write(found.tensors, state_of(built.module))
    return dataclasses.replace(context, weights=found.tensors)


def _as_stored(context: Context, stored: Mapping[str, torch.dtype]) -> Context:
    """Give the canonical weights the half-precision dtypes that the network's own tensors have."""
    own = {name: stored[name] for name, _ in context.network.module.named_parameters() if name in stored}
    context = dataclasses.replace(context, stored=own)
    bridge, weights = context.bridge, context.weights
    halves = (torch.float16, torch.bfloat16)
    if bridge is None or weights is None or not any(dtype in halves for dtype in stored.values()):
        return context
    kinds = {name: stored[bridge.prefix + cell.view.tensor] for name, cell in bridge.network.cells.items()}
    return dataclasses.replace(context, weights={n: t.to(kinds[n]) for n, t in weights.items()})


def _live(module: nn.Module, wanted: Wanted, name: str) -> Context:
    spec = Spec(facts=Semantics(**asked(wanted.sets).facts))
    host: Host = load(HOSTS, "python")
    built = host.describe(copied(module).float().eval(), spec)
    stored = {n: p.dtype for n, p in module.named_parameters()}
    halves = sorted({str(d).removeprefix("torch.") for d in stored.values() if d in (torch.float16, torch.bfloat16)})
    context = dataclasses.replace(_seen(name, built, spec, wanted), stored=stored)
    if halves and context.weights is not None and context.bridge is not None:
        weights = context.bridge.read(state_of(module))
        return dataclasses.replace(context, weights=weights)
    return context


def _seen(name: str, built: Built, spec: Spec, wanted: Wanted) -> Context:
    """See a live network through a dialect, if there is one, and draw its weights anew if asked to."""
    notes, scheme, module = list(built.notes), "", built.module.float()
    facts = spec.facts.filled(built.facts)
    if wanted.scheme:
        got = apply(module, wanted.scheme, seed=wanted.seed, facts=facts.known(), partly=True)
        notes += [row.distribution for row in got if not row.key and row.distribution]
        scheme = wanted.scheme
    try:
        bridge: Bridge | None = bridge_of(state_of(module), built.dialects, facts)
        lacking = ""
    except (NotRecognised, Refused) as e:
        bridge, lacking = None, f"its tensors are not understood: {str(e).splitlines()[0]}"
    weights = None if bridge is None else bridge.read(state_of(module))
    context = _context(name, built, bridge, weights, spec, wanted, tuple(dict.fromkeys(notes)), lacking)
    return dataclasses.replace(context, scheme=scheme)


def _context(
    name: str,
    built: Built,
    bridge: Bridge | None,
    weights: Mapping[str, Tensor] | None,
    spec: Spec,
    wanted: Wanted,
    notes: tuple[str, ...],
    lacking: str = "",
) -> Context:
    facts = spec.facts.filled(built.facts)
    if bridge is not None:
        facts = facts.filled(bridge.network.facts)
    classes = 10 if weights is None or "head.weight" not in weights else weights["head.weight"].shape[0]
    data = wanted.data or made_up(built.inputs, wanted.count, classes, wanted.seed)
    return Context(
        name,
        built,
        weights,
        facts,
        data.fitted(built.inputs),
        bridge,
        spec=spec,
        plan=wanted.plan,
        lacking=lacking,
        notes=(*notes, *data.notes),
    )


def _facts(texts: list[str], name: str) -> dict[str, Any]:
    ask = asked(tuple(texts))
    if ask.options:
        raise UsageError(f"--set {next(iter(ask.options))}: no fact, size or change of {name}")
    return dict(ask.facts)
