"""Write vitconv/configs/timm_naflex.json: what each NaFlexVit entrypoint of the installed timm builds.

Run: python tests/configs/make_timm_naflex_table.py
No network and no weights: every entrypoint is called on the meta device with one block.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "vitconv" / "configs" / "timm_naflex.json"


def main() -> None:
    TABLE.write_text(text_of(collect()))


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON, one model on a line."""
    rows = ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in sorted(table["models"].items()))
    return f'{{"timm": "{table["timm"]}",\n"models": {{\n{rows}\n}}}}\n'


def collect() -> dict[str, Any]:
    """Return {name: fields of the configuration that are not its own defaults}."""
    import timm
    import torch
    from timm.models import naflexvit
    from timm.models._registry import _module_to_models

    original = naflexvit.NaFlexVit.__init__
    defaults = dataclasses.asdict(naflexvit.NaFlexVitCfg())
    seen: list[dict[str, Any]] = []

    def recording(self: Any, cfg: Any = None, **kwargs: Any) -> None:
        seen.append(dataclasses.asdict(cfg) | {k: v for k, v in kwargs.items() if k == "num_classes"})
        original(self, dataclasses.replace(cfg, depth=1), **kwargs)

    models: dict[str, Any] = {}
    naflexvit.NaFlexVit.__init__ = recording
    try:
        for name in sorted(_module_to_models["naflexvit"]):
            seen.clear()
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                timm.create_model(name)
            models[name] = {k: v for k, v in seen[-1].items() if k not in defaults or v != defaults[k]}
    finally:
        naflexvit.NaFlexVit.__init__ = original
    return {"timm": timm.__version__, "models": models}


if __name__ == "__main__":
    main()
