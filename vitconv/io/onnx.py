"""Read the weights of an exported network from an ONNX file, in place, and give them back their parameters' names.

Field numbers are those of the repository onnx/onnx, `onnx/onnx.proto`. torch.onnx keeps the names of biases, norms and
convolutions, but folds the weight of a linear layer into an anonymous, transposed constant, and may cut the position
embedding in two. The names are found through the graph: by the bias that is added next, or by the node's scope.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

from vitconv.errors import BadFile
from vitconv.io.contents import Contents, some
from vitconv.io.file import File
from vitconv.io.protobuf import Field, Message
from vitconv.io.tensor import ITEMSIZE, Blob, Stored

_MAX_FIELDS = 2_000_000
_DTYPES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
    13: "U64", 14: "C64", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ",
}  # fmt: skip
_QUANTISED = {
    "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "QLinearConv", "MatMulNBits",
}  # fmt: skip
_PARAMETER = re.compile(r"(?!onnx::|val_\d|_val_|const_|constant)[A-Za-z_]\w*(\.\w+)*", re.IGNORECASE)
_TOKEN = ("cls_token", "class_token")
_POSITION = ("pos_embed", "position_embeddings", "position_embedding.weight", "pos_embedding", "positional_embedding")


@dataclass(frozen=True)
class _Node:
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class _Graph:
    nodes: list[_Node] = field(default_factory=list)
    tensors: dict[str, Stored] = field(default_factory=dict)
    memory: list[bytes] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)


def read(file: File) -> Contents:
    """Read names, dtypes, shapes and places of the weights.

    Raises:
        BadFile: no ONNX file, damaged, quantised, or with the weights in other files.
    """
    graph = _read_graph(file)
    quantised = sorted({node.op for node in graph.nodes} & _QUANTISED)
    if quantised:
        raise BadFile(f"{file.path}: a quantised network ({some(quantised)}); export the floating-point one")
    if graph.faults:
        problems = [f"{some(names)}: {why}" for why, names in graph.faults.items()]
        raise BadFile(f"{file.path}: tensors that cannot be read: {'; '.join(problems)[:1500]}")
    named, notes = _names(graph, file)
    if not named:
        raise BadFile(f"{file.path}: the ONNX file holds no weights with the name of a parameter")
    tensors = sorted(named.values(), key=lambda stored: (stored.blob.file < 0, stored.blob.offset))
    header = "\n".join(sorted(f"{stored.key} {stored.dtype} {stored.shape}" for stored in tensors)).encode()
    return Contents("onnx", tensors, notes=tuple(notes), header=header, memory=tuple(graph.memory))


def _read_graph(file: File) -> _Graph:
    message = Message(file, min(_MAX_FIELDS, 1000 + file.size // 2))
    graph = _Graph()
    bodies = [part for part in message.fields(0, file.size) if part.number == 7]
    if len(bodies) != 1 or bodies[0].start == bodies[0].stop:
        raise BadFile(f"{file.path}: not an ONNX file, or damaged: it holds {len(bodies)} graphs")
    for part in message.fields(bodies[0].start, bodies[0].stop):
        if part.number == 1:
            graph.nodes.append(_node(message, part))
        elif part.number == 5:
            _tensor(message, part, graph)
        elif part.number == 15:
            graph.faults.setdefault("sparse", []).append("a sparse initializer")
    return graph


def _node(message: Message, part: Field) -> _Node:
    op = name = ""
    inputs: list[str] = []
    outputs: list[str] = []
    for inner in message.fields(part.start, part.stop):
        if inner.number == 1:
            inputs.append(message.text(inner))
        elif inner.number == 2:
            outputs.append(message.text(inner))
        elif inner.number == 3:
            name = message.text(inner)
        elif inner.number == 4:
            op = message.text(inner)
    return _Node(op, name, tuple(inputs), tuple(outputs))


def _tensor(message: Message, part: Field, graph: _Graph) -> None:
    shape: list[int] = []
    code = 0
    name = ""
    data: Field | None = None
    numbers: Field | None = None
    external = False
    for inner in message.fields(part.start, part.stop):
        if inner.number == 1:
            shape.extend(message.varints(inner))
        elif inner.number == 2:
            code = inner.value
        elif inner.number == 8:
            name = message.text(inner)
        elif inner.number in (4, 9, 10):
            data = inner
        elif inner.number in (5, 7, 11):
            numbers = inner
        elif inner.number == 14:
            external = external or inner.value == 1
    fault = _fault(shape, code, external)
    if fault:
        graph.faults.setdefault(fault, []).append(name)
        return
    dtype = _DTYPES[code]
    size = prod(shape) * ITEMSIZE[dtype]
    if data is None and numbers is not None and size <= numbers.stop - numbers.start << 3:
        data, blob = numbers, Blob(-1 - len(graph.memory), 0, size)
        width = ITEMSIZE[dtype]
        mask = (1 << 8 * width) - 1
        graph.memory.append(b"".join((value & mask).to_bytes(width, "little") for value in message.varints(numbers)))
        have = len(graph.memory[-1])
    else:
        have = data.stop - data.start if data else 0
        blob = Blob(0, data.start if data else 0, size)
    if have != size:
        graph.faults.setdefault("its size does not fit its shape (damaged)", []).append(name)
        return
    graph.tensors[name] = Stored((name,), dtype, tuple(shape), blob)


def _fault(shape: list[int], code: int, external: bool) -> str:
    if external:
        return "its data are in another file (load it with onnx.load, and save it with save_as_external_data=False)"
    if code not in _DTYPES:
        return f"data type {code} is not supported"
    if len(shape) > 64 or prod(size or 1 for size in shape) > 1 << 60:
        return "its shape is damaged"
    return ""


def _names(graph: _Graph, file: File) -> tuple[dict[str, Stored], list[str]]:
    named = {name: stored for name, stored in graph.tensors.items() if _PARAMETER.fullmatch(name)}
    others = {name: stored for name, stored in graph.tensors.items() if name not in named}
    users: dict[str, list[_Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for name, stored in others.items():
        matmuls = [node for node in users.get(name, []) if node.op == "MatMul" and node.inputs[1:2] == (name,)]
        if len(stored.shape) == 2 and matmuls:
            key = _linear_name(stored, matmuls[0], users, graph.tensors)
            if key and key not in named and key not in found.values():
                found[name] = key
    for name, key in found.items():
        rows, columns = others[name].shape
        # The constant is (in, out); a linear layer's weight is its transpose.
        turned = (1, columns)
        named[key] = Stored((key,), others[name].dtype, (columns, rows), others[name].blob, 0, turned)
    notes = [f"{len(found)} weights of linear layers were named through the graph, and are transposed"] if found else []
    left = [stored for name, stored in others.items() if name not in found]
    parts = _position_parts(left, named)
    if parts:
        joined = _join(parts, named, graph, file)
        notes.append(f"{joined.key} was joined from its two parts in the graph; its name is not in the file")
        named[joined.key] = joined
    unnamed = [stored.key for stored in left if stored not in parts]
    if unnamed:
        notes.append(f"not read, being constants without a parameter's name: {some(unnamed)}")
    return named, notes


def _linear_name(stored: Stored, node: _Node, users: dict[str, list[_Node]], tensors: dict[str, Stored]) -> str:
    for output in node.outputs:
        for follower in users.get(output, []):
            for name in follower.inputs if follower.op == "Add" else ():
                if name.endswith(".bias") and name in tensors and tensors[name].shape == stored.shape[1:]:
                    return f"{name.removesuffix('.bias')}.weight"
    scope = node.name.strip("/").split("/")[:-1]
    parts: list[str] = []
    for part in scope:
        # A container that is called itself shows twice: /blocks/blocks.0/attn.
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    name = ".".join(parts)
    return f"{name}.weight" if _PARAMETER.fullmatch(name) else ""


def _position_parts(left: list[Stored], named: dict[str, Stored]) -> list[Stored]:
    """Return the rows of the class token and of the patches, when the export cut the position embedding there."""
    tokens = [key for key in named if key.endswith(_TOKEN)]
    if len(tokens) != 1 or any(key.endswith(_POSITION) for key in named):
        return []
    token = named[tokens[0]]
    rows = [s for s in left if len(s.shape) == 3 and s.shape[0] == 1 and s.shape[2:] == token.shape[2:]]
    rows = [s for s in rows if s.dtype == token.dtype and s.blob.file == 0]
    first, rest = [s for s in rows if s.shape[1] == 1], [s for s in rows if s.shape[1] > 1]
    return [first[0], rest[0]] if len(first) == len(rest) == 1 else []


def _join(parts: list[Stored], named: dict[str, Stored], graph: _Graph, file: File) -> Stored:
    token = next(key for key in named if key.endswith(_TOKEN))
    stem = token.rpartition(".")[0]
    name = "position_embeddings" if stem.endswith("embeddings") else "pos_embed"
    data = b"".join(file.read(part.blob.offset, part.nbytes) for part in parts)
    graph.memory.append(data)
    shape = (1, sum(part.shape[1] for part in parts), parts[0].shape[2])
    key = f"{stem}.{name}" if stem else name
    return Stored((key,), parts[0].dtype, shape, Blob(-len(graph.memory), 0, len(data)))
