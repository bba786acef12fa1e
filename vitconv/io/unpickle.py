"""Walk a pickle without running it: nothing that it names is imported, nothing is called.

Calls become `Record`, references become `Global`. Memory and time stay within a small multiple of the pickle: objects
are counted, and repeated parts stay shared.
"""

from __future__ import annotations

from vitconv.io.machine import Machine, Truncated
from vitconv.io.opcodes import STEPS, STOP
from vitconv.io.records import Unpickled

__all__ = ["Truncated", "unpickle"]


def unpickle(data: bytes, where: str, position: int = 0) -> Unpickled:
    """Walk the pickle that starts at `position` of `data`; `where` names it in errors.

    Raises:
        Truncated: it goes on beyond `data`.
        BadFile: it is damaged, or wants too much.
    """
    machine = Machine(data, position, where)
    try:
        while True:
            if machine.position >= len(data):
                raise Truncated(f"{where}: the pickle is cut short at byte {len(data)}")
            code = data[machine.position]
            machine.position += 1
            if code == STOP:
                kept = (tuple(machine.globals), tuple(machine.externals), tuple(machine.called))
                return Unpickled(machine.pop(), machine.position, *kept)
            if code not in STEPS:
                raise machine.fail(f"opcode {code:#04x} is not allowed")
            STEPS[code](machine)
    except (ValueError, OverflowError, UnicodeError) as error:
        raise machine.fail(f"a value is malformed ({type(error).__name__})") from error
