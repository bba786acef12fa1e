"""Numpy arrays and scalars inside a pickle, read from what numpy's own reconstruction is told, without numpy."""

from __future__ import annotations

import struct

from vitconv.io.records import Record
from vitconv.io.tensor import ITEMSIZE, Blob, c_strides
from vitconv.io.torch_tensors import UnreadableError, View, sizes, torch_dtype, view

DTYPES: dict[str, str] = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
    "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL", "c8": "C64", "V2": "BF16",
}  # fmt: skip
_FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b"}
_FORMATS |= {"U64": "Q", "U32": "I", "U16": "H", "U8": "B", "BOOL": "?"}
_MODULES = ("numpy.core.", "numpy._core.")
_AS_NUMPY = "torch._utils._rebuild_device_tensor_from_numpy"
_MAX_WRAPPED = 4


class NotNumbersError(UnreadableError):
    """An array holds texts, dates or objects: no tensor, so that it may be left out."""


def is_array(record: Record) -> bool:
    """Say whether a record describes a numpy array."""
    return record.kind.startswith(_MODULES) and record.kind.rpartition(".")[2] in ("_reconstruct", "_frombuffer")


def is_scalar(record: Record) -> bool:
    """Say whether a record describes a numpy scalar."""
    return record.kind.startswith(_MODULES) and record.kind.endswith(".scalar")


def scalar(record: Record) -> object:
    """Return the number that a numpy scalar holds, or None when it is of no simple kind."""
    try:
        dtype, raw = _dtype(record.args[0]), _text_of(record.args[1])
        if not isinstance(raw, str | bytes) or len(raw) > 16:
            return None
        data = _raw(raw)
        return struct.unpack(f"<{_FORMATS[dtype]}", data)[0]
    except (UnreadableError, IndexError, KeyError, struct.error):
        return None


class Memory:
    """Keep the bytes of arrays that lie inside a pickle, each once however often it is met."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._known: dict[int, int] = {}

    def hold(self, raw: object) -> Blob:
        """Return where the bytes of a pickled text or bytes object are kept; `raw` must stay alive."""
        if id(raw) not in self._known:
            self.pieces.append(_raw(raw))
            self._known[id(raw)] = len(self.pieces) - 1
        index = self._known[id(raw)]
        return Blob(-1 - index, 0, len(self.pieces[index]))


def array(record: Record, memory: Memory) -> View:
    """Return the view of a numpy array; its bytes are put into `memory`.

    Raises:
        UnreadableError: object or text arrays, big-endian ones, or a size that does not fit.
    """
    if record.kind.endswith("_frombuffer") and len(record.args) == 4:
        raw, dtype_record, shape_value, order = record.args
        fortran = order == "F"
    elif isinstance(record.state, tuple) and len(record.state) == 5:
        _, shape_value, dtype_record, fortran, raw = record.state
    else:
        raise UnreadableError("a numpy array whose description is incomplete")
    dtype, shape = _dtype(dtype_record), sizes(shape_value)
    strides = tuple(reversed(c_strides(shape[::-1]))) if fortran else c_strides(shape)
    return view(dtype, shape, memory.hold(_text_of(raw)), 0, strides)


def kept_as_array(record: Record, memory: Memory) -> View | None:
    """Return the view of a tensor of another device, such as a TPU, that torch keeps as a numpy array; None: no such.

    Raises:
        UnreadableError: the array is of another dtype than the tensor was, or is none that can be read.
    """
    for _ in range(_MAX_WRAPPED):
        if record.kind == "torch._utils._rebuild_parameter" and record.args and isinstance(record.args[0], Record):
            record = record.args[0]
    held = record.args[0] if record.kind == _AS_NUMPY and len(record.args) > 1 else None
    if not isinstance(held, Record) or not is_array(held):
        return None
    found, dtype = array(held, memory), torch_dtype(record.args[1])
    if found.dtype != dtype:
        raise UnreadableError(
            f"a tensor of another device, {dtype}, kept as a numpy array of {found.dtype} (move it to the CPU and save"
            " again)"
        )
    return found


def _dtype(value: object) -> str:
    if not isinstance(value, Record) or value.kind != "numpy.dtype" or not value.args:
        raise UnreadableError("a numpy array without a dtype")
    name = value.args[0]
    order = value.state[1] if isinstance(value.state, tuple) and len(value.state) > 1 else "|"
    if isinstance(name, str) and name.lstrip("<>|=")[:1] in set("OUSMm"):
        raise NotNumbersError("an array of texts, dates or objects")
    if not isinstance(name, str) or name not in DTYPES:
        raise UnreadableError(f"a numpy array of dtype {str(name)[:40]!a}, which is not supported")
    if order == ">" and ITEMSIZE[DTYPES[name]] > 1:
        raise UnreadableError("a big-endian numpy array (convert it to little-endian and save again)")
    return DTYPES[name]


def _text_of(value: object) -> object:
    # Protocol 2 has no bytes: they are written as a text in latin-1 and a call to encode it.
    if isinstance(value, Record) and value.kind == "_codecs.encode" and value.args:
        return value.args[0]
    if isinstance(value, Record) and value.kind.endswith((".bytearray", ".bytes")):
        return value.args[0] if value.args else b""
    return value


def _raw(value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError as error:
            raise UnreadableError("a numpy array whose bytes are damaged") from error
    if isinstance(value, bytes):
        return value
    raise UnreadableError("a numpy array of objects")
