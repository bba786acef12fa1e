"""For the test suites of others: assert that two networks compute the same.

from vitconv.testing import assert_parity

def test_my_vit_is_timms():
    assert_parity("timm:vit_tiny_patch16_224", MyViT())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import nn

    from vitconv.hosts.base.host import Built
    from vitconv.parity.stage import Row
    from vitconv.parity.verdict import Result

    Side: TypeAlias = "str | Path | nn.Module | Built | Callable[[], nn.Module]"

# Rows shown of every stage that is off.
SHOWN = 3


def assert_parity(
    a: Side,
    b: Side,
    *,
    weights: str | Path | None = None,
    precisions: Sequence[str] = ("fp64", "fp32"),
    profile: str = "default",
    seed: int = 0,
    **options: Any,
) -> Result:
    """Assert that B computes what A, the baseline, computes, forward and backward; return all that was found.

    Args:
        a: a network, a function without arguments that makes one, or what `vitconv verify` takes: a checkpoint,
            HOST:MODEL, HOST:MODEL@CHECKPOINT, python:MODULE:FACTORY.
        b: the other side, likewise.
        weights: one checkpoint for both sides.
        precisions: those at which the numerics are judged; float64 always runs, and decides whether the function is
            the same.
        profile: the rules to judge by, default or strict.
        seed: of probe weights and probe images.
        options: what else `vitconv.verify` takes: set_a, set_b, dialect_a, inputs, device, skip, ...

    Raises:
        AssertionError: they differ, or nothing was proved: a side is vacuous or random, facts are missing, a stage
            that is needed was skipped. The text has the figures, where they part, and the cause.
        UsageError: something asked for does not exist.
    """
    from vitconv.errors import Refused
    from vitconv.parity.verify import verify

    __tracebackhide__ = True
    try:
        result = verify(
            _side(a), _side(b), weights=weights, precisions=precisions, profile=profile, seed=seed, **options
        )
    except Refused as e:
        raise AssertionError(f"undecided: nothing was compared: {e}") from e
    if result.verdict != "same":
        raise AssertionError(failure(result))
    return result


def _side(side: Any) -> Any:
    """Call what makes a network; a network can be called, too, and is left alone."""
    from torch import nn

    if isinstance(side, (str, Path, nn.Module)) or not callable(side):
        return side
    made = side()
    if not isinstance(made, nn.Module):
        raise TypeError(f"{side!r} made {type(made).__name__}; expected a torch.nn.Module")
    return made


def failure(result: Result) -> str:
    """Return why two sides are not the same, in lines: figures of what is off, where they part, and the cause."""
    lines = [f"{result.verdict}: {result.reason}", f"  A: {result.spec_a}", f"  B: {result.spec_b}"]
    for name, (x, y) in result.facts_a.differences(result.facts_b).items():
        lines.append(f"  fact {name}: {x} in A, {y} in B")
    if result.where is not None:
        lines.append(f"where: {result.where.sentence}")
    cause = result.cause
    if cause is not None and cause.found:
        titles = " and ".join(getattr(cause, "titles", ()) or cause.found)
        lines.append(f"cause: {titles} ({', '.join(cause.found)})")
        lines.append(f"  largest relative gap: {cause.before:.3g} as they are, {cause.after:.3g} with this put in")
    elif cause is not None:
        lines.append(f"cause: not found; {getattr(cause, 'reason', '')}".rstrip("; "))
    for s in result.stages:
        if s.why_skipped is not None:
            lines.append(f"{s.key}: skipped: {s.why_skipped}")
            continue
        bad = s.failures
        lines += [f"{s.key}: {_row(r)}" for r in bad[:SHOWN]]
        lines += [f"{s.key}: and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    return "\n".join(lines)


def _row(row: Row) -> str:
    figures = {k: v for k, v in row.values.items() if isinstance(v, float)}
    said = ", ".join(f"{k} {v:.3g}" for k, v in figures.items())
    return f"{row.name}: {row.detail}" + (f" [{said}]" if said else "")
