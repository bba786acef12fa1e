"""Read the configuration of xformers' factory, in the schema of every epoch.

Source: facebookresearch/xformers xformers/factory/block_configs.py, model_factory.py, block_factory.py and
xformers/components, tags v0.0.2 to v0.0.28.post3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitconv.configs.activations import FROM_XFORMERS
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.xformers_block import Block, read_block
from vitconv.configs.xformers_release import facts_from_release, release_number, trunk_norm_eps
from vitconv.errors import BadFile
from vitconv.layout.semantics import Semantics

_TARGET = "_target_"
_MARKS = ("block_type", "multi_head_config", "block_config", "stack_configs")


def accepts(raw: Any) -> bool:
    """Return True for a configuration of the factory: one, a list, a mapping of them, nested or flat."""
    if isinstance(raw, Mapping):
        if any(mark in raw for mark in _MARKS):
            return True
        values = list(raw.values())
        return bool(values) and all(isinstance(v, Mapping) and any(m in v for m in _MARKS) for v in values)
    if isinstance(raw, Sequence) and not isinstance(raw, str):
        return bool(raw) and all(isinstance(v, Mapping) and any(m in v for m in _MARKS) for v in raw)
    return False


def read(raw: Any, where: str) -> Found:
    """Read a configuration whose release is not known."""
    return facts_from_config(raw, where=where)


def facts_from_config(
    raw: Any, *, release: str | None = None, triton: bool | None = None, where: str = "xformers configuration"
) -> Found:
    """Return what the configuration says, and with `release` what that release makes of it.

    `triton`: CUDA and Triton were available where the network ran; it decides the eps of releases 0.0.10 to 0.0.26.

    Raises:
        BadFile: a value of the wrong kind, or keys that no release reads together.
        UsageError: the release does not read this configuration.
    """
    blocks = [read_block(fields, nested, release) for fields, nested in _entries(raw, where)]
    if not blocks:
        raise BadFile(f"{where}: no block in it")
    styles = {b.style for b in blocks}
    if "deepnorm" in styles and len(styles) > 1:
        raise BadFile(f"{where}: either all blocks are deepnorm or none")
    epoch = _epoch(blocks, where) if release is None else _epoch_of(release)
    notes = [note for b in blocks for note in b.notes]
    refusals = [reason for b in blocks for reason in b.refusals]

    def shared(name: str) -> Any:
        values = {getattr(b, name) for b in blocks}
        if len(values) > 1:
            refusals.append(f"{where}: {name.replace('_', ' ')} differs between the blocks: {_list(values)}")
        return values.pop() if len(values) == 1 else None

    style, first = shared("style"), blocks[0]
    alpha = None
    if style == "deepnorm":
        layers = shared("layers")
        # The factory takes N from each configuration, not from the stack (Wang et al., DeepNet, 2022, table 1).
        alpha = (2 * layers) ** 0.25 if layers else None
    activation, position = shared("activation"), first.position
    facts = Semantics(
        heads=shared("heads"),
        norm_placement=style,
        residual_alpha=alpha,
        norm_kind="layernorm",
        activation=FROM_XFORMERS.get(activation or ""),
        attention=shared("attention"),
        position=position if not any(b.rotary for b in blocks) else "rope",
        mlp_dropout=shared("mlp_dropout"),
        kv_normalised=True if epoch == "linear" or style in ("post", "deepnorm") else None,
    )
    use_triton = all(b.use_triton for b in blocks)
    trunk = _trunk_norm(blocks, epoch, notes, refusals)
    if not use_triton:
        facts = facts.replaced({"norm_eps": 1e-5, "final_norm_eps": 1e-5 if trunk and epoch == "linear" else None})
    if release is not None:
        facts = facts.filled(facts_from_release(release, style, triton, use_triton=use_triton))
        if trunk:
            facts = facts.filled({"final_norm_eps": trunk_norm_eps(release, triton=triton, use_triton=use_triton)})
    elif facts.norm_eps is None:
        notes.append(f"{where}: the eps depends on the release and on Triton: say --set release= or --set norm_eps=")
    sizes = {"i": sum(b.layers for b in blocks)}
    for axis, name in (("d", "width"), ("m", "mlp_width"), ("c", "channels"), ("p", "patch"), ("n", "positions")):
        value = shared(name) if name in ("width", "mlp_width") else getattr(first, name)
        if value is not None:
            sizes[axis] = value
    if "d" in sizes:
        sizes["a"] = sizes["d"]
    if "p" in sizes:
        sizes["q"] = sizes["p"]
    extra = {"epoch": epoch, "trunk_norm": trunk, "separate_projections": all(b.separate for b in blocks)}
    source = f"{where} (xformers factory{f', {_EPOCHS[epoch]}' if epoch else ''})"
    return Found(facts, sizes, extra, (source,), tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(refusals)))


_EPOCHS: Mapping[str, str] = {"fused": "0.0.11 or older", "linear": "0.0.12 or newer"}


def with_release(facts: Semantics, triton: bool | None = None) -> Semantics:
    """Return the facts completed with what their own `release` fixes."""
    if facts.release is None:
        return facts
    return facts.filled(facts_from_release(facts.release, facts.norm_placement, triton))


def _entries(raw: Any, where: str) -> Iterator[tuple[Fields, bool]]:
    """Yield each block's mapping, and whether it was nested as releases 0.0.1 to 0.0.7 want it."""
    if isinstance(raw, Mapping):
        if "stack_configs" in raw:
            yield from _entries(raw["stack_configs"], where)
        elif "block_config" in raw:
            inner = Fields(raw["block_config"], f"{where}: block_config")
            outer = {k: v for k, v in raw.items() if k != "block_config"}
            yield Fields({**outer, **inner.raw}, inner.where), True
        elif any(mark in raw for mark in _MARKS):
            yield Fields(_instantiated(raw), where), False
        else:
            for name, value in raw.items():
                if name == _TARGET:
                    continue
                yield from _entries(value, f"{where}: {name}")
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        for j, value in enumerate(raw):
            yield from _entries(value, f"{where}: [{j}]" if len(raw) > 1 else where)
    else:
        raise BadFile(f"{where}: found {type(raw).__name__}, expected a block configuration or a list of them")


