"""Run the experiments and write their page: `python -m vitconv.bench.experiments run|checks|page RESULTS [PAGE]`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vitconv.bench.experiments.cell import training, verdicts
from vitconv.bench.experiments.studies import STUDIES


def main(words: list[str]) -> None:
    """Run what is not in the results yet; `run` trains, `checks` looks before training, `page` writes the page."""
    what, folder, *rest = words
    torch.set_num_threads(1)
    if what == "page":
        from vitconv.bench.experiments.page import page

        Path(rest[0]).write_text(page(Path(folder)), encoding="utf-8")
        return
    job, part = (training, "trainings") if what == "run" else (verdicts, "checks")
    began = time.monotonic()
    for study in rest or STUDIES:
        path, cells = Path(folder) / f"{study}-{part}.json", STUDIES[study]()
        trained = read(Path(folder) / f"{study}-trainings.json")
        for i, cell in enumerate(cells):
            found = read(path)
            # Checks stand beside trainings: nothing is looked at that was not trained.
            if cell.id not in found and (what == "run" or cell.id in trained):
                found[cell.id] = job(cell)
                write(path, found)
                word = found[cell.id].get("verdict", "")
                sys.stderr.write(f"{time.monotonic() - began:6.0f} s  {i + 1} of {len(cells)}  {cell.id}: {word}\n")


def read(path: Path) -> dict[str, Any]:
    """Return the results, or none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the results; the file is whole at every moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
