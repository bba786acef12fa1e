"""Find the files of a checkpoint: a file, an index of shards, or a folder that holds one of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from vitconv.errors import Ambiguous, BadFile, UsageError
from vitconv.io.contents import some
from vitconv.record import dataclass

_INDEX = ".index.json"
_MAX_INDEX = 64 << 20
_SHARD = re.compile(r"-\d{1,9}-of-(\d{1,9})\.(safetensors|bin|pt|pth)$")
_WEIGHTS = {".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".npz", ".onnx", ".pkl"}
# What trainers write beside the weights.
_BESIDE = {
    "training_args.bin",
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scheduler.bin",
    "scaler.pt",
    "rng_state.pth",
}
# What stands for the whole beside an index of that kind.
_SINGLE = {True: "model.safetensors", False: "pytorch_model.bin"}
# A distributed checkpoint of torch.
_PIECE, CATALOGUE = ".distcp", ".metadata"
# accelerate's, by rank or number.
_STATES = ("random_states_", "rng_state_", "sampler", "dl_state_dict", "custom_checkpoint_")
_USUAL = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")


@dataclass(frozen=True)
class Place:
    """The files to read, in order; the index, tensor name to file name, when one counts; and remarks.

    `rival` is a single file beside the index, which other readers may take instead.
    """

    files: tuple[Path, ...]
    index: dict[str, str] | None = None
    notes: tuple[str, ...] = ()
    rival: Path | None = None


def find(path: Path, *, ignore_index: bool) -> Place:
    """Return the files that make up the checkpoint at `path`.

    Raises:
        UsageError: there is no such file, several checkpoints are there, or it is one of several shards.
        BadFile: an index is damaged, or names files that are missing.
    """
    try:
        if path.is_dir():
            return _in_folder(path, ignore_index)
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error})") from error
    if path.name.endswith(_INDEX):
        return _beside(path.parent, path) if ignore_index else _by_index(path)
    if not ignore_index:
        _refuse_shard(path)
    return Place((path,))


def _refuse_shard(path: Path) -> None:
    """Refuse one of several shards, which holds a part of the network."""
    found = _SHARD.search(path.name)
    if found is None or int(found[1]) < 2:
        return
    index = path.name[: found.start()] + path.suffix + _INDEX
    name = f"{path.parent / index} or " if (path.parent / index).is_file() else ""
    raise UsageError(
        f"{path}: one shard of {int(found[1])}; name {name}the folder {path.parent}, which holds all"
        " (--ignore-index reads this file alone)"
    )


def find_distributed(path: Path) -> Path | None:
    """Return the folder of a distributed checkpoint of torch (DCP) if `path` is one, or its catalogue, else None.

    Raises:
        UsageError: it is one of the pieces of such a checkpoint.
        Ambiguous: the folder holds weights of another kind too.
    """
    if path.name.endswith(_PIECE):
        raise UsageError(f"{path}: one piece of a distributed checkpoint of torch (DCP); name its folder")
    try:
        if path.name == CATALOGUE and path.is_file():
            return path.parent
        if not (path / CATALOGUE).is_file():
            return _one_inside(path) if path.is_dir() else None
        names = {entry.name for entry in path.iterdir()}
    except (OSError, ValueError):
        return None
    others = [name for name in _USUAL if name in names] + sorted(name for name in names if name.endswith(_INDEX))
    if others and any(name.endswith(_PIECE) for name in names):
        raise Ambiguous(
            f"{path} holds a distributed checkpoint and {some(others)}: name the one that is meant,"
            f" {path / CATALOGUE} or {path / others[0]}"
        )
    return None if others else path


def _may_be_weights(name: str) -> bool:
    return Path(name).suffix in _WEIGHTS and name not in _BESIDE and not name.startswith((".", *_STATES))


def _one_inside(folder: Path) -> Path | None:
    """Return the only distributed checkpoint one level down that is no optimizer's, as accelerate leaves it."""
    entries = list(folder.iterdir())
    if any(_may_be_weights(entry.name) for entry in entries):
        return None
    inside = [entry for entry in entries if (entry / CATALOGUE).is_file() and not entry.name.startswith("optim")]
    return inside[0] if len(inside) == 1 else None


