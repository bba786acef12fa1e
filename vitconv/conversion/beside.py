"""The configuration files that the target's library needs beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitconv.layout.plan import Plan


@dataclass(frozen=True)
class Beside:
    """Configuration files to write: {file name: contents}, or what is lacking to write them, in one line."""

    files: Mapping[str, Any] = field(default_factory=dict)
    lacking: str = ""
    kept: list[str] = field(default_factory=list)

    def check(self, folder: Path, *, owned: bool) -> None:
        """Note which files stand there already with other contents; they are left alone unless the folder is ours."""
        for name, contents in self.files.items():
            path = folder / name
            if not owned and path.exists() and path.read_text(encoding="utf-8") != _text(contents):
                self.kept.append(name)

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Write the files and return their paths."""
        written = []
        for name, contents in self.files.items():
            if name not in self.kept:
                path = folder / name
                temporary = folder / f".{name}.tmp"
                temporary.write_text(_text(contents), encoding="utf-8")
                temporary.replace(path)
                written.append(path)
        return tuple(written)


def _text(contents: Any) -> str:
    return contents if isinstance(contents, str) else json.dumps(contents, indent=2) + "\n"


def configs_for(p: Plan) -> Beside:
    """Return the configuration files of the target for this plan."""
    from vitconv.configs.write import write_configs

    variant = p.target.variant
    implied = {k: v for k, v in variant.implies.items() if not isinstance(v, tuple)}
    files, lacking = write_configs(
        variant.dialect.name, variant.names, p.sizes, p.network.depth, p.network.facts.filled(implied), p.network.shapes
    )
    return Beside(files, lacking)
