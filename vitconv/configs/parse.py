"""Parse a configuration file: JSON, or YAML by the safe loader only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitconv.errors import BadFile, UsageError

# A table of 21k labels takes 2 MB as JSON. The pure-Python YAML parser is slow, and no YAML configuration is large.
MAX_JSON = 32 << 20
MAX_YAML = 1 << 20


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
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        first = " ".join(str(e).split())
        raise BadFile(f"{where}: not plain YAML: {first}") from None
