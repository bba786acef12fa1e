"""The canonical layout itself, as the reference network holds it: q, k and v apart, tokens as plain vectors.

Source: vitconv/layout/canonical.py; vitconv/vit/model.py has it as its state dict.
"""

from vitconv.layout.canonical import SCHEMA
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import rule

_NEEDED = {"blocks.{i}.attn.q.weight", "blocks.{i}.attn.out.weight", "blocks.{i}.mlp.down.weight"}

DIALECT = Dialect(
    name="canonical",
    title="vitconv's canonical layout",
    source="vitconv/layout/canonical.py",
    library="vitconv",
    entries=tuple(
        r
        for name, slot in SCHEMA.items()
        for r in rule(f"{name}: {' '.join(slot.axes)}", f"{name}: {' '.join(slot.axes)}", optional=name not in _NEEDED)
    ),
)
