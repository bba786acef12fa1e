"""The answer: same, differs or undecided, and why; never "same" because nothing spoke against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vitconv.layout.semantics import Semantics
from vitconv.parity.probe import RESIZED
from vitconv.parity.stage import AS_ON_CUDA, OWN_AUTOCAST, Stage
from vitconv.parity.where import Where

Word = Literal["same", "differs", "undecided"]
EXIT: Mapping[Word, int] = {"same": 0, "differs": 1, "undecided": 3}

# Without one of these nothing is proved: a key bias is seen by accounting alone, a dead network by sanity alone.
NEEDED = ("accounting", "sanity", "function")


@dataclass(frozen=True)
class Result:
    """The whole of a verification.

    Attributes:
        verdict: the word; reason: the sentence.
        spec_a, spec_b: what was asked for.
        facts_a, facts_b: what each side computes.
        stages: all of them, those that were skipped too.
        where: where they part, or None.
        cause: what `vitconv.parity.explain` found, or None.
        environment: versions, device, threads, seed.
        command: what to type to have this again, or "".
        profile: the name of the rules.
    """

    verdict: Word
    reason: str
    spec_a: str
    spec_b: str
    facts_a: Semantics
    facts_b: Semantics
    stages: tuple[Stage, ...]
    where: Where | None = None
    cause: Any = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    profile: str = "default"

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs, 3 undecided."""
        return EXIT[self.verdict]

    def stage(self, key: str) -> Stage:
        """Return the stage of this key.

        Raises:
            KeyError: there is none.
        """
        for s in self.stages:
            if s.key == key:
                return s
        raise KeyError(key)


def judge(stages: Sequence[Stage]) -> tuple[Word, str]:
    """Return the verdict on the stages, and the reason."""
    ran = {s.key: s for s in stages if s.why_skipped is None}
    differs = [(s, r) for s in stages for r in s.failures if r.blame == "differs"]
    undecided = [(s, r) for s in stages for r in s.failures if r.blame == "undecided"]
    # What this machine cannot show takes nothing from a difference that it does show.
    unseen = [r for _, r in undecided if r.name.endswith(AS_ON_CUDA)]
    undecided = [(s, r) for s, r in undecided if r not in unseen]
    # A baseline that does not repeat differs from itself, so a difference from it says nothing.
    loose = next((r for _, r in undecided if r.name == "A: repeats"), None)
    if loose is not None:
        return "undecided", f"{loose.name}: {loose.detail}"
    if undecided and not any(s.key == "function" for s, _ in differs):
        r = undecided[0][1]
        return "undecided", f"{r.name}: {r.detail}"
    if differs:
        return "differs", _difference(ran, [s.key for s, _ in differs], differs[0][1].name, differs[0][1].detail)
    if unseen:
        return "undecided", f"{unseen[0].name}: {unseen[0].detail}"
    lacking = [key for key in NEEDED if key not in ran]
    function = next((s for s in stages if s.key == "function"), None)
    if lacking == ["function"] and function is not None and "why" in ran:
        named = ran["why"].rows[0].values["found"]
        if named:
            # No run shows it by itself; all of them together do.
            said = " and ".join(named)
            return (
                "differs",
                f"not compared in float64 ({function.why_skipped}); over many inputs its difference is that of {said}",
            )
        return "undecided", _below(ran, function.why_skipped or "")
    if lacking:
        return "undecided", f"nothing speaks against it, but {', '.join(lacking)} did not run, so nothing is proved"
    numerics = [s for s in ran.values() if s.key.startswith("numerics")]
    said = (
        f", and the same numerics in {', '.join(s.key.removeprefix('numerics-') for s in numerics)}" if numerics else ""
    )
    more = "" if numerics else "; no other precision was looked at"
    left_out = [f"{s.key} ({s.why_skipped})" for s in stages if s.key.startswith("numerics") and s.key not in ran]
    if left_out:
        more += f"; left out: {', '.join(left_out)}"
    for row in ran["sanity"].rows:
        if row.name.endswith(OWN_AUTOCAST):
            more += f"; {row.name.partition(':')[0]}: {row.detail}"
    if any(r.name == "weights" and r.status == "warn" for r in ran["accounting"].rows):
        more += "; with probe weights in both: the weights that the networks came with differ"
    return "same", f"the same function in float64, forward and backward{said}{more}"


def _below(ran: Mapping[str, Stage], why_skipped: str) -> str:
    """Say what is known of a side that exists in lower precision only: never that it is the same."""
    text = f"the function was not compared in float64 ({why_skipped}), and rounding hides what is smaller than itself"
    why = ran.get("why")
    limit = None if why is None else next((r for r in why.rows if r.name == "detection limit"), None)
    return text if limit is None else f"{text}: {len(limit.values['undetectable'])} faults {limit.detail}"


def _difference(ran: Mapping[str, Stage], failing: list[str], name: str, detail: str) -> str:
    function = ran.get("function")
    if failing[0] == "accounting" and function is not None:
        probe = [r for r in function.rows if r.name.startswith("probe")]
        if probe and all(r.status == "ok" for r in probe):
            return f"with the same weights they compute the same function, but {name}: {detail}"
    if "function" in failing:
        wrong = [r for r in ran["function"].failures if r.blame == "differs"]
        bad = wrong[0]
        if all(RESIZED in r.name for r in wrong):
            known = "the same function at the size of images they were made for, and not at another"
            return f"{known}: {bad.name}: {bad.detail}"
        shared = (
            next((r for r in ran["accounting"].failures if r.name.startswith("shared in")), None)
            if "accounting" in ran
            else None
        )
        more = "" if shared is None else f"; {shared.name}: {shared.detail}"
        return f"not the same function: {bad.name}: {bad.detail}{more}"
    if failing[0].startswith("numerics"):
        precision = failing[0].removeprefix("numerics-")
        exact = function is not None and not function.failures
        text = "the same function in float64, and not" if exact else "the function was not compared in float64; not"
        return f"{text} the same numerics in {precision}: {name}: {detail}"
    return f"{name}: {detail}"
