"""Weights that are not whole in one tensor: quantised ones with scales beside them, and factors of a product."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from vitconv.errors import Refused
from vitconv.io.contents import some

# bitsandbytes (8 and 4 bits), fp8 of DeepSeek, compressed-tensors and ComfyUI, optimum-quanto, GPTQ and AWQ.
_SCALE = re.compile(
    r"(?P<stem>.*)\.(SCB|scale_weight|weight_(scale(_inv|_2)?|zero_point|packed|format)|weight\.(absmax|quant_map|nested_absmax"
    r"|quant_state\..+|_scale|_data|_shift)|qweight|qzeros|_packed_params\..+)"
)
# torch's weight norm, old and new; parametrizations; pruning and spectral norm; the length and direction (r, theta) of
# CLIP-fine-tune.
_FACTOR = re.compile(
    r"(?P<stem>.*)\.(?P<what>(?P<of>\w+?)_(g|v|orig)|parametrizations\.(?P<par>\w+)\.original[01]?|theta)"
)


def refuse_quantised(keys: Collection[str], drop: Sequence[str]) -> None:
    """Refuse weights that mean something only with the scales beside them, whatever is dropped but the whole module.

    Raises:
        Refused: such scales are among the keys.
    """
    scales = {key: m["stem"] for key in keys if (m := _SCALE.fullmatch(key))}
    if not scales:
        return
    kept = _kept(keys, drop)
    beside = {key.rpartition(".")[0] for key in kept if key not in scales}
    held = [key for key, stem in scales.items() if key in kept or stem in beside]
    if held:
        raise Refused(
            f"the weights are quantised: {len(held)} tensors hold the scales, or the packed numbers, of the weights"
            f" beside them ({some(held)}), without which they are other numbers. Dequantise them with the library that"
            " wrote them, save the floats, and convert those"
        )


def _kept(keys: Collection[str], drop: Sequence[str]) -> set[str]:
    if not drop:
        return set(keys)
    # Here, since few conversions drop anything and the edits take time to import.
    from vitconv.layout.edits.drop import matches

    return {key for key in keys if not any(matches(x, key) for x in drop)}


def factors(keys: Collection[str]) -> str:
    """Return a line for a message on weights that are kept as factors or under a mask, or nothing."""
    found = [
        key
        for key in keys
        if (m := _FACTOR.fullmatch(key)) and f"{m['stem']}.{m['of'] or m['par'] or 'weight'}" not in keys
    ]
    if not found:
        return ""
    return (
        f"\n  kept as factors or under a mask (weight norm, spectral norm, pruning): {some(found)}; make one tensor of"
        " each with torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm or prune.remove (of theta"
        " and r the product r theta / |theta|, by rows), and save again"
    )
