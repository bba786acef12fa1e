"""The kinds of configuration files that are read, and the dialects for which some are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vitconv.configs import hf, hf_write, preprocessor, timm, timm_write, xformers, xformers_write
from vitconv.configs.found import Found
from vitconv.configs.request import Request, Written


@dataclass(frozen=True)
class Reader:
    """One kind of configuration: how it is known by its content, and how it is read.

    `read` takes the parsed value and the file's name for messages, and raises BadFile on a value of the wrong kind.
    """

    kind: str
    title: str
    accepts: Callable[[Any], bool]
    read: Callable[[Any, str], Found]


READERS: tuple[Reader, ...] = (
    Reader("timm", "timm config.json", timm.accepts, timm.read),
    Reader("hf", "transformers config.json", hf.accepts, hf.read),
    Reader("preprocessor", "transformers preprocessor_config.json", preprocessor.accepts, preprocessor.read),
    Reader("timm-args", "arguments of timm's training script", timm.accepts_args, timm.read_args),
    Reader("xformers", "xformers factory configuration", xformers.accepts, xformers.read),
)

_WRITERS: Mapping[str, Callable[[Request], Written]] = MappingProxyType(
    {
        "timm": timm_write.write,
        "hf-vit": hf_write.write,
        "hf-vit-5": hf_write.write,
        "hf-deit": hf_write.write,
        "hf-deit-5": hf_write.write,
        "xformers": xformers_write.write,
        "xformers-fused": xformers_write.write,
    }
)


def reader_of(raw: Any) -> Reader | None:
    """Return the reader that knows this content, or None."""
    return next((reader for reader in READERS if reader.accepts(raw)), None)


def writer_for(dialect: str) -> Callable[[Request], Written] | None:
    """Return the function that writes the configuration of a dialect's library, or None where it reads none."""
    return _WRITERS.get(dialect)
