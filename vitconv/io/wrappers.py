"""What trainers wrap around a network's keys, and which of several copies is the one to take."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Modules that stand for the one inside them: DDP, torch.compile, FSDP, activation checkpointing, Fabric, Opacus.
WRAPPERS = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_module")
)
# One-element tensors that averaging wrappers keep beside the weights: torch.optim.swa_utils, ema-pytorch, LitEma.
COUNTERS = frozenset(("n_averaged", "initted", "step", "num_updates", "updates", "decay"))

# First parts of a key that name one of several copies in a flat file, also where the other is not there.
_COPIES = {
    "teacher", "student", "ema_model", "online_model", "base_encoder", "momentum_encoder", "target_encoder",
    "encoder_q", "encoder_k", "model_ema", "ema_student", "ema_teacher", "ema", "online_network", "target_network",
}  # fmt: skip
# These count only beside the one they belong to.
_BESIDE = {
    "encoder": {"target_encoder"},
    "context_encoder": {"target_encoder"},
    "model": {"model_ema", "ema_model", "ema", "teacher"},
}
# Words in a name that say which copy it is: student_backbone and teacher_backbone, backbone and backbone_momentum.
_AVERAGED = frozenset(("ema", "swa", "averaged", "shadow"))
_PAIR = frozenset(("teacher", "student"))
_WORDS = _AVERAGED | _PAIR | {"online", "target", "momentum"}

# The place of a set whose name says nothing.
PLAIN = 1

_EMA = "the averaged (EMA) weights, as timm prefers them"
_TEACHER = "the teacher, the weights that self-supervised methods publish"
_JEPA = "the target encoder, which I-JEPA evaluates"
_MOCO = "the base encoder, which MoCo evaluates"
_BYOL = "the online network, which BYOL evaluates"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z_]+")
_LATER = re.compile(
    r"student|momentum_encoder|encoder_k|key_encoder|predictor|projector|decoder|discriminator|rest"
    r"|\w*_?loss|\w*head\w*|criterion|queue|args|config|ema_params|collected_params|current_model_state|raw"
)


def split_names(first_parts: set[str]) -> set[str]:
    """Return those first parts of keys that name copies of a network, to be taken apart."""
    copies = first_parts & _COPIES
    copies |= {name for name, beside in _BESIDE.items() if name in first_parts and copies & beside}
    # A student beside a teacher, whatever else their names say: student and teacher_model.
    pair = {name for name in first_parts if _words(name) & _PAIR}
    if len({word for name in pair for word in _words(name) & _PAIR}) > 1:
        copies |= pair
    families: dict[tuple[str, ...], set[str]] = {}
    for name in first_parts:
        families.setdefault(tuple(word for word in name.split("_") if word not in _WORDS), set()).add(name)
    for family in families.values():
        if len(family) > 1 and any(_words(name) & _WORDS for name in family):
            copies |= family
    return copies


def is_averaged(name: str) -> bool:
    """Say whether a branch's name says that its weights are averages of those that were trained."""
    return reason(name) == _EMA


def rank(name: str, names: Iterable[str] = ()) -> int:
    """Return the place of a branch among several: 0 preferred copies, 1 plain weights, 2 other copies and parts.

    `names` are those of all branches: an online network is BYOL's beside its target, and ema-pytorch's beside an EMA.
    """
    found = _verdict(name, names)
    return PLAIN if found is None else 0 if found else 2


# Lightning's WeightAveraging puts the averaged weights into state_dict, and the trained ones here.
RAW = "current_model_state"


def names_copy(name: str) -> bool:
    """Say whether a branch's name says that it is one of several copies of a network, whichever."""
    return any(_words(part) & _WORDS or part in _COPIES or part == RAW for part in name.split("."))


def order(name: str, names: Iterable[str]) -> tuple[int, int]:
    """Return the rank of a branch, and then how often its name says so: the average of a teacher comes before it."""
    return rank(name, names), -len(_words(name.rpartition(".")[2]) & {*_AVERAGED, "teacher"})


def reason(name: str, names: Iterable[str] = ()) -> str:
    """Say why a branch comes first."""
    return _verdict(name, names) or "the largest set of plain weights"


def _verdict(name: str, names: Iterable[str]) -> str | None:
    """Return why a copy is preferred, "" when it is not, None when its name does not say.

    The innermost part that does say counts: `ema.online_model` is the online model.
    """
    there = {word for other in names for part in other.split(".") for word in _words(part)}
    for part in reversed(name.split(".")):
        found = _of_part(part, there)
        if found is not None:
            return found
    return None


def _of_part(part: str, there: set[str]) -> str | None:
    words = _words(part)
    if _LATER.fullmatch(part):
        return ""
    if words & _AVERAGED:
        return _EMA
    if "teacher" in words:
        return _TEACHER
    if "online" in words:
        return "" if there & _AVERAGED else _BYOL
    if part in ("base_encoder", "encoder_q", "query_encoder"):
        return _MOCO
    if part == "target_encoder" and "online" not in there:
        return _JEPA
    return "" if words & _WORDS else None


def _words(part: str) -> set[str]:
    """Return the words of a name, of a class's too: {"ema", "callback"} of EMACallback."""
    return {word.lower() for word in _WORD.findall(part)}
