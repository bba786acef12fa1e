"""The layouts that hold a network whole, for a refusal to name."""

from __future__ import annotations

from vitconv.errors import VitconvError
from vitconv.layout.encode import encode
from vitconv.layout.match import Match
from vitconv.layout.network import Network
from vitconv.registry import DIALECTS, load_all

_OWN = "canonical"


def takers(source: Match, network: Network) -> str:
    """Return a line on the layouts of the family that lack nothing of a network and need nothing it has not."""
    facts = {**network.open, **network.facts.known()}
    found = [source.dialect.name]
    for name, dialect in load_all(DIALECTS).items():
        if dialect.family != source.dialect.family or name in (_OWN, *found):
            continue
        try:
            said = encode(dialect, network.shapes, network.depth, facts)
        except VitconvError:
            continue
        if not said.missing and not said.residue:
            found.append(name)
    return f"\n  layouts that hold this network whole: {', '.join(found)}"
