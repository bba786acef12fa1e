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


def in_a_line(error: BaseException) -> str:
    """Return an error of foreign code in one line: its kind, its first line, and where in the user's files it arose."""
    first = next(iter(str(error).strip().splitlines()), "")
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    places = []
    at = error.__traceback__
    while at is not None:
        places.append((at.tb_frame.f_code.co_filename, at.tb_lineno))
        at = at.tb_next
    # Of a library, and of vitconv itself, a line says nothing to the one who reads the message.
    own = [f"{name}, line {line}" for name, line in places if not _of_a_library(name)]
    return f"{words} ({own[-1]})" if own else words


def by_foreign_code(error: BaseException) -> bool:
    """Return whether an error arose in what a host runs, or in torch's backward pass, and not in vitconv's own code."""
    # A generator on the way makes a RuntimeError of a StopIteration, which is then its cause.
    raised = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
    names = []
    at = raised.__traceback__
    while at is not None:
        # What only watches the operators on their way calls them for the one who asked.
        watches = at.tb_frame.f_code.co_name in ("__torch_dispatch__", "__torch_function__")
        names.append("" if watches else at.tb_frame.f_code.co_filename.replace("\\", "/"))
        at = at.tb_next
    inside = [i for i, name in enumerate(names) if name.startswith(_HERE)]
    hosts = [i for i in inside if "/hosts/" in names[i].removeprefix(_HERE)]
    if isinstance(raised, RecursionError):
        # It arises wherever the stack ends, which may be in a hook of vitconv's.
        return bool(hosts)
    last = inside[-1] if inside else -1
    after = names[last + 1 :]
    return bool(after) and (last in hosts or any(name.endswith("torch/autograd/graph.py") for name in after))


_HERE = __file__.replace("\\", "/").rpartition("/")[0]


def _of_a_library(name: str) -> bool:
    name = name.replace("\\", "/")
    return name.startswith(("<", _HERE)) or "/site-packages/" in name or "/lib/python" in name


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


class Lacking(Refused):
    """The target needs tensors that the network does not have."""


class Ambiguous(Refused):
    """More than one reading fits; the message names the option that decides."""


class BadFile(Refused):
    """The file is damaged, truncated, hostile, or of a kind that cannot be read safely."""
