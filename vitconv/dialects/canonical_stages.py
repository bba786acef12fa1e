"""The canonical layout of stage-wise networks, as the reference network of that family holds it.

Source: vitconv/layout/canonical_stages.py; vitconv/vit/stages has it as its state dict.
"""

from vitconv.layout.canonical_stages import FAMILY, SCHEMA
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import rule

_NEEDED = {f"stages.{{s}}.blocks.{{i}}.{x}.weight" for x in ("attn.q", "attn.out", "mlp.up", "mlp.down")}
# First, since its blocks say how many there are.
_NAMES = sorted(SCHEMA, key=lambda name: name not in _NEEDED)

DIALECT = Dialect(
    name="canonical-stages",
    title="vitconv's canonical layout of stage-wise networks",
    source="vitconv/layout/canonical_stages.py",
    library="vitconv",
    family=FAMILY,
    staged=True,
    entries=tuple(
        r
        for name in _NAMES
        for r in rule(
            f"{name}: {' '.join(SCHEMA[name].axes)}",
            f"{name}: {' '.join(SCHEMA[name].axes)}",
            optional=name not in _NEEDED,
            layers="body" if "before" in SCHEMA[name].axes else "all",
            group="" if name in _NEEDED else name,
        )
    ),
)
