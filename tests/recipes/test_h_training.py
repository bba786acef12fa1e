"""H: training checkpoints: payloads in other places, ZeRO, distributed folders, half precision in npz."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import State, bits, equal, rand_t, save, tensors, vitconv

sys.path.insert(0, str(Path(__file__).parents[1] / "io"))
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def to_timm(source: Path, *more: object):
    out = source.parent / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm", "--prove", *more)
    return answer, tensors(out) if out.exists() else None


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path, how: str = "os.mkdir") -> None:
        self.path, self.how = path, how

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        if self.how == "eval":
            return eval, (f"__import__('os').mkdir({str(self.path)!r})",)
        return os.mkdir, (str(self.path),)


class Subclass(torch.Tensor):
    """A tensor whose own rebuild function is the payload."""

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        import os

        return os.mkdir, (MARKER[0],)


MARKER: list[str] = []


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", ["subclass", "eval", "dict key", "tuple in args", "optimizer", "python pickle"])
def test_h13_a_payload_in_any_place(zipped: bool, place: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    MARKER[:] = [str(marker)]
    load, state = Payload(marker), rand_t()
    contents: dict[str, Any] = {
        "subclass": {"model": {**state, "extra": torch.ones(2).as_subclass(Subclass)}},
        "eval": {"model": state, "args": Payload(marker, "eval")},
        "dict key": {"model": state, "args": {load: 1}},
        "tuple in args": {"model": state, "args": (1, (2, (load,)))},
        "optimizer": {"model": state, "optimizer": {"state": {0: {"exp_avg": load}}, "param_groups": []}},
        "python pickle": {**{k: v.numpy() for k, v in state.items()}, "extra": load},
    }[place]
    source = tmp_path / "s.pth"
    if place == "python pickle":
        source.write_bytes(pickle.dumps(contents, protocol=4 if zipped else 2))
    else:
        torch.save(contents, source, _use_new_zipfile_serialization=zipped)
    for words in (("inspect", source), ("inspect", source, "--health"), ("diff", source, source)):
        assert vitconv(*words).code == 3
    answer, written = to_timm(source)
    assert answer.code == 3
    assert ("eval" if place == "eval" else "mkdir") in answer.err
    assert "attack" in answer.err
    assert not marker.exists()
    assert written is None


def test_h14_failing_safely_offers_no_other_way(tmp_path: Path) -> None:
    torch.save({"model": rand_t(), "args": Payload(tmp_path / "marker")}, tmp_path / "s.pth")
    answer, _ = to_timm(tmp_path / "s.pth")
    assert "unsafe" not in answer.text
    assert vitconv("convert", tmp_path / "s.pth", tmp_path / "o.safetensors", "--unsafe").code == 2


@pytest.mark.parametrize("fraction", [1, 2], ids=["all", "half"])
@pytest.mark.parametrize("shape", [(0,), (1,)], ids=str)
def test_h19_placeholders_are_counted_and_the_way_out_said(fraction: int, shape: tuple[int, ...], tmp_path) -> None:
    state = {k: torch.zeros(shape) if j % fraction == 0 else v for j, (k, v) in enumerate(rand_t().items())}
    answer, written = to_timm(save(tmp_path / "s.pth", {"module": state, "ds_version": "0.15"}))
    assert answer.code == 3
    assert "of 32 tensors are placeholders" in answer.err
    assert "gather the weights first" in answer.err
    assert "zero_to_fp32.py" in answer.err
    assert written is None


@pytest.mark.parametrize("padding", [0, 4, 5])
def test_h20_a_flat_partition_is_not_cut_up_by_guess(padding: int, tmp_path: Path) -> None:
    """Padded or not: the pieces of all ranks are needed, and DeepSpeed's own script knows how to join them."""
    flat = torch.cat([v.reshape(-1) for v in rand_t().values()] + [torch.zeros(padding)])
    shapes = [{k: v.shape for k, v in rand_t().items()}]
    contents = {"optimizer_state_dict": {"single_partition_of_fp32_groups": [flat]}, "param_shapes": shapes}
    answer, written = to_timm(save(tmp_path / "s.pth", contents))
    assert answer.code == 3
    assert "zero_to_fp32.py" in answer.err
    assert written is None


