"""Names that another library respelled when it wrote a file, put back before the layout is looked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from vitconv.conversion.own_heads import own_heads
from vitconv.io.envelope import Branch

# transformers up to 4.47 renames every gamma to weight as it loads, for the sake of TensorFlow's norms; RADIO's files
# write it otherwise so that it does not.
_SCALE = re.compile(r"(?P<stem>(?:.*\.)?ls_?[12])\.(?P<end>weight|grandma)")
# TensorFlow's names of a norm's weight and bias.
_NORM = re.compile(r"(?P<stem>(?:.*\.)?\w*(?:norm|ln)\w*)\.(?P<end>gamma|beta)", re.IGNORECASE)
_USUAL = {"gamma": "weight", "beta": "bias"}
# transformers 5 writes the blocks of a ViTMSN with a classifier beside the `vit.` that holds them (5.24.0).
_OUTSIDE = re.compile(r"encoder\.layer\.\d+\..*")
_INSIDE = "vit.embeddings.patch_embeddings.projection.weight"
# mmsegmentation's VisionTransformer is mmpretrain's, with torch's attention inside of mmcv's; q, k and v lie alike.
_TORCHS = re.compile(r"(?P<stem>(?:.*\.)?layers\.\d+\.)attn\.attn\.(?P<end>in_proj_weight|in_proj_bias|out_proj\.\w+)")
_ITS = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias", "out_proj.weight": "proj.weight"}
_ITS |= {"out_proj.bias": "proj.bias"}
_SEGMENTS = (
    "mmsegmentation's configurations say the eps, 1e-6 in those that are published and 1e-5 where they are silent"
)


def respelled(branch: Branch, drop: Sequence[str] = ()) -> Branch:
    """Return the branch with LayerScale called gamma, a norm's two weight and bias, and the like.

    A classifier of the user's own that is to be left out, by one of the patterns `drop`, keeps its name.
    """
    segments = _segments(branch.tensors)
    heads, of_heads = own_heads(branch.tensors)
    if drop and heads:
        from vitconv.layout.edits.drop import matches

        if any(matches(pattern, key) for pattern in drop for key in heads):
            heads, of_heads = {}, ""
    names = {**_scales(branch.tensors), **_norms(branch.tensors), **_blocks(branch.tensors), **segments}
    told = f"names that another library respelled: {', '.join(f'{k} is read as {names[k]}' for k in _kinds(names))}"
    notes = [branch.note, *([told] if names else []), *([_SEGMENTS] if segments else []), of_heads]
    names |= heads
    if not names or len({names.get(key, key) for key in branch.tensors}) < len(branch.tensors):
        return branch
    return dataclasses.replace(
        branch,
        tensors={names.get(key, key): stored for key, stored in branch.tensors.items()},
        note="; ".join(filter(None, notes)),
    )


def _scales(keys: Mapping[str, object]) -> dict[str, str]:
    found = {key: m for key in keys if (m := _SCALE.fullmatch(key))}
    return {key: f"{m['stem']}.gamma" for key, m in found.items() if f"{m['stem']}.bias" not in keys}


def _norms(keys: Mapping[str, object]) -> dict[str, str]:
    found = {key: m for key in keys if (m := _NORM.fullmatch(key))}
    both = {m["stem"] for m in found.values() if m["end"] == "beta"}
    return {key: f"{m['stem']}.{_USUAL[m['end']]}" for key, m in found.items() if m["stem"] in both}


def _blocks(keys: Mapping[str, object]) -> dict[str, str]:
    if _INSIDE not in keys or any(key.startswith("vit.encoder.") for key in keys):
        return {}
    return {key: f"vit.{key}" for key in keys if _OUTSIDE.fullmatch(key)}


def _segments(keys: Mapping[str, object]) -> dict[str, str]:
    found = {key: m for key in keys if (m := _TORCHS.fullmatch(key)) and m["end"] in _ITS}
    return {
        k: f"{m['stem']}attn.{_ITS[m['end']]}" for k, m in found.items() if f"{m['stem']}ffn.layers.1.weight" in keys
    }


def _kinds(names: Mapping[str, str]) -> list[str]:
    """Return a few of the keys, one of each kind."""
    firsts: dict[str, str] = {}
    for key in names:
        firsts.setdefault(re.sub(r"\.\d+\.", ".#.", key), key)
    return list(firsts.values())[:4]
