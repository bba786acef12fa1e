"""What was told, or what a configuration says, against what the keys of the file prove."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitconv.layout.match import Match

if TYPE_CHECKING:
    from vitconv.configs.found import Found
    from vitconv.conversion.facts import Known

# Facts that keys may prove and that nobody may tell otherwise.
_PROVED = ("norm_placement", "kv_normalised")


def told_against_keys(told: Mapping[str, Any], match: Match) -> list[str]:
    """Return why facts that the caller told cannot be true of a file of xformers' factory with these keys."""
    if match.dialect.library != "xformers":
        return []
    wrong = [
        f"{fact}={_word(told[fact])}: the keys say {_word(proved)}"
        for fact in _PROVED
        if fact in told and not _among(told[fact], proved := match.variant.implies.get(fact))
    ]
    if told.get("release"):
        wrong += _of_other_releases(told["release"], match)
    return wrong


def beside_against_keys(beside: Found, match: Match) -> tuple[str, ...]:
    """Say where a configuration describes a network of other norms than the keys: then it is of another network."""
    said, proved = beside.facts.norm_placement, match.variant.implies.get("norm_placement")
    if said is None or _among(said, proved):
        return ()
    return (f"norm_placement: {said} in {beside.source}, {_word(proved)} in the tensors",)


def foreign_files(beside: Found | None, match: Match) -> tuple[dict[str, tuple[str, ...]], Found | None]:
    """Return {file that describes another network: why}, each file by itself, and what the others say together."""
    sizes = {**match.sizes, "i": match.depth}
    parts = () if beside is None else beside.parts or (beside,)
    wrong = [(*part.disagreements(sizes), *beside_against_keys(part, match)) for part in parts]
    # Beside a stranger, a file without a size to tell it by may be the stranger's too.
    left = [part for part, why in zip(parts, wrong, strict=True) if not why and part.sizes]
    if not any(wrong):
        return {}, beside
    from vitconv.configs.found import joined

    rest = joined(left) if left else None
    return {part.source: why for part, why in zip(parts, wrong, strict=True) if why}, rest


def of_this_epoch(known: Known, match: Match) -> Known:
    """Leave out what a configuration of xformers' later releases says of keys and values, where the file is older.

    Such a configuration proves that keys and values were normalised; written anew for an old file, it does not.
    """
    if match.dialect.name != "xformers-fused" or known.beside is None:
        return known
    older = "kv_normalised" in known.sources and known.sources["kv_normalised"] == known.beside.source
    if not older or match.variant.implies.get("norm_placement") != "pre" or "kv_normalised" in match.variant.implies:
        return known
    note = (
        f"{known.beside.source} says that keys and values are normalised; the file is of 0.0.11 or older, and up to "
        f"0.0.9 they were not: say --set release="
    )
    sources = {k: v for k, v in known.sources.items() if k != "kv_normalised"}
    facts = dataclasses.replace(known.facts, kv_normalised=None)
    return dataclasses.replace(known, facts=facts, sources=sources, notes=(*known.notes, note))


# {(dialect, choice, option): first and last release, and what shows it}.
_RELEASES: Mapping[tuple[str, str, str], tuple[tuple[int, int], tuple[int, int], str]] = {
    ("xformers-fused", "mlp", "FusedMLP-buffers"): ((4, 0), (7, 0), "biases of FusedMLP in buffers"),
    ("xformers-fused", "mlp", "FusedMLP-no-bias"): ((8, 0), (9, 0), "FusedMLP without biases, q, k and v fused"),
    ("xformers", "mlp", "FusedMLP"): ((12, 0), (26, 0), "FusedMLP"),
    ("xformers", "mlp", "MLP-nvfuser"): ((12, 0), (21, 0), "nvFuser's MLP"),
    ("xformers-fused", "embedding", "class+patches"): ((11, 0), (11, 0), "the factory's own embeddings"),
    ("xformers-fused", "embedding", "patches"): ((11, 0), (11, 0), "the factory's own embeddings"),
    ("xformers-fused", "embedding", "no-position"): ((11, 0), (11, 0), "the factory's own embeddings"),
}
_EPOCHS = {
    "xformers-fused": ((1, 0), (11, 0), "q, k and v are fused"),
    "xformers": ((12, 0), (28, 0), "q, k and v are apart"),
}


def _of_other_releases(release: str, match: Match) -> list[str]:
    from vitconv.configs.xformers_release import release_number

    name, number = match.dialect.name, release_number(release)
    spans = [_EPOCHS[name]] if name in _EPOCHS else []
    spans += [span for (d, c, o), span in _RELEASES.items() if d == name and match.variant.names.get(c) == o]
    return [
        f"release={release}: {what}, as in 0.0.{first[0]}" + (f" to 0.0.{last[0]}" if last != first else "")
        for first, last, what in spans
        if not first <= number <= last
    ][:1]


def _among(value: Any, proved: Any) -> bool:
    return proved is None or value == proved or (isinstance(proved, tuple) and value in proved)


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return " or ".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
