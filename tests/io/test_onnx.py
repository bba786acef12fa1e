from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitconv.errors import BadFile
from vitconv.io.source import open_checkpoint

onnx = pytest.importorskip("onnx")
helper, numpy_helper, proto = onnx.helper, onnx.numpy_helper, onnx.TensorProto
RNG = np.random.default_rng(0)
D, N = 4, 9


def model(tensors: list[Any], nodes: list[Any] = ()) -> bytes:  # type: ignore[assignment]
    graph = helper.make_graph(list(nodes), "g", [], [], tensors)
    return helper.make_model(graph).SerializeToString()


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def export() -> tuple[bytes, dict[str, np.ndarray]]:
    """Return what torch.onnx makes of a small ViT, and the state dict it came from."""
    weights = {
        "backbone.embeddings.cls_token": array(1, 1, D),
        "backbone.embeddings.patch_embeddings.projection.weight": array(D, 3, 2, 2),
        "backbone.encoder.layer.0.norm1.weight": array(D),
        "backbone.encoder.layer.0.attention.query.bias": array(D),
        "backbone.encoder.layer.0.attention.query.weight": array(D, D),
        "backbone.encoder.layer.0.mlp.fc1.bias": array(3 * D),
        "backbone.encoder.layer.0.mlp.fc1.weight": array(3 * D, D),
        "blocks.1.attn.qkv.weight": array(3 * D, D),
    }
    position = array(1, 1 + N, D)
    folded = {
        "onnx::MatMul_10": weights["backbone.encoder.layer.0.attention.query.weight"].T,
        "onnx::MatMul_11": weights["backbone.encoder.layer.0.mlp.fc1.weight"].T,
        "onnx::MatMul_12": weights["blocks.1.attn.qkv.weight"].T,
    }
    kept = {
        key: value for key, value in weights.items() if not key.endswith(("query.weight", "fc1.weight", "qkv.weight"))
    }
    tensors = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in (kept | folded).items()]
    tensors += [
        numpy_helper.from_array(part, f"onnx::Add_{i}") for i, part in enumerate((position[:, :1], position[:, 1:]))
    ]
    tensors.append(numpy_helper.from_array(np.array([1, -1], np.int64), "onnx::Reshape_20"))
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_10"], ["a"], "/wrong/name/MatMul"),
        helper.make_node("Add", ["backbone.encoder.layer.0.attention.query.bias", "a"], ["b"]),
        helper.make_node("MatMul", ["b", "onnx::MatMul_11"], ["c"]),
        helper.make_node("Add", ["c", "backbone.encoder.layer.0.mlp.fc1.bias"], ["d"]),
        helper.make_node("MatMul", ["d", "onnx::MatMul_12"], ["e"], "/blocks/blocks.1/attn/qkv/MatMul"),
    ]
    return model(tensors, nodes), weights | {"backbone.embeddings.position_embeddings": position}


def test_an_exported_vit_gets_its_names_back(tmp_path: Path) -> None:
    data, weights = export()
    (tmp_path / "x.onnx").write_bytes(data)
    with open_checkpoint(tmp_path / "x.onnx") as ckpt:
        assert ckpt.format == "onnx"
        assert {stored.key for stored in ckpt.tensors} == set(weights)
        for stored in ckpt.tensors:
            assert stored.shape == weights[stored.key].shape
            assert bytes(ckpt.read(stored)) == weights[stored.key].tobytes(), stored.key
            plain = stored.key.endswith(("bias", "cls_token", "norm1.weight", "projection.weight"))
            assert (ckpt.segment(stored) is not None) == plain
        notes = " ".join(ckpt.notes)
        assert "3 weights of linear layers were named through the graph" in notes
        assert "position_embeddings was joined" in notes
        assert "'onnx::Reshape_20'" in notes
        assert "onnx::Add" not in notes


@pytest.mark.parametrize(
    ("code", "dtype", "values"),
    [
        (proto.FLOAT, "F32", [1.5, -2.0]),
        (proto.DOUBLE, "F64", [1.5, -2.0]),
        (proto.INT64, "I64", [5, -7]),
        (proto.INT32, "I32", [5, -7]),
        (proto.INT8, "I8", [5, -7]),
        (proto.UINT8, "U8", [5, 200]),
        (proto.BOOL, "BOOL", [True, False]),
        (proto.FLOAT16, "F16", [1.5, -2.0]),
        (proto.BFLOAT16, "BF16", [1.5, -2.0]),
        (proto.UINT64, "U64", [5, 2**63]),
    ],
)
@pytest.mark.parametrize("raw", [False, True], ids=["numbers", "raw"])
def test_every_way_to_hold_numbers(tmp_path: Path, code, dtype, values, raw) -> None:
    tensor = helper.make_tensor("a.weight", code, [2], values)
    wanted = numpy_helper.to_array(tensor).tobytes()
    if raw:
        tensor = helper.make_tensor("a.weight", code, [2], wanted, raw=True)
    (tmp_path / "x.onnx").write_bytes(model([tensor]))
    with open_checkpoint(tmp_path / "x.onnx") as ckpt:
        assert (ckpt.tensors[0].dtype, ckpt.tensors[0].shape) == (dtype, (2,))
        assert bytes(ckpt.read(ckpt.tensors[0])) == wanted


def external() -> Any:
    tensor = numpy_helper.from_array(array(3), "a.weight")
    onnx.external_data_helper.set_external_data(tensor, "../secret")
    tensor.ClearField("raw_data")
    return tensor


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(lambda: model([external()]), "in another file", id="external data"),
        pytest.param(
            lambda: model(
                [numpy_helper.from_array(array(2), "a")], [helper.make_node("MatMulInteger", ["x", "a"], ["y"])]
            ),
            "quantised",
            id="quantised",
        ),
        pytest.param(
            lambda: model([numpy_helper.from_array(np.array(["x"], object), "a.w")]), "data type 8", id="texts"
        ),
        pytest.param(lambda: model([]), "no weights", id="nothing"),
        pytest.param(lambda: export()[0][:-50], "damaged", id="cut"),
        pytest.param(lambda: b"\x08\x08" + bytes(100), "not an ONNX file", id="zeros"),
        pytest.param(lambda: b"\x08\x08" * 50, "0 graphs", id="no graph"),
        pytest.param(lambda: export()[0] + export()[0], "2 graphs", id="two graphs"),
    ],
)
def test_what_is_refused(survives, tmp_path: Path, data, words) -> None:
    assert not survives(data(), "x.onnx")
    with pytest.raises(BadFile) as caught:
        open_checkpoint(tmp_path / "x.onnx")
    assert words in str(caught.value)


def test_numbers_that_do_not_fill_the_shape(tmp_path: Path) -> None:
    tensor = helper.make_tensor("a.weight", proto.INT64, [2], [1, 2])
    tensor.dims[0] = 3
    (tmp_path / "x.onnx").write_bytes(model([tensor]))
    with pytest.raises(BadFile, match=r"'a.weight': its size does not fit"):
        open_checkpoint(tmp_path / "x.onnx")
