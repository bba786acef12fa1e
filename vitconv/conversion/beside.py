"""The configuration files that the target's library needs beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from vitconv.io.atomic import replacing
from vitconv.layout.plan import Plan
from vitconv.record import dataclass


@dataclass(frozen=True)
class Beside:
    """Configuration files to write: {file name: text}, or in one line why there are none; and what is to be said.

    `asked` says what is lacking to a caller of Python.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    lacking: str = ""
    notes: tuple[str, ...] = ()
    asked: str = ""

    def standing(self, folder: Path) -> tuple[str, ...]:
        """Return the names of those that stand in the folder already, with other contents."""
        return tuple(
            name
            for name, text in self.files.items()
            if (folder / name).exists() and (folder / name).read_text(encoding="utf-8", errors="replace") != text
        )

    def write(self, folder: Path, leave: tuple[str, ...]) -> tuple[Path, ...]:
        """Write all but those to be left alone, each whole or not at all, and return their paths."""
        written = []
        for name, text in self.files.items():
            if name in leave:
                continue
            path = folder / name
            with replacing(path) as fd, open(fd, "w", encoding="utf-8", newline="\n", closefd=False) as stream:
                stream.write(text)
            written.append(path)
        return tuple(written)


def others_in(folder: Path) -> tuple[str, ...]:
    """Return the names of configuration files of the libraries that lie in the folder."""
    return tuple(
        name for name in ("config.json", "preprocessor_config.json", "xformers.json") if (folder / name).exists()
    )


def configs_for(p: Plan, extra: Mapping[str, Any]) -> Beside:
    """Return the configuration files of the target's library for this plan.

    `extra` is what the source's configuration says besides facts: labels, crop, interpolation.
    """
    from vitconv.configs.kinds import writer_for
    from vitconv.configs.request import Config, Lacking, Request

    variant = p.target.variant
    writer = writer_for(variant.dialect.name)
    if writer is None:
        return Beside()
    implied = {k: v for k, v in variant.implies.items() if not isinstance(v, tuple)}
    dtypes = {t.dtype for t in p.targets if t.const is None}
    request = Request(
        dialect=variant.dialect.name,
        sizes={**p.sizes, "i": p.network.depth},
        facts=p.network.facts.filled(implied),
        names=frozenset(p.network.cells),
        keys=frozenset(t.key for t in p.targets),
        options=variant.taken,
        open=p.network.open,
        extra={**extra, "dtype": next(iter(dtypes))} if len(dtypes) == 1 else extra,
    )
    answer = writer(request)
    if isinstance(answer, Config):
        return Beside(answer.texts(), "", answer.notes)
    asked = answer.asked() if isinstance(answer, Lacking) else ""
    return Beside({}, f"config of {variant.dialect.library} {answer.line()}", asked=asked)
