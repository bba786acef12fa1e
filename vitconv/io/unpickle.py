"""Walk a pickle without running it: nothing that it names is imported, nothing is called.

The opcodes and their meaning are those of CPython's `pickletools`. Calls become `Record`, references become `Global`.
Memory and time stay within a small multiple of the pickle: objects are counted, and repeated parts stay shared.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable

from vitconv.errors import BadFile
from vitconv.io.records import External, Global, Mapping, Record, Unpickled

_MAX_OBJECTS = 3_000_000
_MAX_DIGITS = 1600


class Truncated(BadFile):
    """The pickle goes on beyond the bytes given."""


class _Machine:
    def __init__(self, data: bytes, position: int, where: str) -> None:
        self.data = data
        self.position = position
        self.where = where
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[Global, None] = {}
        self.externals: list[External] = []
        self.left = min(_MAX_OBJECTS, 20_000 + len(data))

    def fail(self, reason: str) -> BadFile:
        return BadFile(f"{self.where}: the pickle is damaged or hostile at byte {self.position}: {reason}")

    def made(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise self.fail("it makes far more objects than a checkpoint holds")

    def take(self, nbytes: int) -> bytes:
        end = self.position + nbytes
        if end > len(self.data):
            raise Truncated(f"{self.where}: the pickle is cut short at byte {len(self.data)}")
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise Truncated(f"{self.where}: the pickle is cut short at byte {len(self.data)}")
        found = self.data[self.position : end]
        self.position = end + 1
        return found.rstrip(b"\r")

    def digits(self) -> int:
        text = self.line()
        if len(text) > _MAX_DIGITS:
            raise self.fail("a number of thousands of digits")
        return int(text.removesuffix(b"L"))

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        if not self.stack or (self.marks and self.marks[-1] == len(self.stack)):
            raise self.fail("it takes from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        if not self.stack or (self.marks and self.marks[-1] == len(self.stack)):
            raise self.fail("it looks at an empty stack")
        return self.stack[-1]

    def since_mark(self) -> list[object]:
        if not self.marks:
            raise self.fail("a mark is missing")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def refer(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.fail("a global is not named by texts")
        self.made()
        found = Global(module, name)
        self.globals[found] = None
        self.push(found)

    def record(self, called: object, args: object) -> None:
        self.made()
        if not isinstance(args, tuple):
            raise self.fail("arguments are not a tuple")
        self.push(Record(called, args))


def unpickle(data: bytes, where: str, position: int = 0) -> Unpickled:
    """Walk the pickle that starts at `position` of `data`; `where` names it in errors.

    Raises:
        Truncated: it goes on beyond `data`.
        BadFile: it is damaged, or wants too much.
    """
    machine = _Machine(data, position, where)
    try:
        while True:
            if machine.position >= len(data):
                raise Truncated(f"{where}: the pickle is cut short at byte {len(data)}")
            code = data[machine.position]
            machine.position += 1
            if code == _STOP:
                return Unpickled(machine.pop(), machine.position, tuple(machine.globals), tuple(machine.externals))
            if code not in _STEPS:
                raise machine.fail(f"opcode {code:#04x} is not allowed")
            _STEPS[code](machine)
    except (ValueError, OverflowError, UnicodeError) as error:
        raise machine.fail(f"a value is malformed ({type(error).__name__})") from error


def _text(machine: _Machine, nbytes: int) -> None:
    machine.made()
    machine.push(machine.take(nbytes).decode("utf-8", "surrogatepass"))


def _old_text(machine: _Machine, nbytes: int) -> None:
    # A text of Python 2, which did not tell texts from bytes: latin-1 keeps every byte.
    machine.made()
    machine.push(machine.take(nbytes).decode("latin-1"))


def _bytes(machine: _Machine, nbytes: int) -> None:
    machine.made()
    machine.push(machine.take(nbytes))


def _quoted(machine: _Machine) -> None:
    text = machine.line().strip()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise machine.fail("a text without quotes")
    machine.made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine.push(text[1:-1].decode("unicode_escape"))


def _plain_int(machine: _Machine) -> None:
    if machine.data[machine.position : machine.position + 3] in (b"00\n", b"01\n"):
        machine.push(machine.line() == b"01")
        return
    machine.made()
    machine.push(machine.digits())


def _float_line(machine: _Machine) -> None:
    machine.made()
    machine.push(float(machine.line()))


def _float8(machine: _Machine) -> None:
    machine.made()
    machine.push(struct.unpack(">d", machine.take(8))[0])


def _signed(machine: _Machine, nbytes: int) -> None:
    machine.made()
    if nbytes > _MAX_DIGITS:
        raise machine.fail("a number of thousands of digits")
    machine.push(int.from_bytes(machine.take(nbytes), "little", signed=True))


def _tuple(machine: _Machine, size: int) -> None:
    machine.made()
    parts = [machine.pop() for _ in range(size)]
    parts.reverse()
    machine.stack.append(tuple(parts))


def _marked_tuple(machine: _Machine) -> None:
    machine.made()
    machine.push(tuple(machine.since_mark()))


def _marked_list(machine: _Machine) -> None:
    machine.made()
    machine.push(machine.since_mark())


def _pairs(machine: _Machine, flat: list[object]) -> list[tuple[object, object]]:
    if len(flat) % 2:
        raise machine.fail("a key without a value")
    machine.made(len(flat) // 2)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _marked_dict(machine: _Machine) -> None:
    machine.made()
    machine.push(Mapping(_pairs(machine, machine.since_mark())))


def _empty_list(machine: _Machine) -> None:
    machine.made()
    machine.push([])


def _empty_dict(machine: _Machine) -> None:
    machine.made()
    machine.push(Mapping())


def _set_items(machine: _Machine, flat: list[object]) -> None:
    target = machine.top()
    if not isinstance(target, Mapping | Record):
        raise machine.fail("items are set on what is no dict")
    target.pairs.extend(_pairs(machine, flat))


def _set_item(machine: _Machine) -> None:
    value = machine.pop()
    key = machine.pop()
    _set_items(machine, [key, value])


def _append(machine: _Machine, values: list[object]) -> None:
    target = machine.top()
    if isinstance(target, Record):
        target.items.extend(values)
    elif isinstance(target, list):
        target.extend(values)
    else:
        raise machine.fail("something is appended to what is no list")


def _append_one(machine: _Machine) -> None:
    value = machine.pop()
    _append(machine, [value])


def _global_lines(machine: _Machine) -> None:
    module = machine.line().decode("utf-8")
    machine.refer(module, machine.line().decode("utf-8"))


def _stack_global(machine: _Machine) -> None:
    name = machine.pop()
    machine.refer(machine.pop(), name)


def _call(machine: _Machine) -> None:
    args = machine.pop()
    machine.record(machine.pop(), args)


def _call_keywords(machine: _Machine) -> None:
    keywords = machine.pop()
    args = machine.pop()
    machine.record(machine.pop(), args)
    if isinstance(keywords, Mapping):
        made = machine.top()
        if isinstance(made, Record):
            made.pairs.extend(keywords.pairs)


def _instance(machine: _Machine) -> None:
    _global_lines(machine)
    called = machine.pop()
    machine.record(called, tuple(machine.since_mark()))


def _object(machine: _Machine) -> None:
    parts = machine.since_mark()
    if not parts:
        raise machine.fail("an object without a class")
    machine.record(parts[0], tuple(parts[1:]))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, Record):
        target.state = state
    elif not isinstance(target, Mapping | list):
        raise machine.fail("a state is given to a plain value")


def _external(machine: _Machine, pid: object) -> None:
    machine.made()
    found = External(pid)
    machine.externals.append(found)
    machine.push(found)


def _pop(machine: _Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop()


def _put(machine: _Machine, index: int) -> None:
    machine.made()
    machine.memo[index] = machine.top()


def _memoize(machine: _Machine) -> None:
    machine.made()
    machine.memo[len(machine.memo)] = machine.top()


def _get(machine: _Machine, index: int) -> None:
    if index not in machine.memo:
        raise machine.fail("it refers to what was never stored")
    machine.push(machine.memo[index])


def _protocol(machine: _Machine) -> None:
    version = machine.number(1)
    if version > 5:
        raise machine.fail(f"protocol {version} is unknown")


def _frame(machine: _Machine) -> None:
    # Its length only helps a reader to buffer.
    machine.take(8)


def _mark(machine: _Machine) -> None:
    machine.made()
    machine.marks.append(len(machine.stack))


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("("): _mark,
    ord("0"): _pop,
    ord("1"): lambda m: m.since_mark().clear(),
    ord("2"): lambda m: m.push(m.top()),
    ord("F"): _float_line,
    ord("G"): _float8,
    ord("I"): _plain_int,
    ord("J"): lambda m: _signed(m, 4),
    ord("K"): lambda m: m.push(m.number(1)),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("L"): _plain_int,
    0x8A: lambda m: _signed(m, m.number(1)),
    0x8B: lambda m: _signed(m, m.number(4)),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("S"): _quoted,
    ord("T"): lambda m: _old_text(m, m.number(4)),
    ord("U"): lambda m: _old_text(m, m.number(1)),
    ord("V"): lambda m: m.push(m.line().decode("raw-unicode-escape")),
    ord("X"): lambda m: _text(m, m.number(4)),
    0x8C: lambda m: _text(m, m.number(1)),
    0x8D: lambda m: _text(m, m.number(8)),
    ord("B"): lambda m: _bytes(m, m.number(4)),
    ord("C"): lambda m: _bytes(m, m.number(1)),
    0x8E: lambda m: _bytes(m, m.number(8)),
    0x96: lambda m: _bytes(m, m.number(8)),
    ord("]"): _empty_list,
    ord("l"): _marked_list,
    ord("a"): _append_one,
    ord("e"): lambda m: _append(m, m.since_mark()),
    ord(")"): lambda m: m.push(()),
    ord("t"): _marked_tuple,
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("}"): _empty_dict,
    ord("d"): _marked_dict,
    ord("s"): _set_item,
    ord("u"): lambda m: _set_items(m, m.since_mark()),
    0x8F: lambda m: m.record(Global("builtins", "set"), ()),
    0x90: lambda m: _append(m, m.since_mark()),
    0x91: lambda m: m.record(Global("builtins", "frozenset"), tuple(m.since_mark())),
    ord("c"): _global_lines,
    0x93: _stack_global,
    ord("R"): _call,
    0x81: _call,
    0x92: _call_keywords,
    ord("i"): _instance,
    ord("o"): _object,
    ord("b"): _build,
    ord("P"): lambda m: _external(m, m.line().decode("utf-8")),
    ord("Q"): lambda m: _external(m, m.pop()),
    ord("p"): lambda m: _put(m, m.digits()),
    ord("q"): lambda m: _put(m, m.number(1)),
    ord("r"): lambda m: _put(m, m.number(4)),
    0x94: _memoize,
    ord("g"): lambda m: _get(m, m.digits()),
    ord("h"): lambda m: _get(m, m.number(1)),
    ord("j"): lambda m: _get(m, m.number(4)),
    0x80: _protocol,
    0x95: _frame,
}
