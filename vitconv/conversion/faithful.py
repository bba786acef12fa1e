"""Faithful to whom: facts of the author's own code, or those that the target's library takes when nothing is said.

The author of ViT's flax files computes the tanh form of GELU with eps 1e-6; transformers' ViT takes the erf form and
1e-12 where its configuration is silent. Both are called the same network. The author's facts are the default.
"""

from __future__ import annotations

from vitconv.conversion.recognise import AUTHOR, Recognised, with_facts
from vitconv.layout.dialect import Dialect

AUTHORS, LIBRARY = "author", "library"
CHOICES = (AUTHORS, LIBRARY)


def settled(source: Recognised, target: Dialect, whom: str) -> tuple[Recognised, tuple[str, ...]]:
    """Return the source with the facts that are asked for, and what is to be said of it.

    Facts that a file, a configuration or the caller states are never changed.
    """
    open_ = {k for k, where in source.sources.items() if where.startswith(AUTHOR)}
    here = source.facts.known()
    differ = {k: v for k, v in target.usual.items() if k in open_ and here.get(k) != v}
    if not differ:
        return source, ()
    author = source.match.dialect.title
    said = ", ".join(f"{k} {here[k]} for {author}, {v} for {target.title}" for k, v in differ.items())
    if whom == LIBRARY:
        note = f"faithful to the library of the target, not to the author: {said}"
        return with_facts(source, differ, f"{target.library}'s default (--faithful library)"), (note,)
    return source, (f"faithful to the author: {said}; --faithful library takes the latter",)
