"""Distributed checkpoints of torch: every piece in its place, and no lost shard taken for weights."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_kit import save_pieces

from vitconv.errors import Ambiguous, BadFile, UsageError, VitconvError
from vitconv.io.dcp import open_dcp
from vitconv.io.envelope import branches
from vitconv.io.source import open_checkpoint

# torch says so whenever it saves or loads without processes.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

CUTS = {
    "model.rows": ((3, 5),),
    "model.columns": ((), (2,)),
    "model.blocks": ((3,), (2, 4)),
    "model.vector": ((1, 4),),
    "model.half": ((2,),),
}


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen)

    return {
        "model.rows": draw(7, 5),
        "model.columns": draw(4, 6),
        "model.blocks": draw(6, 5),
        "model.vector": draw(6),
        "model.half": draw(4, 3, 2).bfloat16(),
        "model.whole": draw(3, 3),
        "model.scalar": draw(),
        "model.empty": draw(0, 3),
        "optim.state.rows.exp_avg": draw(7, 5),
    }


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    groups = [{"lr": 0.1, "params": [f"p{i}" for i in range(60)]}]
    return save_pieces(tmp_path / "d", tensors, CUTS, 3, {"optim": {"param_groups": groups}, "step": 3})


def raw(t: torch.Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_all(folder: Path) -> None:
    with open_checkpoint(folder) as ckpt:
        for stored in ckpt.tensors:
            ckpt.read(stored)


@pytest.mark.parametrize("by", ["folder", ".metadata"])
def test_every_element_comes_from_its_piece(folder: Path, tensors: dict[str, torch.Tensor], by: str) -> None:
    with open_checkpoint(folder if by == "folder" else folder / by) as ckpt:
        assert ckpt.format == "torch-distributed"
        assert {".".join(t.path) for t in ckpt.tensors} == set(tensors)
        for stored in ckpt.tensors:
            want = tensors[".".join(stored.path)]
            assert stored.shape == tuple(want.shape)
            assert bytes(ckpt.read(stored)) == raw(want), stored.path
            for start in range(0, stored.nbytes, 7):
                assert ckpt.read_range(stored, start, min(start + 9, stored.nbytes)) == raw(want)[start : start + 9]
        assert ckpt.scalars[("step",)] == 3
        assert ckpt.scalars[("optim", "param_groups", "0", "params")] == [f"p{i}" for i in range(60)]
        assert ckpt.foreign == ()


def test_torch_reads_what_the_kit_wrote(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    want = {k.removeprefix("model."): torch.zeros_like(v) for k, v in tensors.items() if k.startswith("model.")}
    dcp.load({"model": want}, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(v, tensors[f"model.{k}"]) for k, v in want.items())


def test_a_tensor_in_one_piece_is_a_byte_range(folder: Path) -> None:
    with open_checkpoint(folder) as ckpt:
        ranges = {t.key: ckpt.segment(t) for t in ckpt.tensors if t.nbytes}
    assert ranges.pop("whole").nbytes == 36
    assert ranges.pop("scalar").nbytes == 4
    assert set(ranges.values()) >= {None}
    assert ranges["rows"] is None


def test_the_state_of_the_optimizer_is_no_branch(folder: Path) -> None:
    with open_checkpoint(folder) as ckpt:
        assert [b.name for b in branches(ckpt)] == ["model"]


def test_a_flat_name_without_a_record_of_nesting(tmp_path: Path) -> None:
    state = {"model.blocks.0.w": torch.ones(2), "optim.state.blocks.0.w.exp_avg": torch.ones(2), "w": torch.ones(1)}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, checkpoint_id=tmp_path / "d", planner=planner, no_dist=True)
    with open_checkpoint(tmp_path / "d") as ckpt:
        assert {t.path for t in ckpt.tensors} == {
            ("model", "blocks.0.w"),
            ("optim", "state", "blocks.0.w", "exp_avg"),
            ("w",),
        }


@pytest.mark.parametrize("fault", ["missing", "cut short", "zeroed", "swapped"])
def test_a_lost_shard_is_refused(folder: Path, fault: str) -> None:
    shard = folder / "__1_0.distcp"
    if fault == "missing":
        shard.unlink()
    elif fault == "cut short":
        shard.write_bytes(shard.read_bytes()[:3000])
    elif fault == "zeroed":
        shard.write_bytes(bytes(shard.stat().st_size))
    else:
        shard.write_bytes((folder / "__0_0.distcp").read_bytes().ljust(shard.stat().st_size, b"\1"))
    with pytest.raises(BadFile, match=r"__1_0\.distcp"):
        read_all(folder)


def test_a_lost_shard_of_the_optimizer_costs_only_that(tmp_path: Path) -> None:
    state = {"model.w": torch.ones(4), "optim.state.w.exp_avg": torch.ones(4)}
    folder = save_pieces(tmp_path / "d", state, {"optim.state.w.exp_avg": ((2,),)}, 2)
    (folder / "__1_0.distcp").unlink()
    with open_checkpoint(folder) as ckpt:
        assert [t.path for t in ckpt.tensors] == [("model", "w")]
        assert "shards are missing" in ckpt.notes[0]


def changed(folder: Path, change: Any) -> None:
    path = folder / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(found)
    path.write_bytes(pickle.dumps(found))


def _drop_place(m: Any) -> None:
    del m.storage_data[next(i for i in m.storage_data if i.fqn == "model.rows")]


def _drop_chunk(m: Any) -> None:
    m.state_dict_metadata["model.blocks"].chunks.pop()


def _double_chunk(m: Any) -> None:
    chunks = m.state_dict_metadata["model.vector"].chunks
    chunks[0] = chunks[-1]


def _outside(m: Any) -> None:
    for info in m.storage_data.values():
        info.relative_path = f"../{info.relative_path}"


def _packed(m: Any) -> None:
    for info in m.storage_data.values():
        info.transform_descriptors = ["zstd"]


def _other_size(m: Any) -> None:
    chunk = m.state_dict_metadata["model.whole"]
    chunk.size = chunk.chunks[0].sizes = torch.Size([9, 1])
    index = next(i for i in m.storage_data if i.fqn == "model.whole")
    assert tuple(index.offset) == (0, 0)


FAULTS = [
    (_drop_place, "never stored"),
    (_drop_chunk, "do not make up the tensor"),
    (_double_chunk, "do not make up the tensor"),
    (_outside, "outside its folder"),
    (_packed, "stream transforms"),
    (_other_size, r"the catalogue says F32 \[9, 1\]"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=[f.__name__.strip("_") for f, _ in FAULTS])
def test_a_catalogue_that_does_not_fit(folder: Path, fault: Any, words: str) -> None:
    changed(folder, fault)
    with pytest.raises(BadFile, match=words):
        read_all(folder)


def test_a_catalogue_is_never_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self) -> Any:
            import os

            return os.mkdir, (str(marker),)

    changed(folder, lambda m: setattr(m, "planner_data", Payload()))
    with pytest.raises(BadFile, match="mkdir"):
        open_dcp(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "what",
    [
        "empty catalogue",
        "no catalogue",
        "a piece alone",
        "model.safetensors beside",
        "model.safetensors.index.json beside",
    ],
)
def test_what_is_no_whole_checkpoint(folder: Path, what: str) -> None:
    if what == "empty catalogue":
        (folder / ".metadata").write_bytes(b"")
        with pytest.raises(BadFile, match="did not finish"):
            open_checkpoint(folder)
    elif what == "no catalogue":
        (folder / ".metadata").unlink()
        with pytest.raises(BadFile, match=r"without the \.metadata file"):
            open_checkpoint(folder)
    elif what == "a piece alone":
        with pytest.raises(UsageError, match="name its folder"):
            open_checkpoint(folder / "__0_0.distcp")
    else:
        (folder / what.removesuffix(" beside")).write_bytes(b"")
        with pytest.raises(Ambiguous, match="name the one that is meant"):
            open_checkpoint(folder)


def test_what_torch_itself_saves(tmp_path: Path) -> None:
    """Channels last, a view of a larger storage, a tied tensor, a bool and an integer."""
    base = torch.randn(10, 10)
    state: dict[str, Any] = {
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "turned": base.t(),
        "view": base[2:4, 1:],
        "flag": torch.tensor([True, False]),
        "count": torch.arange(5),
    }
    dcp.save({"model": state}, checkpoint_id=tmp_path / "d", no_dist=True)
    with open_checkpoint(tmp_path / "d") as ckpt:
        assert all(bytes(ckpt.read(t)) == raw(state[t.key]) for t in ckpt.tensors)
        assert len(ckpt.tensors) == 5


def test_the_folder_above_as_accelerate_leaves_it(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_pieces(tmp_path / "pytorch_model_fsdp_0", {"model.w": tensors["model.rows"]}, {"model.w": ((2,),)}, 2)
    save_pieces(tmp_path / "optimizer_0", {"optimizer.state.w.exp_avg": tensors["model.rows"]}, {}, 1)
    for name in ("scheduler.bin", "random_states_0.pkl", "sampler.bin"):
        torch.save({"step": 3}, tmp_path / name)
    with open_checkpoint(tmp_path) as ckpt:
        assert [t.path for t in ckpt.tensors] == [("model", "w")]
    save_pieces(tmp_path / "pytorch_model_fsdp_1", {"model.w": tensors["model.rows"]}, {}, 1)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        open_checkpoint(tmp_path)


def test_damage_anywhere_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    """Random bytes in the catalogue or a shard: it is refused, or what is read was not touched; never anything else."""
    import random

    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    rng = random.Random(4)
    outcomes = set()
    for _ in range(150):
        name = rng.choice([".metadata", ".metadata", "__0_0.distcp"])
        data = bytearray(whole[name])
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 2, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (folder / name).write_bytes(data)
        try:
            read_all(folder)
            outcomes.add("read")
        except VitconvError:
            outcomes.add("refused")
        (folder / name).write_bytes(whole[name])
    assert outcomes == {"read", "refused"}


def test_pieces_that_claim_more_than_they_store(folder: Path) -> None:
    def grow(m: Any) -> None:
        entry = m.state_dict_metadata["model.whole"]
        entry.size = entry.chunks[0].sizes = torch.Size([3_000_000_000, 3])

    changed(folder, grow)
    with pytest.raises(BadFile, match="fewer bytes than it has"):
        open_checkpoint(folder)


def test_pieces_in_safetensors_are_not_taken_for_tensors(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(path=str(tmp_path), save_distributed=True)
    dcp.save({"w.weight": torch.ones(4, 4)}, storage_writer=writer, no_dist=True)
    (file,) = tmp_path.glob("*.safetensors")
    with pytest.raises(BadFile, match="join the files of all ranks first"):
        open_checkpoint(file)
    with pytest.raises(BadFile):
        open_checkpoint(tmp_path)


def test_a_bit_that_fell_over_is_seen_by_the_checksum(folder: Path) -> None:
    with open_checkpoint(folder) as ckpt:
        assert ckpt.damaged() == []
        at = ckpt.segment(next(t for t in ckpt.tensors if t.key == "whole"))
        name = next(f for f in ckpt.files if f.name == "__0_0.distcp")
    data = bytearray(name.read_bytes())
    data[at.offset + 5] ^= 1
    name.write_bytes(data)
    with open_checkpoint(folder) as ckpt:
        assert ckpt.damaged() == ["__0_0.distcp: whole from [0, 0]"]
