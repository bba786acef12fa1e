"""The networks that a name stands for: the usual sizes, and every model name of timm's VisionTransformer family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from vitconv.configs.timm_table import DEFAULTS, arguments, models

# Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, table 1; tiny and small: Touvron et al., DeiT, 2021, table 1.
_USUAL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vit_tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
        "vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
        "vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
        "vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
        "vit_huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "patch_size": 14},
    }
)


@dataclass(frozen=True)
class Size:
    """One network, by the arguments of timm's VisionTransformer (all of them, defaults included)."""

    name: str
    args: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """Return the sizes in a line."""
        a = self.args
        patch, image = (_pair(a[key]) for key in ("patch_size", "img_size"))
        return (
            f"width {a['embed_dim']}, {a['depth']} blocks, {a['num_heads']} heads, patch {patch},"
            f" image {image}, {a['num_classes'] or 'no'} classes"
        )

    def changed(self, more: Mapping[str, Any]) -> Size:
        """Return a copy with other arguments; when only the width changes, heads keep their width where they can."""
        args = {**self.args, **more}
        if "embed_dim" in more and "num_heads" not in more:
            head = self.args["embed_dim"] // self.args["num_heads"]
            if more["embed_dim"] % head == 0:
                args["num_heads"] = more["embed_dim"] // head
        return replace(self, args=args)


class _Sizes(Mapping[str, Size]):
    """{name: size}: the usual ones first, then timm's names; the table of names is read when it is needed."""

    def __getitem__(self, name: str) -> Size:
        if name in _USUAL:
            return Size(name, {**DEFAULTS, **_USUAL[name]})
        args = arguments(name)
        if args is None:
            raise KeyError(name)
        return Size(name, args)

    def __iter__(self) -> Iterator[str]:
        yield from _USUAL
        yield from models()

    def __len__(self) -> int:
        return len(_USUAL) + len(models())


SIZES: Mapping[str, Size] = _Sizes()


def _pair(value: Any) -> str:
    sides = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"