def distributed(folder: Path, change: Any = None, *, cut: bool = True) -> tuple[Path, State]:
    """Write a DCP folder with a model and an optimizer subtree, in two shards."""
    from dcp_kit import save_pieces

    state = rand_t()
    if change is not None:
        change(state)
    model = {f"model.{k}": v for k, v in state.items()}
    optim = {f"optim.state.{k}.exp_avg": v * 0 for k, v in state.items()}
    cuts = {k: ((v.shape[0] // 2,),) for k, v in model.items() if v.shape[0] > 1} if cut else {}
    save_pieces(folder, model | optim, cuts, 2, {"optim": {"param_groups": [{"lr": 0.1}]}, "step": 7})
    return folder, state


@pytest.mark.parametrize("more", [(), ("--branch", "model")], ids=["default", "named"])
def test_h22_h23_only_the_model_is_read(tmp_path: Path, more: tuple[str, ...]) -> None:
    folder, state = distributed(tmp_path / "d")
    answer, written = to_timm(folder, *more)
    assert answer.code == 0, answer.text
    assert "32 tensors of optimizer or other training state" in answer.out
    assert equal(tensors(tmp_path / "out.safetensors") if written is None else written, state)


def test_h23_a_model_nested_deeper(tmp_path: Path) -> None:
    """The state of an application object: {app: {model, optim}}."""
    import torch.distributed.checkpoint as dcp

    state = rand_t()
    app = {"app": {"model": state, "optim": {"state": {}, "param_groups": []}}}
    dcp.save(app, checkpoint_id=tmp_path / "d", no_dist=True)
    answer, written = to_timm(tmp_path / "d")
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_h22_a_tensor_of_zeros_is_caught(tmp_path: Path) -> None:
    folder, _ = distributed(tmp_path / "d", lambda s: s["blocks.0.attn.qkv.weight"].zero_())
    answer, written = to_timm(folder)
    assert answer.code == 3
    assert "all zeros" in answer.err and "blocks.0.attn.qkv.weight" in answer.err
    assert written is None
    health = vitconv("inspect", folder, "--health")
    assert "all-zero tensors" in health.out and "blocks.0.attn.qkv.weight" in health.out
    check = vitconv("check", folder)
    assert "all zero" in check.out
    assert check.code != 0


def test_h22_half_a_tensor_of_zeros_is_caught(tmp_path: Path) -> None:
    """One rank's shard alone: no tensor is all zeros as a whole."""
    folder, _ = distributed(tmp_path / "d", lambda s: s["blocks.1.mlp.fc1.weight"][64:].zero_())
    answer, _ = to_timm(folder)
    assert answer.code == 3
    assert "__1_0.distcp: blocks.1.mlp.fc1.weight" in answer.err


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_h25_half_precision_in_npz_keeps_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {k: v.to(dtype) for k, v in rand_t().items()}
    state["head.bias"][0] = 1.0
    arrays = {k: v.view(torch.int16).numpy() if dtype != torch.float32 else v.numpy() for k, v in state.items()}
    kind = {torch.bfloat16: "V2", torch.float16: np.float16, torch.float32: np.float32}[dtype]
    np.savez(tmp_path / "w.npz", **{k: v.view(kind) for k, v in arrays.items()})
    answer, written = to_timm(tmp_path / "w.npz")
    assert answer.code == 0, answer.text
    assert equal(written, state)
    assert ("were read as bfloat16" in answer.out) == (dtype == torch.bfloat16)
    if dtype == torch.bfloat16:
        assert bits(written["head.bias"][:1]) == b"\x80\x3f"


def test_h01_h02_ties_and_overlaps_are_told_apart(tmp_path: Path) -> None:
    """The same tensor under two names, and a view that overlaps another one: both are written whole."""
    state = rand_t()
    state["norm.bias"] = state["patch_embed.proj.bias"]
    buffer = torch.randn(48)
    state["blocks.0.norm1.bias"], state["blocks.0.norm2.bias"] = buffer[:32], buffer[16:]
    source = save(tmp_path / "s.pth", state)
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert equal(written, state)
    said = next(line for line in answer.out.splitlines() if "the same bytes under several names" in line)
    assert "norm.bias" in said and "patch_embed.proj.bias" in said
    assert "norm1" not in said


def test_h08_counts_of_a_cast_are_said_before_anything_is_written(tmp_path: Path) -> None:
    state = rand_t()
    gen = torch.Generator().manual_seed(1)
    state["head.weight"] = torch.cat([torch.full((2, 32), 1e-9), 1e5 * torch.randn(3, 32, generator=gen).abs() + 1e5])
    source = save(tmp_path / "s.safetensors", state)
    answer, written = to_timm(source, "--dtype", "F16")
    assert answer.code == 3
    assert "96" in answer.err and "head.weight" in answer.err
    assert written is None
    answer, written = to_timm(source, "--edit", "cast:dtype=F16,overflow=inf")
    assert answer.code == 0
    assert "96 overflow" in answer.out and "64 become zero" in answer.out
    assert written["head.weight"].isinf().sum() == 96


def test_h28_what_a_resume_needs_and_a_release_lacks(tmp_path: Path) -> None:
    contents = {"model": rand_t(), "optimizer": {"state": {}, "param_groups": []}, "scaler": {"scale": 2.0}, "epoch": 1}
    bare = vitconv("inspect", save(tmp_path / "bare.pth", rand_t()))
    assert "optimizer" not in bare.out
    answer = vitconv("convert", tmp_path / "bare.pth", tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert answer.code == 2
    assert "holds no state of an optimizer" in answer.err
    answer, _ = to_timm(save(tmp_path / "full.pth", contents))
    assert answer.code == 0, answer.text


class OnTpu:
    """Saved as torch saves a tensor of a TPU: a call that makes it of a numpy array."""

    def __init__(self, t: torch.Tensor, dtype: torch.dtype) -> None:
        self.t, self.dtype = t, dtype

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_device_tensor_from_numpy, (self.t.numpy(), self.dtype, "xla:0", False)


def test_tensors_of_a_tpu_are_read(tmp_path: Path) -> None:
    state = {k: OnTpu(v, v.dtype) for k, v in rand_t().items()}
    answer = vitconv("convert", save(tmp_path / "s.pth", {"model": state}), tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(tmp_path / "o.safetensors"), rand_t())


def test_tensors_of_a_tpu_that_were_kept_in_another_dtype(tmp_path: Path) -> None:
    state = rand_t() | {"head.bias": OnTpu(rand_t()["head.bias"], torch.bfloat16)}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 3
    assert "head.bias" in answer.err and "BF16, kept as a numpy array of F32" in answer.err


STATE_OF = {
    "bare": lambda state: state,
    "named": lambda state: {"epoch": 3, "optimizer": state},
    "of any name": lambda state: {"opt_g": state, "step": 3},
    "by parameter": lambda state: {"optim": {"state": {"vit.head.bias": state["state"][0]}, "param_groups": []}},
}


@pytest.mark.parametrize("inside", STATE_OF.values(), ids=STATE_OF.keys())
def test_a_file_of_nothing_but_an_optimizers_state_is_told(inside: Callable[[Any], Any], tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    answer = vitconv(
        "convert", save(tmp_path / "optimizer.pt", inside(optimizer.state_dict())), tmp_path / "o", "--to", "timm"
    )
    assert answer.code == 1
    assert "3 tensors are the state of an optimizer ('step', 'exp_avg', 'exp_avg_sq')" in answer.err
    assert "--optimizer-from" in answer.err


def test_other_state_of_a_training_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "random.pt", {"scheduler": {"lrs": torch.ones(3)}, "rng_state": torch.get_rng_state()})
    answer = vitconv("inspect", path)
    assert "its 2 tensors are other state of a training ('scheduler', 'rng_state')" in answer.out


def test_an_optimizers_state_of_any_name_is_no_set_of_weights(tmp_path: Path) -> None:
    moments = {"state": {0: {"exp_avg": torch.randn(3, 4)}}, "param_groups": []}
    answer = vitconv("inspect", save(tmp_path / "s.pth", {"model": rand_t(), "solver": moments}))
    assert answer.code == 0, answer.text
    assert "1 tensors of optimizer or other training state" in answer.out
