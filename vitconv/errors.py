"""The errors of vitconv: one root, and the exit code of the command line on the class.

Exit codes: 1 the answer is no, 2 wrong usage, 3 refused or undecided. A message says what was found, what was
expected, where, and what to do.
"""

from __future__ import annotations


def shown(name: str) -> str:
    """Return a name as it may stand in a message: line breaks and control characters written out.

    Names come out of files that strangers made; one with a line break could forge a line of a message.
    """
    return name if name.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


class VitconvError(Exception):
    """Root of every error that vitconv raises on purpose."""

    exit_code = 2


class UsageError(VitconvError):
    """A value given by the caller does not fit: an unknown name, an option out of range, a missing file."""

    exit_code = 2


class LayoutError(VitconvError):
    """A rule, a shape or a dialect is inconsistent: a fault of the mapping itself, not of a file."""

    exit_code = 2


class NotRecognised(VitconvError):
    """No dialect explains the tensors without a remainder."""

    exit_code = 1


class Refused(VitconvError):
    """Doing it would lose, guess or change something that nobody asked for; nothing was written."""

    exit_code = 3


class Ambiguous(Refused):
    """More than one reading fits; the message names the option that decides."""


class BadFile(Refused):
    """The file is damaged, truncated, hostile, or of a kind that cannot be read safely."""
