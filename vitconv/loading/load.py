"""Give a ready module of a library from any checkpoint that is understood."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.facts import Wishes
from vitconv.conversion.owners import LAYOUTS, TRAINING_FILE, first, with_training_parts
from vitconv.conversion.prepare import Order, Prepared, prepare
from vitconv.conversion.prove import check_equal
from vitconv.conversion.stream import outputs
from vitconv.errors import Refused, UsageError
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.layout.match import collapse
from vitconv.layout.semantics import Semantics, fact_value
from vitconv.loading.build import HOST_OF, build, layouts_of
from vitconv.registry import DIALECTS, HOSTS
from vitconv.registry import load as load_entry

if TYPE_CHECKING:
    from torch import nn

# Facts that a module does not compute by, or that its library states in its own way.
_LEFT = frozenset({"mean", "std", "position_resize", "release", "grid", "image_size", "mlp_dropout", "window_rule"})
_TABLES = ("learned", "sincos")


def load(
    path: str | Path,
    host: str = "timm",
    *,
    to: str | None = None,
    facts: Mapping[str, Any] | None = None,
    branch: str | None = None,
    from_: str | None = None,
    choices: Mapping[str, str] | None = None,
    edits: Sequence[str] = (),
    drop: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    adapter: str | Path | None = None,
) -> nn.Module:
    """Return a module of a library with the weights of a checkpoint: strictly loaded, in eval mode, in their dtypes.

    What the weights do not say comes from the file's metadata or the configuration beside it, and is asked for
    otherwise: nothing is guessed. A part that only training uses (a mask token, a decoder) and that the library has no
    place for stays behind in the checkpoint. The eps of every norm is what the facts say, also where the library's own
    configuration could not say it.

    Args:
        path: a checkpoint of any kind that is read: a file, shards, a folder.
        host: timm, transformers, torchvision, open-clip, xformers, xformers-style, reference, or
            python:MODULE:FACTORY; auto is the library that owns the checkpoint's layout, timm where none of these does.
        to: the layout of the module, where the library has several, such as `hf-deit`.
        facts: what the weights do not say, as {"heads": 12}.
        branch: which set of weights, when the file holds several.
        from_: the dialect of the source; detected otherwise.
        choices: options of the target dialect.
        edits: changes on the way, as on the command line.
        drop: patterns of tensors that may be lost.
        options: further arguments for the library's own constructor, such as {"drop_path_rate": 0.1}.
        config: a configuration file to read facts from, when none lies beside the checkpoint.
        adapter: a LoRA adapter of PEFT to merge into the weights.

    Raises:
        UsageError: no such file, host, or library.
        Refused: a fact that the module needs is unknown (the message names it), something would be lost, or the
            library's module computes something else.
        NotRecognised: no dialect explains the checkpoint.
    """
    known = {name: fact_value(name, value) for name, value in (facts or {}).items()}
    paths = [None if path_ is None else Path(path_) for path_ in (config, adapter)]
    wishes = Wishes(from_, branch, known, config=paths[0], adapter=paths[1])
    order = Order(to or "", wishes, dict(choices or {}), tuple(edits), tuple(drop))
    if host == "auto":
        host = _owner(path, order)
    name, _, model = host.partition(":")
    name = name.replace("_", "-")
    entry: Host = load_entry(HOSTS, name)
    if (reason := entry.why_not()) is not None:
        raise UsageError(f"host {name} cannot be used: {reason}")
    dialects = (to,) if to else layouts_of(entry, model, dict(options or {}))
    prepared = _planned(path, order, dialects)
    try:
        built = build(entry, model, prepared, dict(options or {}))
        state = _state(prepared)
        if state.keys() != built.module.state_dict().keys() and name == "transformers":
            state = _renamed(path, prepared)
        network = prepared.plan.network
        _as_told(built, network.facts, headed="head.weight" in network.cells)
        whose = f"that {host} gives" if name == "python" else f"of {built.host} that the facts describe"
        return _filled(built, state, whose)
    finally:
        prepared.close()


def _planned(path: str | Path, order: Order, dialects: Sequence[str]) -> Prepared:
    """Plan into the first layout that has the network; what only training uses stays in the checkpoint."""
    try:
        return first(path, order, dialects, prepare)
    except Refused:
        found = with_training_parts(path, Path(TRAINING_FILE), order, dialects)
        if found is None:
            raise
        return found


def _owner(path: str | Path, order: Order) -> str:
    """Return the host of the library that owns the checkpoint's layout, timm where no host is of its name."""
    from vitconv.conversion.recognise import recognise

    source = recognise(path, order.wishes)
    source.checkpoint.close()
    library = source.match.dialect.library
    return HOST_OF.get(library, library) if library in LAYOUTS else "timm"


