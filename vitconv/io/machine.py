"""The state of a pickle being walked: its stack, marks and memo, and the bounds that keep them small."""

from __future__ import annotations

from vitconv.errors import BadFile
from vitconv.io.records import External, Global, Record, attribute_of

# At some hundred bytes each; an opcode of one byte makes at most one.
_MAX_OBJECTS = 3_000_000
# Of a number, in digits or in bytes.
MAX_DIGITS = 1600


class Truncated(BadFile):
    """The pickle goes on beyond the bytes given."""


class Machine:
    """Walk `data` from `position`; `where` names the pickle in errors."""

    def __init__(self, data: bytes, position: int, where: str) -> None:
        self.data = data
        self.position = position
        self.where = where
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[Global, None] = {}
        self.called: dict[Global, None] = {}
        self.externals: list[External] = []
        self.left = _MAX_OBJECTS

    def fail(self, reason: str) -> BadFile:
        """Return the error for a fault at the current position."""
        return BadFile(f"{self.where}: the pickle is damaged or hostile at byte {self.position}: {reason}")

    def made(self, count: int = 1) -> None:
        """Count new objects."""
        self.left -= count
        if self.left < 0:
            raise self.fail("it makes far more objects than a checkpoint holds")

    def take(self, nbytes: int) -> bytes:
        """Read bytes."""
        end = self.position + nbytes
        if end > len(self.data):
            raise Truncated(f"{self.where}: the pickle is cut short at byte {len(self.data)}")
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, nbytes: int) -> int:
        """Read an unsigned number."""
        return int.from_bytes(self.take(nbytes), "little")

    def line(self) -> bytes:
        """Read up to the end of the line."""
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise Truncated(f"{self.where}: the pickle is cut short at byte {len(self.data)}")
        found = self.data[self.position : end]
        self.position = end + 1
        return found.rstrip(b"\r")

    def digits(self) -> int:
        """Read a decimal number on a line."""
        text = self.line()
        if len(text) > MAX_DIGITS:
            raise self.fail("a number of thousands of digits")
        return int(text.removesuffix(b"L"))

    def push(self, value: object) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> object:
        """Take the last value, but none from before the last mark."""
        if not self.stack or (self.marks and self.marks[-1] == len(self.stack)):
            raise self.fail("it takes from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        """Return the last value."""
        if not self.stack or (self.marks and self.marks[-1] == len(self.stack)):
            raise self.fail("it looks at an empty stack")
        return self.stack[-1]

    def since_mark(self) -> list[object]:
        """Take all values since the last mark."""
        if not self.marks:
            raise self.fail("a mark is missing")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def refer(self, module: object, name: object) -> None:
        """Push a reference to something outside."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.fail("a global is not named by texts")
        self.made()
        found = Global(module, name)
        self.globals[found] = None
        self.push(found)

    def call(self, called: object, args: object) -> None:
        """Push what a call says, and keep what is called: of what a call made, such as a partial, what it was given."""
        self.record(called, args)
        made = attribute_of(self.top())
        if made is not None:
            # Before protocol 4 a method is written as the attribute of its class.
            self.globals[made] = None
            return
        of = attribute_of(called) or called
        named = of.args if isinstance(of, Record) else (of,)
        self.called.update((name, None) for name in named if isinstance(name, Global))

    def record(self, called: object, args: object) -> None:
        """Push what a call or an object says."""
        self.made()
        if not isinstance(args, tuple):
            # torch writes the value of a TorchScript enum bare (torch/csrc/jit/serialization/pickler.cpp).
            enum = isinstance(called, Global) and called.module.startswith("__torch__")
            if not (enum and isinstance(args, str | int | float)):
                raise self.fail("arguments are not a tuple")
            args = (args,)
        self.push(Record(called, args))
