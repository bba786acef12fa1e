"""Which parameter is which number in an optimizer: told by names, or found by the ways in which trainers sort them.

torch numbers parameters through the groups, in order. Inside a group every trainer keeps the order of the model; what
differs is the rule that makes the groups. So each known rule is tried against the number and sizes of the groups, the
shapes of the moments, and which groups decay. One answer must remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from vitconv.errors import Ambiguous, Refused, shown
from vitconv.io.optimizer_state import Group, OptimizerState
from vitconv.io.wrappers import WRAPPERS
from vitconv.layout.groups import INSIDE


@dataclass(frozen=True)
class Parameter:
    """One tensor of the file that can be a parameter.

    `kind` is token, position, patch, norm, head or other; `layer` 0 is the embedding, block i is i + 1, what follows
    the blocks comes after.
    """

    key: str
    shape: tuple[int, ...]
    kind: str
    layer: int


@dataclass(frozen=True)
class Matched:
    """{parameter id: key}, and in words how that was found."""

    keys: Mapping[str, str]
    how: str


def matched(state: OptimizerState, parameters: Sequence[Parameter], told: Sequence[str] | None = None) -> Matched:
    """Find the key of every parameter id.

    Args:
        state: what the file holds.
        parameters: the tensors that can be parameters, in the order of the model.
        told: names in the order of `model.named_parameters()`, when the user knows it.

    Raises:
        Refused: names that the weights do not have, or no rule fits.
        Ambiguous: several rules fit and give different answers.
    """
    names = [n for g in state.groups for n in g.names]
    ids = [i for g in state.groups for i in g.params]
    if names and len(names) == len(ids):
        return Matched(_by_name(dict(zip(ids, names, strict=True)), state, parameters), "by the names in its groups")
    if not state.by_number:
        return Matched(_by_name({i: i for i in ids}, state, parameters), "by name")
    if told is not None:
        parameters = _as_told(told, parameters)
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for how, groups in _ways(parameters, len(state.groups)):
        keys = _assigned(state, groups)
        if keys is not None:
            found.setdefault(tuple(keys.items()), []).append(how)
    if not found:
        raise Refused(_no_way(state, parameters))
    if len(found) > 1:
        ways = " / ".join(hows[0] for hows in list(found.values())[:4])
        raise Ambiguous(
            f"{len(found)} ways to number the parameters fit the shapes of this optimizer ({ways}); save it with names"
            " (build it from model.named_parameters()), or give the order with --optimizer-names FILE"
        )
    pairs, hows = next(iter(found.items()))
    return Matched(dict(pairs), f"by their order: {hows[0]}")


def _by_name(names: Mapping[str, str], state: OptimizerState, parameters: Sequence[Parameter]) -> dict[str, str]:
    bare = {_bare(p.key): p for p in parameters}
    lost = [n for n in names.values() if _bare(n) not in bare]
    if lost:
        raise Refused(
            f"the optimizer knows {len(lost)} parameters that the weights do not have:"
            f" {', '.join(map(shown, lost[:4]))}"
        )
    found = {i: bare[_bare(n)] for i, n in names.items()}
    wrong = [p.key for i, p in found.items() if state.shapes.get(i, p.shape) != p.shape]
    if wrong:
        raise Refused(f"the moments of {', '.join(map(shown, wrong[:4]))} have another shape than the weights")
    return {i: p.key for i, p in found.items()}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _as_told(told: Sequence[str], parameters: Sequence[Parameter]) -> list[Parameter]:
    bare = {_bare(p.key): p for p in parameters}
    unknown = [n for n in told if _bare(n) not in bare]
    if unknown:
        raise Refused(f"--optimizer-names: the weights have no {', '.join(map(shown, unknown[:4]))}")
    return [bare[_bare(n)] for n in told]


_NO_DECAY_TOKENS: tuple[tuple[str, frozenset[str]], ...] = (
    ("", frozenset()),
    (", tokens and positions without decay", frozenset(("token", "position", *INSIDE))),
    (", positions without decay", frozenset(("position",))),
    (", the class token and positions without decay", frozenset(("cls", "position"))),
    (", class and distillation tokens and positions without decay", frozenset(("cls", "dist", "position"))),
)
_FROZEN: tuple[tuple[str, Callable[[Parameter], bool]], ...] = (
    ("", lambda p: False),
    (", positions frozen", lambda p: p.kind == "position"),
    (", the patch projection frozen", lambda p: p.kind == "patch"),
    (", positions and the patch projection frozen", lambda p: p.kind in ("position", "patch")),
    (", all but the head frozen", lambda p: p.kind != "head"),
)


def _ways(parameters: Sequence[Parameter], count: int) -> Iterator[tuple[str, list[tuple[str, list[Parameter]]]]]:
    """Yield every known way to make `count` groups: in words, and (decay, no-decay or any, parameters) in order."""
    seen: set[tuple[str, ...]] = set()
    for frozen, still in _FROZEN:
        held = [p for p in parameters if not still(p)]
        keys = tuple(p.key for p in held)
        if not held or keys in seen:
            continue
        seen.add(keys)
        if count == 1:
            yield f"one group in the order of the model{frozen}", [("any", held)]
            continue
        for (words, tokens), rule in product(_NO_DECAY_TOKENS, _RULES):
            labels = [rule(p, tokens) for p in held]
            how = f"biases, norms and vectors apart{words}{frozen}"
            if count == 2:
                halves = [(name, [p for p, x in zip(held, labels, strict=True) if x == name]) for name in _LABELS]
                yield how, halves
                yield how, halves[::-1]
                continue
            for layers, number in _LAYERS:
                top = max((p.layer for p in held), default=0)
                places: dict[tuple[int, str], list[Parameter]] = {}
                for p, label in zip(held, labels, strict=True):
                    places.setdefault((number(p, top), label), []).append(p)
                yield f"per layer{layers}, {how}", [(label, ps) for (_, label), ps in places.items()]


def _by_ndim(p: Parameter, tokens: frozenset[str]) -> str:
    named = p.kind in tokens or p.kind.split(".")[0] in tokens or p.kind.partition(".")[2] in tokens
    return "none" if len(p.shape) <= 1 or p.key.endswith(".bias") or named else "decay"


def _by_norm(p: Parameter, tokens: frozenset[str]) -> str:
    named = p.kind in tokens or p.kind.split(".")[0] in tokens
    return "none" if p.kind == "norm" or p.key.endswith(".bias") or named else "decay"


_LABELS = ("none", "decay")
_RULES: tuple[Callable[[Parameter, frozenset[str]], str], ...] = (_by_ndim, _by_norm)


def _own(p: Parameter, _: int) -> int:
    return p.layer


def _norm_with_block(p: Parameter, top: int) -> int:
    return p.layer - 1 if p.kind == "norm" and p.layer == top else p.layer


def _merging_before(p: Parameter, _: int) -> int:
    """Count what leads into a stage to the block before, where Microsoft's code stores it (SimMIM, get_swin_layer)."""
    return p.layer - 1 if ".downsample." in p.key else p.layer