def _instantiated(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take off what Hydra instantiates a block by: `_target_` names the class, and so the block type."""
    target = str(raw.get(_TARGET, ""))
    if not target.endswith((".xFormerEncoderConfig", ".xFormerDecoderConfig")):
        return raw
    kind = "encoder" if target.endswith(".xFormerEncoderConfig") else "decoder"
    return {"block_type": kind, **{k: v for k, v in raw.items() if k != _TARGET}}


def _epoch(blocks: Sequence[Block], where: str) -> str | None:
    """Return which epoch's keys are used, or None when only keys that both know are."""
    epochs = {b.epoch for b in blocks if b.epoch}
    if len(epochs) > 1:
        raise BadFile(f"{where}: keys of 0.0.11 and older and of 0.0.12 and newer in one file; no release reads both")
    return epochs.pop() if epochs else None


def _epoch_of(release: str) -> str:
    return "linear" if release_number(release) >= (12, 0) else "fused"


def _trunk_norm(blocks: Sequence[Block], epoch: str | None, notes: list[str], refusals: list[str]) -> bool:
    """Return whether the stack ends with the factory's own norm.

    Only pre-norm has one, and only on a configuration of a single layer: the last one since 3a7b713d (0.0.12), each
    one before.
    """
    inside = [j for j, b in enumerate(blocks[:-1]) if b.style == "pre" and b.layers == 1]
    if inside and epoch == "fused":
        refusals.append("the blocks of one layer ahead of the last end with a norm of their own, inside the stack")
    elif inside and epoch is None:
        notes.append("if this is of 0.0.11 or older, the blocks of one layer each end with a norm, inside the stack")
    return blocks[-1].style == "pre" and blocks[-1].layers == 1


def _list(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values)))
