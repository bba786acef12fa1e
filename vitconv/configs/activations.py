"""The names of activations in each library, and ours."""

from __future__ import annotations

from collections.abc import Mapping

# huggingface/transformers src/transformers/activations.py. The tanh forms differ in how they are coded and in the
# eighth digit of sqrt(2/pi), not in the function that is meant. gelu_10 clips and has no name here.
FROM_HF: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
    "swish": "silu",
}
TO_HF: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "squared_relu": "relu2",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
}
# huggingface/pytorch-image-models timm/layers/create_act.py
FROM_TIMM: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
    "swish": "silu",
}
TO_TIMM: Mapping[str, str] = {name: name for name in FROM_TIMM.values()}
# facebookresearch/xformers xformers/components/activations.py; smelu and star_relu have no name here.
FROM_XFORMERS: Mapping[str, str] = {name: name for name in ("gelu", "relu", "leaky_relu", "squared_relu")}
TO_XFORMERS: Mapping[str, str] = FROM_XFORMERS
