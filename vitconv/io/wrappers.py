"""What trainers wrap around a network's keys, and which of several copies is the one to take."""

from __future__ import annotations

import re

# Modules that stand for the one inside them: DDP, torch.compile, FSDP, activation checkpointing, Fabric, Opacus.
WRAPPERS = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_module")
)
# One-element tensors that averaging wrappers keep beside the weights: torch.optim.swa_utils, ema-pytorch, LitEma.
COUNTERS = frozenset(("n_averaged", "initted", "step", "num_updates", "decay"))

# First parts of a key that name one of several copies in a flat file. The second set counts only beside the first.
_COPIES = {
    "teacher", "student", "ema_model", "online_model", "base_encoder", "momentum_encoder", "target_encoder",
    "encoder_q", "encoder_k", "model_ema", "ema_student", "ema_teacher", "ema", "online_network", "target_network",
}  # fmt: skip
_BESIDE = {"encoder": {"target_encoder"}, "model": {"model_ema", "ema_model", "ema"}}

_EMA = re.compile(r"(^|[._])(ema|swa|averaged)($|[._])")
_REASONS = (
    (re.compile(r"(^|\.)teacher($|\.)"), "the teacher, the weights that self-supervised methods publish"),
    (re.compile(r"(^|\.)target_encoder($|\.)"), "the target encoder, which I-JEPA evaluates"),
    (re.compile(r"(^|\.)(base_encoder|encoder_q)($|\.)"), "the base encoder, which MoCo evaluates"),
    (re.compile(r"(^|\.)online_network($|\.)"), "the online network, which BYOL evaluates"),
    (_EMA, "the averaged (EMA) weights, as timm prefers them"),
)
_LATER = re.compile(
    r"(^|\.)(student|online_model|target_network|momentum_encoder|encoder_k|predictor|projector|decoder|discriminator|rest"
    r"|\w*_?loss|\w*head\w*|criterion|queue|args|config|ema_params|current_model_state)($|\.)"
)


def split_names(first_parts: set[str]) -> set[str]:
    """Return those first parts of keys that name copies of a network, to be taken apart."""
    copies = first_parts & _COPIES
    copies |= {part for name in first_parts for part in (name, f"{name}_ema") if f"{name}_ema" in first_parts}
    return copies | {name for name, beside in _BESIDE.items() if name in first_parts and copies & beside}


def is_averaged(name: str) -> bool:
    """Say whether a branch's name says that its weights are averages of those that were trained."""
    return bool(_EMA.search(name))


def rank(name: str) -> int:
    """Return the place of a branch among several: 0 preferred copies, 1 plain weights, 2 other copies and parts."""
    if any(pattern.search(name) for pattern, _ in _REASONS):
        return 0
    return 2 if _LATER.search(name) else 1


# Lightning's WeightAveraging puts the averaged weights into state_dict, and the trained ones here.
RAW = "current_model_state"


def reason(name: str) -> str:
    """Say why a branch comes first."""
    for pattern, text in _REASONS:
        if pattern.search(name):
            return text
    return "the largest set of plain weights"
