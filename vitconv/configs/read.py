"""Find the configuration files that belong to a checkpoint, and read what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vitconv.configs.found import Found, joined
from vitconv.configs.kinds import READERS, reader_of
from vitconv.configs.parse import MAX_YAML, parse_file
from vitconv.errors import BadFile, VitconvError

_NAMED = (
    "config.json",
    "preprocessor_config.json",
    "open_clip_config.json",
    "args.yaml",
    "config.yaml",
    "config.yml",
    "xformers.json",
    "xformers.yaml",
    "xformers.yml",
)
# Files of any other name are only looked into for the factory's words, and only this many.
_MOST_OTHERS = 16
_WORDS = (b"multi_head_config", b"feedforward_config")


def facts_beside(path: Path) -> Found:
    """Read the configuration files beside a checkpoint file, or inside its folder.

    Names that libraries use, `<name of the checkpoint>.json|yaml|yml`, and any YAML with the words of xformers'
    factory. A file that is damaged or of an unknown kind is a note, never an error: nobody named it.
    """
    parts: list[Found] = []
    for candidate in _candidates(path):
        try:
            raw = parse_file(candidate)
            reader = reader_of(raw)
            if reader is None:
                parts.append(Found(notes=(f"{candidate.name}: of no kind that is read here; nothing taken from it",)))
            else:
                parts.append(reader.read(raw, candidate.name))
        except VitconvError as e:
            parts.append(Found(notes=(f"{candidate.name} is ignored: {e}",)))
    return joined(parts)


def facts_from_file(path: Path) -> Found:
    """Read one configuration file that was named, whatever its name is.

    Raises:
        UsageError: no such file, or YAML without pyyaml.
        BadFile: damaged, of no known kind, or a value of the wrong kind.
    """
    raw = parse_file(path)
    reader = reader_of(raw)
    if reader is None:
        kinds = ", ".join(r.title for r in READERS)
        raise BadFile(f"{path}: of no kind that is read here; these are: {kinds}")
    return reader.read(raw, path.name)


def _candidates(path: Path) -> Iterator[Path]:
    folder = path if path.is_dir() else path.parent
    names = list(_NAMED)
    if not path.is_dir():
        names += [f"{path.stem}{ext}" for ext in (".json", ".yaml", ".yml")]
    named = [folder / name for name in dict.fromkeys(names)]
    # An index of shards is part of the checkpoint, and says nothing of the network.
    yield from (p for p in named if p.is_file() and not p.name.endswith(".index.json"))
    others = sorted(p for ext in ("*.yaml", "*.yml") for p in folder.glob(ext) if p not in named and p.is_file())
    yield from (p for p in others[:_MOST_OTHERS] if _speaks_xformers(p))


def _speaks_xformers(path: Path) -> bool:
    try:
        if path.stat().st_size > MAX_YAML:
            return False
        text = path.read_bytes()
    except OSError:
        return False
    return all(word in text for word in _WORDS)
