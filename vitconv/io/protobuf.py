"""Walk a protobuf message in a file, field by field, without reading the long ones.

The wire format is described in protobuf's documentation, "Encoding": tag, then a varint, 8 bytes, a length and bytes,
or 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitconv.errors import BadFile
from vitconv.io.file import File

_WINDOW = 64 << 10
_LENGTH = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its number, and its value when it is a number, or the range of the file that holds its bytes."""

    number: int
    value: int
    start: int
    stop: int


class Message:
    """Read the fields between two positions of a file. `spent` bounds the work over all messages of a file."""

    def __init__(self, file: File, limit: int) -> None:
        self.file = file
        self.left = limit
        self._window = b""
        self._at = 0

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """Give the fields in order.

        Raises:
            BadFile: the bytes are no protobuf message, or there are too many fields.
        """
        position = start
        while position < stop:
            self.left -= 1
            if self.left < 0:
                raise BadFile(f"{self.file.path}: the ONNX file holds far more fields than any network's")
            tag, position = self._varint(position, stop)
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                value, position = self._varint(position, stop)
                yield Field(number, value, position, position)
                continue
            if wire == _LENGTH:
                size, position = self._varint(position, stop)
            else:
                size = {1: 8, 5: 4}.get(wire, -1)
            if number == 0 or size < 0 or position + size > stop:
                raise BadFile(f"{self.file.path}: not an ONNX file, or damaged at byte {position}")
            yield Field(number, 0, position, position + size)
            position += size

    def text(self, field: Field) -> str:
        """Return the bytes of a field as a text.

        Raises:
            BadFile: they are no text, or a very long one.
        """
        if field.stop - field.start > _WINDOW:
            raise BadFile(f"{self.file.path}: a name in the ONNX file is {field.stop - field.start} bytes long")
        try:
            return self._bytes(field.start, field.stop).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{self.file.path}: a name in the ONNX file is not valid Unicode") from error

    def varints(self, field: Field) -> Iterator[int]:
        """Give the numbers of a packed field."""
        if field.start == field.stop:
            yield field.value
        position = field.start
        while position < field.stop:
            self.left -= 1
            if self.left < 0:
                raise BadFile(f"{self.file.path}: the ONNX file holds far more numbers than any network's")
            value, position = self._varint(position, field.stop)
            yield value

    def _bytes(self, start: int, stop: int) -> bytes:
        if not self._at <= start <= stop <= self._at + len(self._window):
            size = max(stop - start, min(_WINDOW, self.file.size - start))
            self._window, self._at = self.file.read(start, size), start
        return self._window[start - self._at : stop - self._at]

    def _varint(self, position: int, stop: int) -> tuple[int, int]:
        value = 0
        for shift, byte in enumerate(self._bytes(position, min(position + 10, stop))):
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return value, position + shift + 1
        raise BadFile(f"{self.file.path}: not an ONNX file, or damaged at byte {position}")
