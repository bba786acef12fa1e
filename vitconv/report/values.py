"""Write one value as text: counts in groups, bytes and seconds with a unit, numbers with three digits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from vitconv.report.document import Form, Value

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def written(value: Value, form: Form = "text") -> str:
    """Return the value as a person reads it; None is "-", a truth value is yes or no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return printable(", ".join(value))
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return _FORMS[form](value)


def printable(text: str) -> str:
    """Return the text with control characters written out.

    Names come out of files that strangers made: one with an escape sequence must not drive a terminal, and
    XML cannot hold it.
    """
    return _UNSEEN.sub(lambda match: ascii(match.group())[1:-1], text)


def is_numeric(form: Form) -> bool:
    """Say whether a column of this form is set to the right."""
    return form not in ("text", "code")


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _count(value: float) -> str:
    return f"{value:,}".replace(",", " ")


def _bytes(value: float) -> str:
    # Decimal units, as disks and downloads have them.
    if abs(value) < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} TB"


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _ratio(value: float) -> str:
    return f"{value:.3g}x"


def _seconds(value: float) -> str:
    if abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


_FORMS: dict[Form, Callable[[float], str]] = {
    "text": _plain,
    "code": _plain,
    "count": _count,
    "bytes": _bytes,
    "number": _number,
    "ratio": _ratio,
    "seconds": _seconds,
    "percent": _percent,
}
