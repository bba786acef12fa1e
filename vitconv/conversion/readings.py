"""Further readings of a branch: prefixes off, blocks out of chunks, and keys beside the network set aside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from vitconv.conversion.asides import without_dropped, without_mask_token, without_training_parts
from vitconv.io.contents import some
from vitconv.io.envelope import Branch, Step, loosen

# DINOv2's training keeps blocks in chunks for FSDP; the second number is that of the block in the whole network.
_CHUNK = re.compile(r"^blocks\.(\d+)\.(\d+)\.")


def readings(branch: Branch, drop: tuple[str, ...]) -> Iterator[Branch]:
    """Yield the branch, and then what may be read in it; a reading that needs less taken off comes first."""
    yield branch
    yield from slashed(branch)
    towers = [branch, *without_text_tower(branch)]
    yield from towers[1:]
    parts = [branch, *(part for tower in towers[::-1] for part in loosen(tower))]
    parts += [flat for part in parts for flat in unchunked(part)]
    yield from parts[1:]
    for part in loosen(branch):
        yield from without_text_tower(part)
    fewer = [less for part in parts for less in without_training_parts(part)]
    yield from fewer
    for part in (*parts, *fewer):
        yield from without_mask_token(part)
    for part in parts if drop else ():
        less, used = without_dropped(part, drop)
        if used:
            yield less


def flat_names(keys: Iterable[str]) -> dict[str, str]:
    """Return {key: its name out of its chunk}; empty when there are no chunks of one network."""
    found = {key: _CHUNK.match(key) for key in keys}
    home: dict[str, str] = {}
    for m in filter(None, found.values()):
        if home.setdefault(m[2], m[1]) != m[1]:
            return {}
    return {key: f"blocks.{key.split('.', 2)[2]}" if m else key for key, m in found.items()} if home else {}


def unchunked(branch: Branch) -> Iterator[Branch]:
    """Yield the branch with its blocks out of their chunks, if it has chunks of one network."""
    names = flat_names(branch.tensors)
    if not names:
        return
    found = {key: m for key in branch.tensors if (m := _CHUNK.match(key))}
    home = {m[2]: m[1] for m in found.values()}
    where = {
        c: tuple(j for j, k in enumerate(branch.tensors) if k in found and found[k][1] == c) for c in home.values()
    }
    steps = tuple(Step("infix", f"blocks.{c}.", keys) for c, keys in where.items())
    tensors = {names[k]: t for k, t in branch.tensors.items()}
    note = f"the blocks are in {len(where)} chunks, numbered throughout: taken out of them"
    yield replace(
        branch,
        tensors=tensors,
        steps=(*branch.steps, *steps),
        note="; ".join(x for x in (branch.note, note) if x),
    )


# A text tower beside a vision tower: transformers, OpenAI's CLIP and open_clip; and CLIP's three numbers.
_TEXT = re.compile(
    r"^(text_model\.|text\.|text_projection|logit_(scale|bias)$|token_embedding\.|ln_final\.|transformer\.resblocks\."
    r"|positional_embedding$|input_resolution$|context_length$|vocab_size$|attn_mask$)"
)


def without_text_tower(branch: Branch) -> Iterator[Branch]:
    """Yield the branch without the text tower of a network of two towers, if it is one."""
    if not any(k.startswith(("visual.", "vision_model.")) for k in branch.tensors):
        return
    gone = [k for k in branch.tensors if _TEXT.match(k)]
    if gone:
        note = f"a text tower, no part of the vision tower, is left aside: {some(gone)}"
        yield replace(
            branch,
            tensors={k: t for k, t in branch.tensors.items() if k not in set(gone)},
            note="; ".join(x for x in (branch.note, note) if x),
            left=(*branch.left, *gone),
            whole=branch.with_left(gone),
        )


def text_keys(branch: Branch) -> list[str]:
    """Return those of the unclaimed keys that are a text tower's beside the vision tower that the branch is."""
    towers = {"visual", "vision_model"}
    if not any(towers & set(step.text.split(".")) for step in branch.steps if step.kind == "prefix"):
        return []
    return [key for key in branch.unclaimed if _TEXT.match(key)]


_FLAX = re.compile(r"^(?P<prefix>.*?)(Transformer/|embedding/)")


def slashed(branch: Branch) -> Iterator[Branch]:
    """Yield the branch without what stands before the names of a flax network, such as `params/img/`."""
    prefixes = {m["prefix"] for key in branch.tensors if (m := _FLAX.match(key))}
    for prefix in sorted(prefixes - {""}):
        chosen = {k: t for k, t in branch.tensors.items() if k.startswith(prefix)}
        left = [k for k in branch.tensors if k not in chosen]
        step = Step("prefix", prefix)
        note = f"only {prefix}* was read; left aside: {some(left)}" if left else ""
        yield replace(
            branch,
            tensors={k.removeprefix(prefix): t for k, t in chosen.items()},
            steps=(step,) if not branch.steps else (*branch.steps, step),
            note="; ".join(x for x in (branch.note, note) if x),
            left=(*branch.left, *left),
            whole=branch.with_left(left),
        )
