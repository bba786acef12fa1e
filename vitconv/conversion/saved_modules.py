"""Modules that PEFT trained whole (`modules_to_save`): the trained copies are taken, the originals left aside."""

from __future__ import annotations

import dataclasses
import re

from vitconv.errors import Refused, shown
from vitconv.io.envelope import Branch
from vitconv.layout.match import collapse

_SAVED = re.compile(r"(?P<stem>.+)\.modules_to_save\.(?P<name>[^.]+)\.(?P<end>.+)")
_ORIGINAL = ".original_module."


def with_saved_modules(branch: Branch) -> Branch:
    """Return the branch with the copies that PEFT computes with under the names of the modules they stand for.

    Raises:
        Refused: there are several adapters, and no rule says which is meant.
    """
    found = {key: m for key in branch.tensors if (m := _SAVED.fullmatch(key))}
    if not found:
        return branch
    names = dict.fromkeys(m["name"] for m in found.values())
    if len(names) > 1:
        held = ", ".join(map(shown, names))
        raise Refused(
            f"{shown(branch.name)} holds modules that PEFT trained whole for several adapters ({held}), of which one is"
            " active: keep that one's (set_adapter, then merge_and_unload), or leave the others out of the file"
        )
    gone = [key for key in branch.tensors if _ORIGINAL in key]
    now = {key: f"{m['stem']}.{m['end']}" for key, m in found.items()}
    tensors = {now.get(key, key): stored for key, stored in branch.tensors.items() if key not in gone}
    if len(tensors) < len(branch.tensors) - len(gone):
        twice = [key for key, name in now.items() if name in branch.tensors]
        raise Refused(f"{', '.join(collapse(twice))}: trained whole by PEFT, and there without modules_to_save too")
    note = f"trained whole by PEFT (modules_to_save) and taken: {', '.join(collapse(now.values()))}"
    note += f"; left aside, since PEFT does not compute with them: {', '.join(collapse(gone))}" if gone else ""
    return dataclasses.replace(
        branch,
        tensors=tensors,
        note="; ".join(x for x in (branch.note, note) if x),
        left=(*branch.left, *gone),
        whole=branch.with_left(gone),
    )
