"""What torch's pickled tensors describe: a view into a storage, found without running the functions named.

Argument orders are those of the repository pytorch/pytorch, `torch/_utils.py` and `torch/_tensor.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from vitconv.io.allowed import STORAGE_DTYPES, TORCH_DTYPES
from vitconv.io.records import External, Global, Mapping, Record
from vitconv.io.tensor import ITEMSIZE, Blob, is_contiguous, span
from vitconv.record import dataclass

_MAX_SIZE = 1 << 60
_WRAPPERS = {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
}
_PLAIN = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"}
_WHY_NOT = {
    "_rebuild_sparse_tensor": "a sparse tensor (call .to_dense() and save again)",
    "_rebuild_sparse_csr_tensor": "a sparse tensor (call .to_dense() and save again)",
    "_rebuild_qtensor": "a quantised tensor (call .dequantize() and save again)",
    "_rebuild_nested_tensor": "a nested tensor (save its parts)",
    "_rebuild_meta_tensor_no_storage": "a tensor on the meta device, without data (save the real weights)",
    "_rebuild_wrapper_subclass": "a tensor of a wrapper class, as of sharded or quantised training (gather or"
    " dequantise it to a plain tensor and save again)",
    "_rebuild_device_tensor_from_numpy": "a tensor of another device kept as numpy (move it to the CPU and save again)",
}


class UnreadableError(ValueError):
    """A tensor is of a kind that cannot be read; the text says which kind and what to do."""


@dataclass(frozen=True)
class View:
    """Describe a tensor without a name; the fields are those of `Stored`."""

    dtype: str
    shape: tuple[int, ...]
    blob: Blob
    start: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Storage:
    """Describe a storage: its bytes, and the dtype of its class (U8 for untyped ones)."""

    blob: Blob
    dtype: str


FindStorage = Callable[[External], Storage]


def is_tensor(record: Record) -> bool:
    """Say whether a record describes a torch tensor of any kind."""
    return record.kind.startswith(("torch._utils._rebuild", "torch._tensor._rebuild"))


def rebuild(record: Record, find_storage: FindStorage) -> View:
    """Return the view that a tensor's record describes.

    Raises:
        UnreadableError: sparse, quantised, without data, or arguments that make no tensor.
    """
    called: object = record.called
    args = record.args
    for _ in range(8):
        kind = str(called)
        if kind in _PLAIN:
            return _plain(kind, args, find_storage)
        if kind == "torch._tensor._rebuild_from_type_v2" and len(args) == 4 and isinstance(args[2], tuple):
            called, args = args[0], args[2]
        elif kind in _WRAPPERS and args and isinstance(args[0], Record):
            called, args = args[0].called, args[0].args
        else:
            name = kind.rpartition(".")[2]
            raise UnreadableError(_WHY_NOT.get(name, f"built by {kind[:80]!a}, which is not understood"))
    raise UnreadableError("wrapped too often")


def _plain(kind: str, args: tuple[object, ...], find_storage: FindStorage) -> View:
    if len(args) < 4:
        raise UnreadableError("its description is incomplete")
    if isinstance(args[0], Record) and args[0].kind == "torch.storage._load_from_bytes":
        raise UnreadableError("saved by pickle.dump (load it where it was made, and save it with torch.save)")
    if not isinstance(args[0], External):
        raise UnreadableError("its storage is not described as a storage")
    storage = find_storage(args[0])
    dtype = storage.dtype
    if kind.endswith("_v3"):
        dtype = torch_dtype(args[6] if len(args) > 6 else None)
        flags = args[7] if len(args) > 7 else None
    else:
        flags = args[6] if len(args) > 6 else None
    if isinstance(flags, Mapping) and (flags.get("conj") or flags.get("neg")):
        raise UnreadableError(
            "a lazily conjugated or negated tensor (call .resolve_conj().resolve_neg() and save again)"
        )
    shape, strides = sizes(args[2]), sizes(args[3])
    return view(dtype, shape, storage.blob, sizes((args[1],))[0], strides)


def view(dtype: str, shape: tuple[int, ...], blob: Blob, start: int, strides: tuple[int, ...]) -> View:
    """Check a view against its blob, and drop strides that say nothing.

    Raises:
        UnreadableError: it reaches outside the blob.
    """
    if len(shape) != len(strides):
        raise UnreadableError(f"{len(shape)} sizes but {len(strides)} strides")
    reach = span(shape, strides)
    if reach and (start + reach) * ITEMSIZE[dtype] > blob.nbytes:
        end = (start + reach) * ITEMSIZE[dtype]
        raise UnreadableError(f"it reaches to byte {end} of a storage of {blob.nbytes} (damaged or cut short)")
    if not reach:
        start = 0
    return View(dtype, shape, blob, start, None if is_contiguous(shape, strides) else strides)


def torch_dtype(value: object) -> str:
    """Return our name of a dtype such as `torch.float32`.

    Raises:
        UnreadableError: it is not a dtype that safetensors knows.
    """
    if isinstance(value, Global) and value.module == "torch" and value.name in TORCH_DTYPES:
        return TORCH_DTYPES[value.name]
    raise UnreadableError(f"its dtype {str(value)[:60]} is not supported")


def storage_dtype(value: object) -> str:
    """Return the dtype of a storage class such as `torch.FloatStorage`.

    Raises:
        UnreadableError: it is of another dtype than safetensors knows.
    """
    if isinstance(value, Global) and value.module in ("torch", "torch.cuda", "torch.storage"):
        name = value.name.removeprefix("_")
        if name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
    raise UnreadableError(f"its storage class {str(value)[:60]} is not supported")


def sizes(value: object) -> tuple[int, ...]:
    """Return a tuple of sizes from what a pickle holds: a tuple, a list, or a torch.Size.

    Raises:
        UnreadableError: it is none, or some are negative or impossibly large.
    """
    if isinstance(value, Record) and value.kind == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, tuple | list) or len(value) > 64:
        raise UnreadableError("its sizes are not a list of numbers")
    found: list[int] = []
    volume = 1
    for size in value:
        if type(size) is not int or not 0 <= size <= _MAX_SIZE:
            raise UnreadableError("a size, stride or offset is negative, too large, or no number")
        volume *= size or 1
        found.append(size)
    if volume > _MAX_SIZE:
        raise UnreadableError("it would be impossibly large")
    return tuple(found)
