"""A report as JSON: names sorted, values exact, the same report gives the same bytes.

The form, which `schema` and `schema_version` name:

- `schema`, `schema_version`, `title`, `command`: text, and a number for the version
- `verdict`: null, or `word`, `status` (ok, info, skip, warn, fail) and `sentence`
- `facts`: label to value, or label to an object with one value per side
- `sections`: a list of `key`, `title`, `status`, `rows` (column key to value, `status`, `detail`), `notes`,
  `charts`
- `environment`: label to value
- and what the verb adds at the top level

A number that is not finite is the text "NaN", "Infinity" or "-Infinity": strict readers refuse the bare
words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from vitconv.report.document import Fact, Report, Section


def as_json(report: Report) -> str:
    """Return the report as indented JSON that ends in a newline."""
    document = {
        "schema": report.schema,
        "schema_version": report.version,
        "title": report.title,
        "verdict": report.verdict and asdict(report.verdict),
        "facts": _facts(report.facts, report.side_keys or report.sides),
        "sections": [_section(section) for section in report.sections],
        "environment": _facts(report.environment, ()),
        "command": report.command,
        **report.data,
    }
    return json.dumps(_strict(document), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=True) + "\n"


def _facts(facts: tuple[Fact, ...], sides: tuple[str, ...]) -> dict[str, object]:
    if not sides:
        return {fact.label: fact.values[0] for fact in facts}
    return {fact.label: dict(zip(sides, fact.values, strict=True)) for fact in facts}


def _section(section: Section) -> dict[str, object]:
    keys = [column.key for column in section.columns]
    return {
        "key": section.key,
        "title": section.title,
        "status": section.status,
        "rows": [
            {**dict(zip(keys, row.cells, strict=True)), "status": row.status, "detail": row.detail}
            for row in section.rows
        ],
        "notes": section.notes,
        "charts": [asdict(chart) for chart in section.charts],
    }


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _strict(asdict(value))
    return value