def _in_folder(folder: Path, ignore_index: bool) -> Place:
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".tmp"))
    indexes = [name for name in names if name.endswith(_INDEX)]
    # safetensors first, where a folder offers the same weights twice.
    indexes.sort(key=lambda name: (".safetensors" not in name, name))
    if ignore_index:
        return _beside(folder, folder / indexes[0] if indexes else None)
    weights = [name for name in names if _may_be_weights(name)]
    if indexes and (".safetensors" in indexes[0] or "model.safetensors" not in weights):
        place = _by_index(folder / indexes[0])
        unused = [name for name in weights if folder / name not in place.files]
        notes = [f"not read, as the index {indexes[0]} does not name them: {some(unused)}"] if unused else []
        single = _SINGLE[".safetensors" in indexes[0]]
        return Place(place.files, place.index, tuple(notes), folder / single if single in unused else None)
    for name in _USUAL:
        if name in weights:
            unused = [other for other in weights if other != name]
            notes = [f"read {name}; not read: {some(unused)}"] if unused else []
            return Place((folder / name,), notes=tuple(notes))
    _refuse_distributed(folder, names)
    from vitconv.io.deepspeed import find_deepspeed

    whole = find_deepspeed(folder, names)
    if whole is not None:
        return Place((whole[0],), notes=(whole[1],) if whole[1] else ())
    if len(weights) == 1:
        return Place((folder / weights[0],))
    if not weights:
        raise UsageError(f"{folder}: the folder holds no checkpoint; it holds {some(names) or 'nothing'}")
    if all(_SHARD.search(name) for name in weights):
        raise BadFile(
            f"{folder}: {len(weights)} shards but no index; fetch the *{_INDEX} file, or ignore it (--ignore-index) to"
            " take what the files hold"
        )
    raise UsageError(f"{folder}: the folder holds several checkpoints, name one of them: {some(weights, 8)}")


def _refuse_distributed(folder: Path, names: list[str]) -> None:
    if any(name.endswith(_PIECE) for name in names):
        raise BadFile(
            f"{folder}: pieces of a distributed checkpoint of torch (DCP) without the {CATALOGUE} file that says what"
            " they are: the save did not finish, or the file was not copied along, being hidden"
        )
    if "checkpoint" in names and any(name.endswith(".index") for name in names):
        raise BadFile(f"{folder}: a checkpoint of TensorFlow; save the weights as .npz or safetensors")


def _beside(folder: Path, index: Path | None) -> Place:
    """Return the shards that lie in a folder, whatever the index says."""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    suffixes = (".safetensors",) if index is None or ".safetensors" in index.name else (".bin", ".pt", ".pth")
    found = [name for name in names if name.endswith(suffixes) and name not in _BESIDE]
    shards = [name for name in found if _SHARD.search(name)]
    chosen = shards or found
    if not chosen:
        raise UsageError(f"{folder}: no files that end in {' or '.join(suffixes)}")
    notes = [f"the index was ignored: {len(chosen)} files were read"]
    if len(chosen) < len(found):
        notes.append(f"not read, being no shards: {some(name for name in found if name not in chosen)}")
    return Place(tuple(folder / name for name in chosen), notes=tuple(notes))


def _by_index(path: Path) -> Place:
    weight_map = _read_index(path)
    wild = sorted({name for name in weight_map.values() if not _is_plain(name)})
    if wild:
        raise BadFile(f"{path}: the index names files outside its folder: {some(wild)}; that is refused")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        others = sorted(entry.name for entry in path.parent.iterdir() if entry.name.endswith(_INDEX))
        other = next((f", or name {path.parent / name}" for name in others if name != path.name), "")
        raise BadFile(
            f"{path}: the index names {len(names)} files, {len(missing)} are missing: {some(missing)}. Fetch them, or"
            f" ignore the index (--ignore-index) if it is stale{other}"
        )
    return Place(tuple(path.parent / name for name in names), weight_map)


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0:") and len(name) < 256


def _read_index(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > _MAX_INDEX:
            raise BadFile(f"{path}: the index is larger than any such is")
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: the index is not valid JSON ({' '.join(str(error).split())[:120]})") from error
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise BadFile(f"{path}: the index holds no weight_map of tensor names to file names")
    if not weight_map:
        raise BadFile(f"{path}: the index lists no tensor")
    return weight_map
