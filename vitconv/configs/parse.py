"""Parse a configuration file: JSON, or YAML by the safe loader only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitconv.errors import BadFile, UsageError

# A table of 21k labels takes 2 MB as JSON. The pure-Python YAML parser is slow, and no YAML configuration is large.
MAX_JSON = 32 << 20
MAX_YAML = 1 << 20
# An alias repeats a value in a few letters; written out, a file of a kilobyte can hold billions of them.
MAX_VALUES = 100_000


def parse_file(path: Path) -> Any:
    """Return the value in a .json, .yaml or .yml file; YAML tags that name objects are refused, never built.

    Raises:
        UsageError: no such file, or YAML without pyyaml installed.
        BadFile: too large, not text, not JSON or YAML.
    """
    yaml = path.suffix.lower() in (".yaml", ".yml")
    limit = MAX_YAML if yaml else MAX_JSON
    try:
        size = path.stat().st_size
        if size > limit:
            raise BadFile(f"{path}: {size} bytes, more than the {limit} that a configuration file may have")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: not text in UTF-8, expected {'YAML' if yaml else 'JSON'}") from None
    return parse_yaml(text, str(path)) if yaml else parse_json(text, str(path))


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadFile(f"{where}: not JSON: {e}") from None


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text with the safe loader."""
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{where}: reading YAML needs pyyaml: pip install 'vitconv[yaml]'") from None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _checked(root, where, {})
        return loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        first = " ".join(str(e).split())
        raise BadFile(f"{where}: not plain YAML: {first}") from None


def _checked(node: Any, where: str, sizes: dict[int, int]) -> int:
    """Return how many values a node is, aliases written out; a key that stands twice is refused, and so are too many.

    The safe loader takes the last of two values, so that one of them is lost in silence.
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise BadFile(f"{where}: line {node.start_mark.line + 1} holds itself by an alias; expected plain values")
        return sizes[id(node)]
    sizes[id(node)] = 0
    inner = node.value if isinstance(node.value, list) else []
    if inner and isinstance(inner[0], tuple):
        seen: dict[Any, int] = {}
        for key, _ in inner:
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in seen:
                raise BadFile(f"{where}: the key {key.value} stands twice, in lines {seen[name]} and {line}; keep one")
            seen[name] = line
        inner = [one for pair in inner for one in pair]
    total = 1 + sum(_checked(one, where, sizes) for one in inner)
    if total > MAX_VALUES:
        raise BadFile(f"{where}: more than {MAX_VALUES} values once its aliases are written out")
    sizes[id(node)] = total
    return total
