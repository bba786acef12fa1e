"""Give a ready module of a library from any checkpoint that is understood."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.beside import configs_for
from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order, Prepared, prepare
from vitconv.conversion.prove import check_equal
from vitconv.conversion.stream import outputs
from vitconv.errors import Refused, UsageError, VitconvError
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.layout.match import collapse
from vitconv.layout.semantics import fact_value
from vitconv.registry import HOSTS
from vitconv.registry import load as load_entry

if TYPE_CHECKING:
    from torch import nn

# Which layouts a library's networks may have, the usual one first.
_DIALECTS: Mapping[str, tuple[str, ...]] = {
    "timm": ("timm",),
    "transformers": ("hf-vit", "hf-deit"),
    "torchvision": ("torchvision",),
    "reference": ("canonical",),
}


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
    otherwise: nothing is guessed.

    Args:
        path: a checkpoint of any kind that is read: a file, shards, a folder.
        host: timm, transformers, torchvision or reference.
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
        Refused: a fact that the module needs is unknown (the message names it), or something would be lost.
        NotRecognised: no dialect explains the checkpoint.
    """
    known = {name: fact_value(name, value) for name, value in (facts or {}).items()}
    paths = [None if path_ is None else Path(path_) for path_ in (config, adapter)]
    wishes = Wishes(from_, branch, known, config=paths[0], adapter=paths[1])
    order = Order(to or "", wishes, dict(choices or {}), tuple(edits), tuple(drop))
    entry: Host = load_entry(HOSTS, host)
    if host not in _DIALECTS:
        raise UsageError(f"host {host}: load knows {', '.join(_DIALECTS)}")
    if (reason := entry.why_not()) is not None:
        raise UsageError(f"host {host} cannot be used: {reason}")
    prepared = _prepared(path, order, (to,) if to else _DIALECTS[host])
    try:
        built = _built(entry, prepared, dict(options or {}))
        state = _state(prepared)
        if state.keys() != built.module.state_dict().keys() and host == "transformers":
            state = _renamed(path, prepared)
        return _filled(built, state)
    finally:
        prepared.close()


def _prepared(path: str | Path, order: Order, dialects: Sequence[str]) -> Prepared:
    """Plan the conversion into the first dialect that can say the network; the source's own comes first."""
    errors: list[VitconvError] = []
    for name in dialects:
        try:
            found = prepare(path, dataclasses.replace(order, to=name))
        except Refused as error:
            errors.append(error)
            continue
        source = found.source.match.dialect
        own = source.name.removesuffix("-5")
        if len(dialects) > 1 and own != name and source.library == found.plan.target.variant.dialect.library:
            found.close()
            return prepare(path, dataclasses.replace(order, to=own))
        return found
    raise errors[0]


def _built(host: Host, prepared: Prepared, options: dict[str, Any]) -> Built:
    p = prepared.plan
    if host.name == "reference":
        return host.build(Spec("", options, p.network.facts, p.network.shapes))
    if host.name == "torchvision":
        return host.build(Spec("VisionTransformer", {**_torchvision(prepared), **options}))
    beside = configs_for(p, prepared.source.extra)
    if not beside.files:
        raise Refused(f"{prepared.source.checkpoint.path}: {beside.lacking or 'its library has no configuration'}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in beside.files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return host.build(Spec(folder, options))


def _torchvision(prepared: Prepared) -> dict[str, Any]:
    from torch import nn

    p = prepared.plan
    sizes, facts = p.sizes, p.network.facts
    lacking = [name for name in ("heads", "norm_eps") if getattr(facts, name) is None]
    if facts.image_size is None and facts.grid is None:
        lacking.append("grid")
    if lacking:
        hints = " ".join(f"{name}=..." for name in lacking)
        raise Refused(f"the weights do not say {', '.join(lacking)}; state them, as in facts={{{hints}}}")
    image = facts.image_size or tuple(n * sizes["p"] for n in facts.grid or ())
    if image[0] != image[1]:
        raise Refused(f"torchvision's networks take square images, this one {image[0]}x{image[1]}")
    return {
        "image_size": image[0],
        "patch_size": sizes["p"],
        "num_layers": p.network.depth,
        "num_heads": facts.heads,
        "hidden_dim": sizes["d"],
        "mlp_dim": sizes["m"],
        "num_classes": sizes["o"],
        "norm_layer": partial(nn.LayerNorm, eps=facts.norm_eps),
    }


def _state(prepared: Prepared) -> dict[str, Any]:
    from vitconv.io.dcp_write import tensor_of

    check_equal(prepared.plan, prepared.sources)
    return {out.key: tensor_of(out) for out in outputs(prepared.plan, prepared.sources)}


def _renamed(path: str | Path, prepared: Prepared) -> dict[str, Any]:
    """Return the state under the names that transformers 5 uses in memory."""
    name = f"{prepared.order.to}-5"
    again = prepare(path, dataclasses.replace(prepared.order, to=name))
    try:
        return _state(again)
    finally:
        again.close()


def _filled(built: Built, state: Mapping[str, Any]) -> nn.Module:
    module = built.module
    have = module.state_dict()
    lacking, spare = [k for k in have if k not in state], [k for k in state if k not in have]
    wrong = [k for k in have if k in state and have[k].shape != state[k].shape]
    if lacking or spare or wrong:
        parts = [("it lacks", lacking), ("it has no place for", spare), ("of another shape are", wrong)]
        said = "; ".join(f"{words} {', '.join(collapse(keys))}" for words, keys in parts if keys)
        raise Refused(f"the module of {built.host} that the facts describe is not the network of the weights: {said}")
    # Assigned, not copied: a copy would round into the dtype of the fresh module.
    module.load_state_dict(dict(state), strict=True, assign=True)
    return module.eval()
