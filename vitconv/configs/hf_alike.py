"""Read what a config.json of a transformers model without a reader of its own states of its vision network.

Only what stands there is taken, under the names that transformers' vision models share: what the code takes when the
file is silent is not known here. Source: huggingface/transformers 5.24.0, configuration_*.py of the models that keep
the layouts of CLIP and ViT (metaclip_2, chinese_clip, altclip, git, clipseg, owlvit, x_clip, flava, vit_hybrid).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import FROM_HF
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.layout.semantics import Semantics

_NEEDED = ("hidden_size", "num_attention_heads", "num_hidden_layers")


def read(raw: Mapping[str, Any], where: str) -> Found | None:
    """Return what is stated of the one vision network in it, or None when there is none or several.

    Raises:
        BadFile: an eps that is no number.
    """
    found = {where: raw} if _describes(raw) else {}
    if not found:
        found = {f"{where}: {key}": value for key, value in raw.items() if _describes(value)}
    if len(found) != 1:
        return None
    ((where, raw),) = found.items()
    fields = Fields(raw, where)
    eps = fields.number("layer_norm_eps", least=0.0) if "layer_norm_eps" in fields else None
    act, patches, images = raw.get("hidden_act"), _pair(raw.get("patch_size")), _pair(raw.get("image_size"))
    facts = Semantics(
        heads=raw["num_attention_heads"],
        norm_eps=eps,
        final_norm_eps=eps,
        activation=FROM_HF.get(act) if isinstance(act, str) else None,
    )
    if patches and images:
        facts = facts.replaced({"grid": (images[0] // patches[0], images[1] // patches[1]), "image_size": images})
    sizes = {"d": raw["hidden_size"], "i": raw["num_hidden_layers"]}
    sizes |= {"p": patches[0], "q": patches[1]} if patches else {}
    kind = raw.get("model_type")
    note = f"{where}: of model_type {kind!r} only what is stated is taken: heads, eps, activation, grid"
    odd = isinstance(act, str) and act not in FROM_HF
    refusals = (f"{where}: hidden_act {act!r} has no name here",) if odd else ()
    return Found(facts, sizes, {}, (f"{where} (transformers {kind})",), (note,), refusals)


def _describes(raw: Any) -> bool:
    if not isinstance(raw, Mapping) or _pair(raw.get("patch_size")) is None:
        return False
    return all(isinstance(raw.get(key), int) and raw[key] > 0 for key in _NEEDED)


def _pair(value: Any) -> tuple[int, int] | None:
    pair = [value, value] if isinstance(value, int) else value
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(x, int) and x > 0 for x in pair):
        return None
    return (pair[0], pair[1])
