"""What each opcode of a pickle does to the machine: values are pushed, calls and objects become records.

The opcodes and their meaning are those of CPython's `pickletools`. Those that reach outside the pickle, to the registry
of extensions or to buffers, are missing on purpose.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable

from vitconv.io.machine import MAX_DIGITS, Machine
from vitconv.io.records import External, Global, Mapping, Record


def _text(machine: Machine, nbytes: int) -> None:
    machine.made()
    machine.push(machine.take(nbytes).decode("utf-8", "surrogatepass"))


def _old_text(machine: Machine, nbytes: int) -> None:
    # A text of Python 2, which did not tell texts from bytes: latin-1 keeps every byte.
    machine.made()
    machine.push(machine.take(nbytes).decode("latin-1"))


def _bytes(machine: Machine, nbytes: int) -> None:
    machine.made()
    machine.push(machine.take(nbytes))


def _quoted(machine: Machine) -> None:
    text = machine.line().strip()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise machine.fail("a text without quotes")
    machine.made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine.push(text[1:-1].decode("unicode_escape"))


def _plain_int(machine: Machine) -> None:
    if machine.data[machine.position : machine.position + 3] in (b"00\n", b"01\n"):
        machine.push(machine.line() == b"01")
        return
    machine.made()
    machine.push(machine.digits())


def _float_line(machine: Machine) -> None:
    machine.made()
    machine.push(float(machine.line()))


def _float8(machine: Machine) -> None:
    machine.made()
    machine.push(struct.unpack(">d", machine.take(8))[0])


def _signed(machine: Machine, nbytes: int) -> None:
    machine.made()
    if nbytes > MAX_DIGITS:
        raise machine.fail("a number of thousands of digits")
    machine.push(int.from_bytes(machine.take(nbytes), "little", signed=True))


def _tuple(machine: Machine, size: int) -> None:
    machine.made()
    parts = [machine.pop() for _ in range(size)]
    parts.reverse()
    machine.stack.append(tuple(parts))


def _marked_tuple(machine: Machine) -> None:
    machine.made()
    machine.push(tuple(machine.since_mark()))


def _marked_list(machine: Machine) -> None:
    machine.made()
    machine.push(machine.since_mark())


def _pairs(machine: Machine, flat: list[object]) -> list[tuple[object, object]]:
    if len(flat) % 2:
        raise machine.fail("a key without a value")
    machine.made(len(flat) // 2)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _marked_dict(machine: Machine) -> None:
    machine.made()
    machine.push(Mapping(_pairs(machine, machine.since_mark())))


def _empty_list(machine: Machine) -> None:
    machine.made()
    machine.push([])


def _empty_dict(machine: Machine) -> None:
    machine.made()
    machine.push(Mapping())


def _set_items(machine: Machine, flat: list[object]) -> None:
    target = machine.top()
    if not isinstance(target, Mapping | Record):
        raise machine.fail("items are set on what is no dict")
    target.pairs.extend(_pairs(machine, flat))


def _set_item(machine: Machine) -> None:
    value = machine.pop()
    key = machine.pop()
    _set_items(machine, [key, value])


def _append(machine: Machine, values: list[object]) -> None:
    target = machine.top()
    if isinstance(target, Record):
        target.items.extend(values)
    elif isinstance(target, list):
        target.extend(values)
    else:
        raise machine.fail("something is appended to what is no list")


def _append_one(machine: Machine) -> None:
    value = machine.pop()
    _append(machine, [value])


def _global_lines(machine: Machine) -> None:
    module = machine.line().decode("utf-8")
    machine.refer(module, machine.line().decode("utf-8"))


def _stack_global(machine: Machine) -> None:
    name = machine.pop()
    machine.refer(machine.pop(), name)


def _call(machine: Machine) -> None:
    args = machine.pop()
    machine.record(machine.pop(), args)


def _reduce(machine: Machine) -> None:
    args = machine.pop()
    machine.call(machine.pop(), args)


def _call_keywords(machine: Machine) -> None:
    keywords = machine.pop()
    args = machine.pop()
    machine.record(machine.pop(), args)
    if isinstance(keywords, Mapping):
        made = machine.top()
        if isinstance(made, Record):
            made.pairs.extend(keywords.pairs)


def _instance(machine: Machine) -> None:
    _global_lines(machine)
    called = machine.pop()
    machine.call(called, tuple(machine.since_mark()))


def _object(machine: Machine) -> None:
    parts = machine.since_mark()
    if not parts:
        raise machine.fail("an object without a class")
    machine.call(parts[0], tuple(parts[1:]))


def _build(machine: Machine) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, Record):
        target.state = state
    elif not isinstance(target, Mapping | list):
        raise machine.fail("a state is given to a plain value")


def _external(machine: Machine, pid: object) -> None:
    machine.made()
    found = External(pid)
    machine.externals.append(found)
    machine.push(found)


def _pop(machine: Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop()


def _put(machine: Machine, index: int) -> None:
    machine.made()
    machine.memo[index] = machine.top()


def _memoize(machine: Machine) -> None:
    machine.made()
    machine.memo[len(machine.memo)] = machine.top()


def _get(machine: Machine, index: int) -> None:
    if index not in machine.memo:
        raise machine.fail("it refers to what was never stored")
    machine.push(machine.memo[index])


def _protocol(machine: Machine) -> None:
    version = machine.number(1)
    if version > 5:
        raise machine.fail(f"protocol {version} is unknown")


def _frame(machine: Machine) -> None:
    # Its length only helps a reader to buffer.
    machine.take(8)


def _mark(machine: Machine) -> None:
    machine.made()
    machine.marks.append(len(machine.stack))


STOP = ord(".")
STEPS: dict[int, Callable[[Machine], None]] = {
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
    ord("R"): _reduce,
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
