"""What is known about a checkpoint beside its tensors: told by the caller, recorded in the file, or configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused, UsageError, shown
from vitconv.io.source import Checkpoint
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics, semantics_from_json
from vitconv.record import dataclass

if TYPE_CHECKING:
    from vitconv.configs.found import Found

FACTS = "vitconv.facts"


@dataclass(frozen=True)
class Wishes:
    """What the caller knows or wants about a checkpoint.

    Attributes:
        from_: dialect name, when the caller insists.
        branch: name of the branch, when there are several.
        facts: facts told by the caller, which win over every other source.
        choices: options of the source dialect, {choice: option}.
        axes: axis sizes, {axis: size}.
        config: a configuration file to read facts from; None looks beside the checkpoint.
        ignore_index: read the shards that are there and not the index.
        drop: patterns of source keys that are no part of the network and may be left out.
        adapter: a LoRA adapter of PEFT to merge into the weights.
        bits: the float dtype that 16-bit integers are the bits of, "BF16" or "F16".
    """

    from_: str | None = None
    branch: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    config: Path | None = None
    ignore_index: bool = False
    drop: tuple[str, ...] = ()
    adapter: Path | None = None
    bits: str | None = None


@dataclass(frozen=True)
class Known:
    """Facts, where each comes from, notes, and what a configuration beside the checkpoint says."""

    facts: Semantics
    sources: Mapping[str, str]
    notes: tuple[str, ...]
    beside: Found | None


def gather(checkpoint: Checkpoint, wishes: Wishes, *, without: str = "", instead: Found | None = None) -> Known:
    """Gather facts: those told by the caller win, then the file's metadata, then a configuration beside it.

    `without` leaves the configuration out and is the note that says why; `instead` is what is left of several.
    """
    layers: list[tuple[str, Semantics]] = [("--set", Semantics(**wishes.facts))]
    notes: list[str] = [without] if without else []
    if FACTS in checkpoint.metadata:
        try:
            layers.append(("metadata", semantics_from_json(checkpoint.metadata[FACTS])))
        except UsageError as e:
            notes.append(f"warning: the facts in the metadata of {checkpoint.path} are not used: {shown(str(e))[:200]}")
    beside = instead
    if not without:
        from vitconv.configs.read import facts_beside, facts_from_file

        beside = facts_from_file(wishes.config) if wishes.config else facts_beside(Path(checkpoint.path))
    if beside is not None:
        layers.append((beside.source, beside.facts))
        notes += beside.notes
    facts, sources = Semantics(), dict[str, str]()
    for name, layer in layers:
        for fact, (kept, other) in facts.differences(layer).items():
            notes.append(f"{fact}: {kept} ({sources[fact]}) is used, not {other} ({name})")
        sources |= {k: name for k in layer.known() if k not in sources}
        facts = facts.filled(layer)
    return Known(facts, sources, tuple(notes), beside)


def contradictions(told: Mapping[str, Any], sizes: Mapping[str, int]) -> list[str]:
    """Return why facts that the caller told cannot be true of tensors with these axis sizes."""
    wrong = []
    heads, a, n, c = told.get("heads"), sizes.get("a"), sizes.get("n"), sizes.get("c")
    if heads and a and a % heads:
        wrong.append(f"heads={heads} does not divide the attention width {a}")
    grid = told.get("grid")
    if grid and n and grid[0] * grid[1] != n:
        wrong.append(f"grid={_by(grid)} has {grid[0] * grid[1]} places, the position table {n}")
    image, p = told.get("image_size"), sizes.get("p")
    if image and p and n:
        rows, columns = image[0] // p, image[1] // sizes.get("q", p)
        if rows * columns != n:
            wrong.append(
                f"image_size={_by(image)} makes a grid of {rows}x{columns}, {rows * columns} places, the position"
                f" table has {n}"
            )
    for name in ("mean", "std"):
        values = told.get(name)
        if values and c and len(values) not in (1, c):
            wrong.append(f"{name} has {len(values)} values, images have {c} channels")
    return wrong


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def authored(match: Match, facts: Semantics) -> Semantics:
    """Fill in what the code of the layout's author takes, where nothing else says it.

    Where its norms are all of one eps they are one class, so an eps that was told for the blocks is that of the others.
    """
    author = dict(match.variant.author)
    one = author.get("norm_eps")
    if facts.norm_eps is not None and one is not None:
        author |= {k: facts.norm_eps for k in ("final_norm_eps", "embed_norm_eps") if author.get(k) == one}
    return facts.filled(author)


def customary(match: Match, facts: Semantics) -> tuple[Semantics, list[str]]:
    """Fill in what every published network of these tensors has, and say so."""
    names = {part for b in match.bound for part in b.parts}
    more: dict[str, Any] = {}
    said: list[str] = []
    for doubt in match.dialect.doubts:
        if doubt.about(names):
            said += [doubt.note] if doubt.note else []
            more |= {k: v for k, v in doubt.usual.items() if getattr(facts, k) is None}
    notes = [
        f"{name}: taken as {value}, as in every published network of {match.dialect.title} with these tensors; where it"
        f" is not, say --set {name}=..."
        for name, value in more.items()
    ]
    return facts.filled(more), said + notes


def proven(match: Match, facts: Semantics) -> tuple[Semantics, list[str]]:
    """Fill in what the tensors themselves prove, which is the head count where an axis holds it.

    Raises:
        Refused: another head count is known.
    """
    s = match.sizes
    if "rows" in s and facts.grid is None:
        facts = facts.filled({"grid": (s["rows"], s["columns"])})
    a = s.get("a", 0)
    width = 4 * s["f"] if "f" in s else s.get("e", 0)
    held = a // width if width and a % width == 0 else None
    heads = held or s.get("h")
    if heads is None:
        return facts, []
    if facts.heads not in (None, heads):
        raise Refused(f"the tensors have {heads} heads (an axis holds them), but heads={facts.heads} was said")
    return facts.filled({"heads": heads}), [] if facts.heads else [f"heads: {heads}, which the tensors hold"]


def released(match: Match, facts: Semantics) -> tuple[Semantics, list[str]]:
    """Fill in what follows from the release of the library that wrote the file."""
    if facts.release is None or match.dialect.library != "xformers":
        return facts, []
    from vitconv.configs.xformers_release import facts_from_release

    placement = facts.norm_placement or match.variant.implies.get("norm_placement")
    derived = facts_from_release(facts.release, placement if isinstance(placement, str) else None, triton=None)
    notes = [f"{k}: {v} in xformers {facts.release}" for k, v in derived.known().items() if getattr(facts, k) is None]
    return facts.filled(derived), notes
