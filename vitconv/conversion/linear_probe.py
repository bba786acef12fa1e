"""Classifiers of a linear probe: a BatchNorm without weights before the linear layer, as MAE trains and saves them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from vitconv.errors import Refused, shown

_MEAN = ".0.running_mean"


def probes(keys: Collection[str]) -> Iterable[str]:
    """Yield the name of every list of a BatchNorm without weights and one linear layer: `head`, `module.head`."""
    for key in keys:
        stem = key.removesuffix(_MEAN)
        if stem == key or f"{stem}.1.weight" not in keys or f"{stem}.0.weight" in keys:
            continue
        if not any(k.startswith(f"{stem}.") and k[len(stem) + 1 :].split(".")[0] not in ("0", "1") for k in keys):
            yield stem


def refuse_linear_probe(tensors: Mapping[str, object], drop: Sequence[str]) -> None:
    """Refuse a linear probe's classifier, which no layout has a place for, unless it is to be left out.

    Raises:
        Refused: says how it becomes one linear layer.
    """
    for stem in probes(tensors):
        from vitconv.layout.edits.drop import matches

        if any(matches(pattern, f"{stem}.1.weight") for pattern in drop):
            continue
        name = shown(stem)
        raise Refused(
            f"{name} is a BatchNorm without weights and a linear layer, as MAE's linear probe trains them, and no"
            f" layout has a place for the mean and variance. Folded it is one layer: W = {name}.1.weight /"
            f" sqrt(running_var + eps), b = {name}.1.bias - W running_mean, with eps=1e-6 in main_linprobe.py; save it"
            f" as {name}.weight and {name}.bias. Or leave the classifier out: --drop '{name}.*'"
        )