def _shared_table_last(p: Parameter, top: int) -> int:
    """Count a table of relative positions that all blocks share to the head (BEiT and SimMIM, get_vit_layer)."""
    return top if p.key.startswith("rel_pos_bias") else p.layer


_LAYERS: tuple[tuple[str, Callable[[Parameter, int], int]], ...] = (
    ("", _own),
    (", the last norm with the last block", _norm_with_block),
    (", what leads into a stage with the block before", _merging_before),
    (", shared relative positions with the head", _shared_table_last),
)


def _assigned(state: OptimizerState, groups: Sequence[tuple[str, list[Parameter]]]) -> dict[str, str] | None:
    """Return {id: key} if the groups fit those of the optimizer in number, size, shapes and decay, else None."""
    if len(groups) != len(state.groups):
        return None
    shapes = state.shapes
    keys: dict[str, str] = {}
    for (label, parameters), group in zip(groups, state.groups, strict=True):
        if len(parameters) != len(group.params) or not _decays_as(label, group):
            return None
        for i, p in zip(group.params, parameters, strict=True):
            if shapes.get(i, p.shape) != p.shape:
                return None
            keys[i] = p.key
    return keys


def _decays_as(label: str, group: Group) -> bool:
    decay = group.settings.get("weight_decay")
    if label == "any" or not isinstance(decay, int | float):
        return True
    return decay == 0 if label == "none" else True


def _no_way(state: OptimizerState, parameters: Sequence[Parameter]) -> str:
    sizes = [len(g.params) for g in state.groups]
    text = (
        f"the optimizer numbers its {sum(sizes)} parameters (groups of {', '.join(map(str, sizes[:8]))}), and no known"
        f" way of numbering fits the {len(parameters)} tensors of the weights"
    )
    if sum(sizes) == len(parameters) and len(sizes) == 1:
        first = state.groups[0].params
        wrong = [
            f"number {i} has moments {list(state.shapes[i])}, {shown(p.key)} is {list(p.shape)}"
            for i, p in zip(first, parameters, strict=True)
            if i in state.shapes and state.shapes[i] != p.shape
        ]
        text += f": {'; '.join(wrong[:3])}"
    return (
        text + ". The weights or the model were reordered; save the optimizer with names (build it from"
        " model.named_parameters()), or give the order with --optimizer-names FILE"
    )
