"""Write docs/checks.md from the checks themselves: `python -m vitconv.checks.base.page docs/checks.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from vitconv.checks.base.check import COSTS, Check
from vitconv.checks.base.recipe import KEYS
from vitconv.checks.base.run import STATIC, all_checks

_HEAD = """# Checks

`vitconv check CKPT | SIZE | HOST:MODEL | RECIPE.yaml` runs these, cheap to dear. Made from the checks themselves by
`python -m vitconv.checks.base.page docs/checks.md`; a test fails when it is stale."""


def page() -> str:
    """Return the page."""
    checks = all_checks()
    table = ["| check | what it answers | cost |", "|---|---|---|"]
    table += [f"| [`{c.id}`](#{c.id}) | {c.title} | {c.cost} |" for c in checks]
    costs = [
        f"- **{name}**: {text}{'' if name in STATIC else '; with --all or --only'}" for name, text in COSTS.items()
    ]
    keys = [f"- `{name}`: {text}" for name, text in KEYS.items()]
    recipe = "\n".join(["## recipe.yaml", "", "A recipe scripts a check. Its keys:", "", *keys])
    parts = [_HEAD, "\n".join(table), "\n".join(costs), *(_one(c) for c in checks), recipe]
    return "\n\n".join(parts) + "\n"


def _one(check: Check) -> str:
    lines = [f"## {check.id}", "", check.title, ""]
    lines += [f"- **Measures:** {check.measures}.", f"- **Threshold:** {check.threshold}."]
    lines.append(f"- **What to do:** {check.advice}.")
    if check.limits:
        lines.append(
            f"- **Limits, which a recipe can change:** {', '.join(f'{k} {v:g}' for k, v in check.limits.items())}."
        )
    if check.source:
        lines.append(f"- **Source:** {check.source}.")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
