"""The canonical layout itself, as the reference network holds it: q, k and v apart, tokens as plain vectors.

Source: vitconv/layout/canonical.py; vitconv/vit/model.py has it as its state dict.
"""

from vitconv.layout.canonical import SCHEMA
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, rule

_POOLER = "pool.dense.weight"
_NEEDED = {"blocks.{i}.attn.q.weight", "blocks.{i}.attn.out.weight", "blocks.{i}.mlp.down.weight"}

DIALECT = Dialect(
    name="canonical",
    title="vitconv's canonical layout",
    source="vitconv/layout/canonical.py",
    library="vitconv",
    entries=(
        *(
            r
            for name, slot in SCHEMA.items()
            if name != "head.weight"
            for r in rule(
                f"{name}: {' '.join(slot.axes)}", f"{name}: {' '.join(slot.axes)}", optional=name not in _NEEDED
            )
        ),
        # Behind a pooler the classifier is as wide as the pooler.
        Choice(
            "head",
            (
                Option("head", rule("head.weight: o d", "head.weight: o d", optional=True), without=(_POOLER,)),
                Option("pooler", rule("head.weight: o d2", "head.weight: o d2", optional=True), needs=(_POOLER,)),
            ),
        ),
    ),
)
