"""Adapters of PEFT (LoRA and DoRA): what their configuration says, which tensors they hold, and what cannot be merged.

Layout: repository huggingface/peft, `src/peft/tuners/lora/config.py`, `layer.py`, `dora.py` and
`utils/save_and_load.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitconv.errors import BadFile, Refused, UsageError, shown
from vitconv.io.tensor import Stored

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
_PART = re.compile(r"^(?P<module>.+)\.lora_(?P<side>A|B)(\.(?P<name>[^.]+))?\.(?P<kind>weight|bias)$")
# Of one adapter PEFT drops its name and ".weight", so that a name may stand here or nothing.
_MAGNITUDE = re.compile(r"^(?P<module>.+)\.lora_magnitude_vector(\.(?P<name>[^.]+))??(\.weight)?$")
_MAX_CONFIG = 1 << 22
# Ways of starting an adapter that change the base too: the released base is then not the one it was trained on.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class Config:
    """What an adapter_config.json says about scaling."""

    path: Path
    rank: int | None
    alpha: float
    rslora: bool
    ranks: Mapping[str, Any] = field(default_factory=dict)
    alphas: Mapping[str, Any] = field(default_factory=dict)
    dora: bool = False

    def scale(self, module: str, rank: int) -> float:
        """Return the factor on B A for a module whose adapter has this rank: alpha / r, or alpha / sqrt(r)."""
        alpha = float(_pattern(self.alphas, module, self.alpha))
        return alpha / (rank**0.5 if self.rslora else rank)

    def expected(self, module: str) -> int | None:
        """Return the rank that the configuration gives a module."""
        found = _pattern(self.ranks, module, self.rank)
        return int(found) if found is not None else None


@dataclass(frozen=True)
class Adapter:
    """The tensors of an adapter.

    Attributes:
        pairs: {module: (A, B)}.
        whole: tensors that it replaces, by bare key.
        magnitudes: {module: the norms of the rows of its merged weight}, of DoRA.
        biases: {module: what is added to its bias, times the scale}.
    """

    pairs: Mapping[str, tuple[Stored, Stored]]
    whole: Mapping[str, Stored]
    magnitudes: Mapping[str, Stored] = field(default_factory=dict)
    biases: Mapping[str, Stored] = field(default_factory=dict)


def _pattern(patterns: Mapping[str, Any], module: str, usual: Any) -> Any:
    for key, value in patterns.items():
        # As PEFT's get_pattern_key: the pattern ends the module's path.
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return usual


def read_config(path: Path) -> Config:
    """Read an adapter_config.json, or that of a folder.

    Raises:
        UsageError: there is none.
        BadFile: damaged.
        Refused: a kind of adapter that is not merged here; the message says which and what to do.
    """
    file = path / CONFIG if path.is_dir() else path if path.suffix == ".json" else path.with_name(CONFIG)
    try:
        if file.stat().st_size > _MAX_CONFIG:
            raise BadFile(f"{file}: larger than any such configuration is")
        raw = json.loads(file.read_text("utf-8"))
    except OSError as error:
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder; expected an adapter of PEFT") from error
        raise UsageError(f"{file}: an adapter needs its {CONFIG}, which says alpha ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file}: not valid JSON") from error
    if not isinstance(raw, dict):
        raise BadFile(f"{file}: not a JSON object")
    _check_kind(raw, file)
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if not isinstance(alpha, int | float) or not (rank is None or (type(rank) is int and rank > 0)):
        raise BadFile(f"{file}: r={rank!r:.40} and lora_alpha={alpha!r:.40}: expected a positive rank and a number")
    ranks, alphas = raw.get("rank_pattern") or {}, raw.get("alpha_pattern") or {}
    if not isinstance(ranks, dict) or not isinstance(alphas, dict) or not _numbers([*ranks.values(), *alphas.values()]):
        raise BadFile(f"{file}: rank_pattern and alpha_pattern must give numbers by module")
    return Config(file, rank, float(alpha), bool(raw.get("use_rslora")), ranks, alphas, bool(raw.get("use_dora")))


def _numbers(values: Iterable[object]) -> bool:
    return all(isinstance(value, int | float) and value > 0 for value in values)


def _check_kind(raw: Mapping[str, Any], file: Path) -> None:
    kind = str(raw.get("peft_type", "")).rpartition(".")[2]
    if kind.upper() != "LORA":
        raise Refused(f"{file}: an adapter of kind {shown(kind)!r}; only LORA is merged: merge it with PEFT first")
    unmerged = {
        "fan_in_fan_out": "its weights are stored transposed (Conv1D), as those of no layout here",
        "layer_replication": "it repeats layers of the base",
        "megatron_config": "its base is cut up over ranks",
        "use_qalora": "its input is pooled in groups",
        "use_bdlora": "its factors are blocks on a diagonal",
        "alora_invocation_tokens": "it acts on some tokens alone",
        "arrow_config": "it chooses among adapters by token",
        "monteclora_config": "its factors are drawn at random",
        "kasa_config": "it cuts the base's singular values",
        "target_parameters": "it is for parameters that are no module's weight",
        "trainable_token_indices": "it trains rows of an embedding",
    }
    for name, why in unmerged.items():
        if raw.get(name):
            raise Refused(f"{file}: {name} is set: {why}; merge it with PEFT (merge_and_unload) and convert that")
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise Refused(
            f"{file}: started by {shown(start)}, which changed the base too; convert the adapter to plain LoRA with"
            " PEFT (save_pretrained with path_initial_model_for_weight_conversion), or merge it there"
        )


def is_adapter_key(key: str) -> bool:
    """Say whether a key belongs to an adapter of PEFT."""
    return ".lora_" in key or key.startswith("lora_")


def adapter_of(tensors: Mapping[str, Stored], where: str) -> Adapter:
    """Sort the tensors of an adapter file, by bare key.

    Raises:
        Refused: some are of a kind that is not merged, or half of a pair is missing.
    """
    sides: dict[str, dict[str, Stored]] = {}
    whole: dict[str, Stored] = {}
    magnitudes: dict[str, Stored] = {}
    biases: dict[str, Stored] = {}
    names: set[str] = set()
    odd: list[str] = []
    for key, stored in tensors.items():
        bare = key.removeprefix(PREFIX)
        match = _PART.match(bare)
        magnitude = _MAGNITUDE.match(bare)
        if match is not None and match["kind"] == "weight":
            sides.setdefault(match["module"], {})[match["side"]] = stored
            names |= {match["name"]} if match["name"] else set()
        elif match is not None and match["side"] == "B":
            biases[match["module"]] = stored
        elif magnitude is not None:
            magnitudes[magnitude["module"]] = stored
        elif is_adapter_key(bare):
            odd.append(key)
        elif ".original_module." not in bare:
            # What stands beside a module that was trained whole is out of use.
            whole[_unsaved(bare)] = stored
    if odd:
        raise Refused(
            f"{where}: tensors of a kind that is not merged: {', '.join(map(shown, odd[:4]))}; merge with PEFT first"
        )
    if len(names) > 1:
        raise Refused(f"{where}: several adapters ({', '.join(map(shown, sorted(names)))}); keep one of them")
    halves = [module for module, held in sides.items() if held.keys() != {"A", "B"}]
    if halves:
        raise Refused(f"{where}: only one of A and B for {', '.join(map(shown, halves[:4]))}; the file is not whole")
    pairs = {module: (held["A"], held["B"]) for module, held in sides.items()}
    return Adapter(pairs, whole, magnitudes, biases)


def _unsaved(key: str) -> str:
    """Return the key of what was trained whole: `head.modules_to_save.default.weight`, or a bias beside LoRA."""
    return re.sub(r"\.modules_to_save\.([^.]+\.)?", ".", key).replace(".base_layer.", ".")


def split(tensors: Mapping[str, Stored]) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Split the state dict of a whole PEFT model into (base, adapter), both by keys of their own."""
    base: dict[str, Stored] = {}
    adapter: dict[str, Stored] = {}
    for key, stored in tensors.items():
        bare = key.removeprefix(PREFIX)
        if is_adapter_key(bare) or ".modules_to_save." in bare:
            adapter[bare] = stored
        else:
            base[bare.replace(".base_layer.", ".").replace(".original_module.", ".")] = stored
    return base, adapter
