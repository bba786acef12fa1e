"""The kinds of configuration files that are read, and the dialects for which some are written.

A kind's module is imported when a file has to be read or written: most checkpoints have none beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vitconv.record import dataclass

if TYPE_CHECKING:
    from vitconv.configs.found import Found
    from vitconv.configs.request import Request, Written


@dataclass(frozen=True)
class Reader:
    """One kind of configuration: how it is known by its content, and how it is read.

    `module` is the module below `vitconv.configs` that holds the functions `accepts` and `read`, each with `suffix`
    after its name: `accepts(value)` says whether the parsed value is of this kind; `read(value, name)` takes the
    file's name for messages, and raises BadFile on a value of the wrong kind.
    """

    kind: str
    title: str
    module: str
    suffix: str = ""

    def accepts(self, raw: Any) -> bool:
        """Say whether the parsed value is of this kind."""
        return bool(self._function("accepts")(raw))

    def read(self, raw: Any, name: str) -> Found:
        """Return what the parsed value of the file `name` says."""
        found: Found = self._function("read")(raw, name)
        return found

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(f"vitconv.configs.{self.module}"), name + self.suffix)
        return function


READERS: tuple[Reader, ...] = (
    Reader("timm", "timm config.json", "timm"),
    Reader("hf", "transformers config.json", "hf"),
    Reader("preprocessor", "transformers preprocessor_config.json", "preprocessor"),
    Reader("timm-args", "arguments of timm's training script", "timm", "_args"),
    Reader("open-clip", "open_clip_config.json", "open_clip"),
    Reader("xformers", "xformers factory configuration", "xformers"),
)

# Each module has a function `write`.
_WRITERS: Mapping[str, str] = MappingProxyType(
    {
        "timm": "timm_write",
        "beit": "timm_beit_write",
        "timm-eva": "timm_eva_write",
        "timm-parallel": "timm_write",
        "timm-swin": "timm_swin_write",
        "timm-swinv2": "timm_swin_write",
        "timm-naflex": "timm_naflex_write",
        "timm-naflex-eva": "timm_naflex_write",
        "hf-vit": "hf_write",
        "hf-vit-5": "hf_write",
        "hf-deit": "hf_write",
        "hf-deit-5": "hf_write",
        "hf-dinov2": "hf_models_write",
        "hf-dinov2-5": "hf_models_write",
        "hf-dinov2-registers": "hf_models_write",
        "hf-dinov2-registers-5": "hf_models_write",
        "hf-dinov3": "hf_models_write",
        "hf-dinov3-5": "hf_models_write",
        "hf-mae": "hf_models_write",
        "hf-mae-5": "hf_models_write",
        "hf-beit": "hf_models_write",
        "hf-beit-5": "hf_models_write",
        "hf-ijepa": "hf_models_write",
        "hf-ijepa-5": "hf_models_write",
        "hf-clip-vision": "hf_models_write",
        "hf-siglip": "hf_models_write",
        "hf-siglip2": "hf_models_write",
        "hf-swin": "hf_swin",
        "hf-swin-5": "hf_swin",
        "hf-swinv2": "hf_swin",
        "hf-pvt": "hf_pvt",
        "hf-pvtv2": "hf_pvt",
        "xformers": "xformers_write",
        "xformers-fused": "xformers_write",
    }
)


def reader_of(raw: Any) -> Reader | None:
    """Return the reader that knows this content, or None."""
    return next((reader for reader in READERS if reader.accepts(raw)), None)


def writer_for(dialect: str) -> Callable[[Request], Written] | None:
    """Return the function that writes the configuration of a dialect's library, or None where it reads none."""
    name = _WRITERS.get(dialect)
    if name is None:
        return None
    write: Callable[[Request], Written] = import_module(f"vitconv.configs.{name}").write
    return write
