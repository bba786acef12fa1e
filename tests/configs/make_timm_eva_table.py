"""Write vitconv/configs/timm_eva.json: what each Eva entrypoint of the installed timm builds.

Run: python tests/configs/make_timm_eva_table.py
No network and no weights: every entrypoint is called on the meta device with one block.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "vitconv" / "configs" / "timm_eva.json"


def main() -> None:
    TABLE.write_text(text_of(collect()))


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON, one model on a line."""
    rows = ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in sorted(table["models"].items()))
    return f'{{"timm": "{table["timm"]}",\n"models": {{\n{rows}\n}}}}\n'


def collect() -> dict[str, Any]:
    """Return {name: arguments that are not Eva's own defaults, the norm as [name, eps]}."""
    import timm
    import torch
    from timm.models import eva
    from timm.models._registry import _module_to_models

    original = eva.Eva.__init__
    defaults = {k: p.default for k, p in inspect.signature(original).parameters.items()}
    seen: list[dict[str, Any]] = []

    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        assert not args
        seen.append(dict(kwargs))
        several = isinstance(kwargs.get("num_kv_heads"), tuple)
        original(self, **{**kwargs, "depth": 1, **({"num_kv_heads": None} if several else {})})

    models: dict[str, Any] = {}
    eva.Eva.__init__ = recording
    try:
        for name in sorted(_module_to_models["eva"]):
            seen.clear()
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                timm.create_model(name)
            said = seen[-1]
            models[name] = {k: _plain(k, v) for k, v in said.items() if k not in defaults or v != defaults[k]}
    finally:
        eva.Eva.__init__ = original
    return {"timm": timm.__version__, "models": models}


def _plain(key: str, value: Any) -> Any:
    import torch
    from timm.layers import get_norm_layer

    if key == "norm_layer":
        layer = get_norm_layer(value)
        cls = layer.func if isinstance(layer, functools.partial) else layer
        return [cls.__name__.lower(), layer(8, device=torch.device("cpu")).eps]
    return list(value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    main()
