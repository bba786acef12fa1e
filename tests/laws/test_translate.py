"""Tensors in memory: weights, gradients and moments by the same rules; the input is neither changed nor shared."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.conversion.translate import translate
from vitconv.errors import Refused, UsageError
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
FUSED, APART = ALL["xformers-fused"], ALL["xformers"]
PRE = {"kv_normalised": True, "norm_placement": "pre"}
TORCH = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
TORCH |= {"F64": torch.float64}
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_torch(x: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(x.view(f"i{x.itemsize}").copy()).view(TORCH[dtype])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = SIGNED[a.element_size()]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(kind), b.view(kind))


def raw(x: Any) -> bytes:
    return (x.numpy() if isinstance(x, torch.Tensor) else x).tobytes()


def network(forge: SimpleNamespace, dialect: Any = APART, dtype: str = "F32", seed: int = 0, **options: str) -> Any:
    """Return a network with all its biases, which either dialect can hold."""
    biases = {f"blocks.0.attn.{x}.bias" for x in ("q", "k", "v", "out")}
    variant = dialect.variant({"norm": "pre", "mlp": "MLP", **options})
    drawn = (forge.networks(Random(n), variant, dtype) for n in range(seed, seed + 500))
    return next(case for case in drawn if biases <= case.canonical.keys() and case.axes["a"] > 2)


def floats(case: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {k: torch.randn(v.shape, generator=g, dtype=torch.float64) for k, v in case.file.items()}


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_and_numpy_give_the_bits_of_the_plan(forge: SimpleNamespace, dtype: str) -> None:
    case = network(forge, dtype=dtype)
    expected = forge.carry(forge.convert(case, case.file, APART, ALL["canonical"]), case.file)
    by_numpy = translate(case.file, "xformers", "canonical", facts=PRE)
    assert forge.same(by_numpy, expected)
    by_torch = translate({k: as_torch(v, dtype) for k, v in case.file.items()}, "xformers", "canonical", facts=PRE)
    assert by_torch.keys() == expected.keys()
    assert all(same_bits(by_torch[k], as_torch(v, dtype)) for k, v in expected.items())


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_inputs_may_be_strided_and_are_neither_changed_nor_shared(forge: SimpleNamespace, library: str) -> None:
    case = network(forge)
    loose: dict[str, Any] = {}
    for k, v in case.file.items():
        # Transposed storage with a gap behind every element, and an offset.
        store = np.zeros((*v.shape[::-1], 2), "i4")
        store[..., 1] = v.view("i4").T
        turned = range(v.ndim)[::-1]
        loose[k] = store[..., 1].T if library == "numpy" else torch.from_numpy(store)[..., 1].permute(*turned)
        assert not (loose[k].is_contiguous() if library == "torch" else loose[k].flags.c_contiguous) or v.size == 1
    before = {k: raw(v) for k, v in loose.items()}
    out = translate(loose, "xformers", "canonical", facts=PRE)
    expected = translate(case.file, "xformers", "canonical", facts=PRE)
    assert all(raw(out[k]) == expected[k].tobytes() for k in expected)
    for v in out.values():
        v[...] = 0
    assert {k: raw(v) for k, v in loose.items()} == before


def test_parameters_come_back_as_plain_tensors(forge: SimpleNamespace) -> None:
    case = network(forge)
    out = translate({k: torch.nn.Parameter(v) for k, v in floats(case).items()}, "xformers", "canonical", facts=PRE)
    assert not any(v.requires_grad for v in out.values())


def test_gradients_are_those_of_the_translated_weights(forge: SimpleNamespace) -> None:
    """<g, dx> is the same number on both sides, for any direction dx: the chain rule."""
    case = network(forge)
    g, x = floats(case, 1), floats(case, 2)
    moved = translate(g, "xformers", "xformers-fused", "gradients", facts=PRE)
    there = translate(x, "xformers", "xformers-fused", facts=PRE)
    here = sum(float((g[k] * x[k]).sum()) for k in g)
    assert sum(float((moved[k] * there[k]).sum()) for k in moved) == pytest.approx(here, rel=1e-12)
    assert moved.keys() < there.keys(), "a gradient comes under the first of two names"


def test_moments_carried_then_a_step_equals_the_step_carried(forge: SimpleNamespace) -> None:
    """AdamW after two steps; the third is taken on either side."""
    case = network(forge)
    start = floats(case)
    here = {k: torch.nn.Parameter(v.clone()) for k, v in start.items()}
    optimiser = torch.optim.AdamW(here.values(), lr=0.01, weight_decay=0.1)
    for step in range(2):
        step_with(optimiser, here, floats(case, 10 + step))
    carry = lambda tensors, kind: translate(tensors, "xformers", "xformers-fused", kind, facts=PRE)  # noqa: E731
    state = {k: optimiser.state[p] for k, p in here.items()}
    there = {k: torch.nn.Parameter(v) for k, v in carry({k: p.detach() for k, p in here.items()}, "weights").items()}
    moments = {m: carry({k: s[m] for k, s in state.items()}, "moments") for m in ("exp_avg", "exp_avg_sq")}
    grads = carry(floats(case, 12), "gradients")
    other = torch.optim.AdamW([there[k] for k in grads], lr=0.01, weight_decay=0.1)
    for k in grads:
        other.state[there[k]] = {"step": torch.tensor(2.0), **{m: x[k].clone() for m, x in moments.items()}}
    step_with(optimiser, here, floats(case, 12))
    step_with(other, there, grads)
    expected = carry({k: p.detach() for k, p in here.items()}, "weights")
    assert all(torch.equal(there[k], expected[k]) for k in grads)
    assert not torch.equal(there[k], carry(start, "weights")[k])


def step_with(optimiser: Any, parameters: dict[str, Any], grads: dict[str, torch.Tensor]) -> None:
    for k, g in grads.items():
        parameters[k].grad = g.clone()
    optimiser.step()


@pytest.fixture
def twice(forge: SimpleNamespace) -> tuple[dict[str, torch.Tensor], str, str]:
    """Return a network that names every tensor of its branches twice, and two names of one."""
    case = network(forge, FUSED)
    tensors = floats(case)
    again = next(k for k in tensors if ".mha." in k and k.endswith("in_proj_weight"))
    return tensors, again, again.replace(".mha.", ".wrap_att.layer.sublayer.")


def test_gradients_under_two_names_are_summed_unless_they_are_one(twice: Any) -> None:
    tensors, again, first = twice
    plain = translate(tensors, "xformers-fused", "canonical", "gradients", facts=PRE)
    q = "blocks.0.attn.q.weight"
    rows = plain[q].shape[0]
    assert torch.equal(plain[q], (tensors[again] + tensors[first])[:rows])
    one = translate({**tensors, again: tensors[first]}, "xformers-fused", "canonical", "gradients", facts=PRE)
    assert torch.equal(one[q], tensors[first][:rows])


def test_weights_under_two_names_are_compared_by_their_bits(twice: Any) -> None:
    tensors, _, _ = twice
    tensors = {k: tensors.get(k.replace("mha", "wrap_att.layer.sublayer"), v) for k, v in tensors.items()}
    tensors = {k: tensors.get(k.replace("feedforward", "wrap_ff.layer.sublayer"), v) for k, v in tensors.items()}
    again = next(k for k in tensors if ".mha." in k)
    first = again.replace(".mha.", ".wrap_att.layer.sublayer.")
    nan = {first: tensors[first] * float("nan")}
    assert translate({**tensors, **nan, again: nan[first].clone()}, "xformers-fused", "canonical", facts=PRE)
    zero = {first: torch.zeros_like(tensors[first]), again: -torch.zeros_like(tensors[first])}
    with pytest.raises(Refused, match=r"must be a copy of"):
        translate({**tensors, **zero}, "xformers-fused", "canonical", facts=PRE)


def test_one_tensor_for_three(forge: SimpleNamespace) -> None:
    """The shared projection: weights must be equal, gradients are summed, and cannot be told apart again."""
    case = network(forge)
    qkv = [next(k for k in case.file if f"encoders.0.{'wrap_att'}" in k and f"{x}_proj.weight" in k) for x in "qkv"]
    shared = {"projection": "shared"}
    tensors = floats(case)
    with pytest.raises(Refused, match="as one, and here they differ"):
        translate(tensors, "xformers", "xformers", facts=PRE, choices=shared)
    grads = translate(tensors, "xformers", "xformers", "gradients", facts=PRE, choices=shared)
    assert torch.allclose(grads[qkv[1]], sum(tensors[k] for k in qkv), rtol=1e-15)
    for k in tensors:
        for x in "qv":
            if f"{x}_proj.weight" in k:
                tensors[k] = tensors[k.replace(f"{x}_proj", "k_proj")]
    weights = translate(tensors, "xformers", "xformers", facts=PRE, choices=shared)
    assert torch.equal(weights[qkv[1]], tensors[qkv[1]])
    back = translate(weights, "xformers", "xformers", facts=PRE, choices={"projection": "separate"})
    assert all(torch.equal(back[k], tensors[k]) for k in qkv)
    with pytest.raises(Refused, match="do not say what each of them has"):
        translate(weights, "xformers", "canonical", "gradients", facts=PRE)


def test_what_has_no_place_is_refused_or_dropped_by_name(forge: SimpleNamespace) -> None:
    case = forge.networks(Random(1), ALL["hf-vit"].variant({"model": "classification"}), "F32")
    name = "embed.mask"
    tensors = floats(case) | {"vit.embeddings.mask_token": torch.zeros(1, 1, case.axes["d"], dtype=torch.float64)}
    with pytest.raises(Refused, match=rf"timm has no place for {name}.*drop="):
        translate(tensors, "hf-vit", "timm")
    assert "cls_token" in translate(tensors, "hf-vit", "timm", drop=[name])


def test_wrong_calls() -> None:
    with pytest.raises(UsageError, match="kind='momenta': expected one of weights, gradients, moments"):
        translate({"x": np.zeros(1)}, None, "timm", "momenta")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'x': found int; expected a torch\.Tensor or"):
        translate({"x": 1}, "timm", "hf-vit")  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="unknown fact 'eps'"):
        translate({"x": np.zeros(1)}, None, "timm", facts={"eps": 1})
    with pytest.raises(UsageError, match="unknown dialect"):
        translate({"x": np.zeros(1)}, "tinn", "timm")
