"""Keys that are in a training file and are no part of the network that is carried: left aside, and always said."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from vitconv.conversion.linear_probe import probes
from vitconv.io.envelope import Branch
from vitconv.layout.match import collapse

# What training throws away, by the first two parts of its keys: heads of DINO and iBOT (dino_head, ibot_head),
# projectors and predictors (MoCo-v3, SimSiam, BYOL, I-JEPA), prototypes and queues (SwAV, MoCo), losses, metrics; and
# blocks beside a BEiT-2, with their head, through which its class token learns.
_PART = re.compile(
    r"((student|teacher|momentum|online|target|dino|ibot|koleo|simclr|simsiam|swav|byol|moco|mocov3|mim|ssl)_?(head|heads)"
    r"|(\w+_)?(projectors?|predictors?|prototypes?|(projection|prediction|contrastive|simclr)_(head|mlp))(_momentum|_ema)?"
    r"|cls_pt_(layers|norm|lm_head)"
    r"|queue|queue_\w+|(\w+_)?loss(es)?|loss_\w+|criterion|criterions|(train|val|valid|test)_(\w+_)?(acc\w*|metrics?|loss|auroc|f1)"
    r"|(\w+_)?metrics?|accuracy)"
)
# DINO's and iBOT's head is `head.mlp` and `head.last_layer`, SwAV's `head.projection_head` and `head.prototypes`.
# iBOT's second head for patches is `mlp2` and `last_layer2` where it is not shared.
_HEAD = re.compile(r"^(?:\w+\.)?head\.(mlp2?|last_layer2?|projection_head|prototypes)\.")
# What stands for a masked patch while a network is trained: iBOT, SimMIM, BEiT, DINOv2. No function needs it.
_MASK = re.compile(r"masked_embed|mask_token|mask_embed(ding)?")
# MoCo's queue of keys, and MoBY's two, in the places of buffers.
_QUEUE = re.compile(r"queue(\d+|_\w+)?")
# MoCo-v3's projector takes the classifier's place: linear layers and BatchNorm in turn, in a list.
_LISTED_HEAD = re.compile(r"^((?:\w+\.)?(?:head|fc|classifier|proj)\.)\d+\.running_mean$")
# One number each: how far the training is and what it reached.
_COUNTER = re.compile(
    r"(\w*_)?(steps?|epochs?|iter|iters|iteration|iterations|updates|num_batches_tracked|n_averaged|initted)|best_\w+"
    r"|(\w+_)?(acc|acc1|acc5|accuracy)"
)
_LIST = re.compile(r"^(head|fc)\.\d+\.weight$")


def training_keys(branch: Branch, keys: Iterable[str] | None = None) -> list[str]:
    """Return those of the keys, by default all of the branch, that are of training and no part of a network."""
    keys = list(branch.tensors if keys is None else keys)
    probed = {f"{stem}." for stem in probes(set(keys))}
    listed = {m[1] for key in keys if (m := _LISTED_HEAD.match(key))} - probed
    moco = {"base_encoder", "momentum_encoder", "encoder_q", "encoder_k"} & set(branch.name.split("."))
    layers = [key for key in keys if _LIST.match(key)]
    if moco and len(layers) > 1:
        # MoCo-v2's has no norm in it.
        listed |= {f"{key.partition('.')[0]}." for key in layers}
    return [key for key in keys if _is_training(branch, key) or any(key.startswith(head) for head in listed)]


def _is_training(branch: Branch, key: str) -> bool:
    parts = key.split(".")
    if any(_PART.fullmatch(part) for part in parts[:-1][:2]) or _HEAD.match(key):
        return True
    if _QUEUE.fullmatch(key):
        return True
    stored = branch.tensors.get(key)
    # What is left aside is no longer among the tensors, and is then judged by its name.
    return (stored is None or stored.numel == 1) and len(parts) <= 2 and bool(_COUNTER.fullmatch(parts[-1]))


def without_training_parts(branch: Branch) -> Iterator[Branch]:
    """Yield the branch without the heads and counters of training, if it has any beside a network."""
    gone = training_keys(branch)
    if gone and len(gone) < len(branch.tensors):
        yield _without(branch, gone, "of training (a head, a loss or a counter), no part of the network, left aside")


def without_mask_token(branch: Branch) -> Iterator[Branch]:
    """Yield the branch without its mask token, for layouts that have no place for one; nobody has consented to it."""
    gone = [key for key in branch.tensors if _MASK.fullmatch(key)]
    if gone:
        fewer = _without(branch, gone, "a mask token of pre-training, which changes no output, beside the network")
        yield dataclasses.replace(fewer, unclaimed=(*branch.unclaimed, *gone))


def without_dropped(branch: Branch, patterns: Sequence[str]) -> tuple[Branch, tuple[str, ...]]:
    """Return the branch without the keys that match `patterns`, and those patterns that matched."""
    from vitconv.layout.edits.drop import matches

    names = {k: (k, t.key) for k, t in branch.tensors.items()}
    used = tuple(x for x in patterns if any(matches(x, n) for both in names.values() for n in both))
    gone = [k for k, both in names.items() if any(matches(x, n) for x in used for n in both)]
    return (_without(branch, gone, "dropped with your consent") if gone else branch), used


def _without(branch: Branch, gone: Sequence[str], why: str) -> Branch:
    left = set(gone)
    note = f"{why}: {', '.join(collapse(gone))}"
    return dataclasses.replace(
        branch,
        tensors={k: t for k, t in branch.tensors.items() if k not in left},
        note="; ".join(x for x in (branch.note, note) if x),
        left=(*branch.left, *gone),
        whole=branch.with_left(gone),
    )