def _as_told(built: Built, facts: Semantics, *, headed: bool) -> None:
    """Give the live norms the eps that the facts say, and refuse a module that computes otherwise.

    Raises:
        Refused: a fact of the live module is another than that of the weights.
    """
    host: Host = load_entry(HOSTS, built.host)
    ends = {"norm": facts.final_norm_eps, "pool.norm": facts.final_norm_eps, "embed.norm": facts.embed_norm_eps}
    inside = {"q_norm": facts.qk_norm_eps, "k_norm": facts.qk_norm_eps}
    modules = dict(built.module.named_modules())
    for site in built.survey.norms:
        place = site.place or ""
        eps = inside.get(place.rpartition(".")[2], facts.norm_eps) if "blocks." in place else ends.get(place)
        if eps is not None and site.eps is not None and site.eps != eps:
            norm: Any = modules[site.name]
            attribute = next(n for n in ("eps", "epsilon", "variance_epsilon") if hasattr(norm, n))
            setattr(norm, attribute, eps)
    live = host.describe(built.module, Spec(built.model, facts=facts)).facts
    wrong = {k: v for k, v in facts.differences(live).items() if k not in _LEFT and not _alike(k, *v, headed=headed)}
    if wrong:
        said = "; ".join(f"{name} is {here} here and {there} there" for name, (here, there) in wrong.items())
        raise Refused(f"the module that {built.host} builds is not the network of the weights: {said}")


def _alike(fact: str, here: Any, there: Any, *, headed: bool) -> bool:
    """Say whether two values of a fact make the same module."""
    if fact == "position":
        return here in _TABLES and there in _TABLES
    # Without a classifier pooling is the caller's.
    return (fact == "pooling" and not headed) or (fact == "attention_scale" and isclose(here, there, rel_tol=1e-6))


def _state(prepared: Prepared) -> dict[str, Any]:
    from vitconv.io.dcp_write import tensor_of

    check_equal(prepared.plan, prepared.sources)
    return {out.key: tensor_of(out) for out in outputs(prepared.plan, prepared.sources)}


def _renamed(path: str | Path, prepared: Prepared) -> dict[str, Any]:
    """Return the state under the names that transformers 5 uses in memory."""
    name = f"{prepared.order.to}-5"
    # What is held in memory beside the weights differs: a choice that only the names of files leave open is none here.
    known = {c.name for c in load_entry(DIALECTS, name).choices}
    choices = {k: v for k, v in prepared.order.choices.items() if k in known}
    again = prepare(path, dataclasses.replace(prepared.order, to=name, choices=choices))
    try:
        return _state(again)
    finally:
        again.close()


def _filled(built: Built, state: Mapping[str, Any], whose: str) -> nn.Module:
    module = built.module
    have = module.state_dict()
    lacking, spare = [k for k in have if k not in state], [k for k in state if k not in have]
    wrong = [k for k in have if k in state and have[k].shape != state[k].shape]
    if lacking or spare or wrong:
        parts = [("it lacks", lacking), ("it has no place for", spare), ("of another shape are", wrong)]
        said = "; ".join(f"{words} {', '.join(collapse(keys))}" for words, keys in parts if keys)
        raise Refused(f"the module {whose} is not the network of the weights: {said}")
    # Assigned, not copied: a copy would round into the dtype of the fresh module.
    module.load_state_dict(dict(state), strict=True, assign=True)
    return module.eval()
