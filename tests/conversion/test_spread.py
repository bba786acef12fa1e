"""Distributed checkpoints as a target, lost shards in a source, and conversions by several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conversion_kit import timm_vit
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run
from vitconv.conversion.ranks import Ranks
from vitconv.errors import Refused
from vitconv.io import dcp_write

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "pooling=token", "grid=4x4")
SETS = [word for fact in FACTS for word in ("--set", fact)]


def call(*words: object) -> int:
    return run(["convert", *map(str, words)])


def loaded(folder: Path, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what torch's own reader finds under the names and shapes of `like`."""
    state = {key: torch.full_like(value, float("nan")) for key, value in like.items()}
    dcp.load({"model": state}, checkpoint_id=folder, no_dist=True)
    return state


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def source(save) -> Path:
    return save(timm_vit().state_dict())


def test_torch_reads_what_is_written_and_it_comes_back(source: Path, tmp_path: Path, capsys) -> None:
    folder, file, back = tmp_path / "d", tmp_path / "o.safetensors", tmp_path / "back.safetensors"
    assert call(source, folder, "--to", "hf-vit", "--format", "dcp", "--prove", *SETS) == 0
    assert "read again" in capsys.readouterr().out
    assert call(source, file, "--to", "hf-vit") == 0
    assert same(loaded(folder, load_file(file)), load_file(file))
    assert (folder / "config.json").exists()
    assert call(folder, back, "--to", "timm", "--prove") == 0
    assert same(load_file(back), load_file(source))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_another_checkpoint_is_not_written_beside_it(source: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "d"
    assert call(source, folder, "--to", "hf-vit", "--format", "dcp", *SETS) == 0
    before = {p.name for p in folder.iterdir()}
    for words in ((), ("--shard-size", "20KB")):
        assert call(source, folder, "--to", "hf-vit", *words, *SETS) == 3
        assert "holds a distributed checkpoint already" in capsys.readouterr().err
        assert {p.name for p in folder.iterdir()} == before


def test_a_size_of_shards_is_not_of_a_distributed_checkpoint(source: Path, tmp_path: Path, capsys) -> None:
    words = ("--format", "dcp", "--shard-size", "20KB")
    assert call(source, tmp_path / "d", "--to", "hf-vit", *words, *SETS) == 2
    assert "--shard-size is of shards of safetensors" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_the_facts_travel_as_values(source: Path, tmp_path: Path, capsys) -> None:
    assert call(source, tmp_path / "d", "--to", "timm", "--format", "dcp", *SETS) == 0
    assert call(source, tmp_path / "plain", "--to", "timm", "--format", "dcp", "--plain", *SETS) == 0
    capsys.readouterr()
    for folder, said in ((tmp_path / "d", True), (tmp_path / "plain", False)):
        (folder / "config.json").unlink(missing_ok=True)
        assert run(["inspect", str(folder)]) == 0
        assert ("metadata vitconv.facts" in capsys.readouterr().out) == said


def test_every_float_dtype(source: Path, tmp_path: Path) -> None:
    for dtype in ("F16", "BF16", "F64"):
        folder, file = tmp_path / dtype, tmp_path / f"{dtype}.safetensors"
        assert call(source, folder, "--to", "timm", "--format", "dcp", "--dtype", dtype) == 0
        assert call(source, file, "--to", "timm", "--dtype", dtype) == 0
        assert same(loaded(folder, load_file(file)), load_file(file))


PLACES = [("x.safetensors", 2, "is a folder"), ("held", 3, "holds weights")]


@pytest.mark.parametrize(("target", "code", "words"), PLACES, ids=["a file", "weights there"])
def test_where_it_goes(source: Path, tmp_path: Path, capsys, target: str, code: int, words: str) -> None:
    assert call(source, tmp_path / "held", "--to", "timm", "--format", "dcp") == 0
    before = sorted(p.name for p in tmp_path.rglob("*"))
    assert call(source, tmp_path / target, "--to", "timm", "--format", "dcp") == code
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_a_folder_that_is_there_is_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes.txt").write_text("mine")
    assert call(source, tmp_path / "d", "--to", "timm", "--format", "dcp") == 0
    assert {p.name for p in (tmp_path / "d").iterdir()} >= {"notes.txt", ".metadata", "__0_0.distcp"}


def test_nothing_is_left_when_a_tensor_cannot_be_read(source: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def broken(out: Any) -> Any:
        raise Refused(f"{out.key}: planted")

    monkeypatch.setattr(dcp_write, "tensor_of", broken)
    assert call(source, tmp_path / "d", "--to", "timm", "--format", "dcp") == 3
    assert "planted" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


def spoiled(source: Path, folder: Path, key: str, rows: slice) -> Path:
    """Save a distributed checkpoint in which some rows of one tensor are zeros."""
    state = {k: v.clone() for k, v in load_file(source).items()}
    state[key][rows] = 0
    sys.path.insert(0, str(Path(__file__).parents[1] / "io"))
    from dcp_kit import save_pieces

    cuts = {f"model.{k}": ((v.shape[0] // 2,),) for k, v in state.items() if v.ndim and v.shape[0] > 1}
    return save_pieces(folder, {f"model.{k}": v for k, v in state.items()}, cuts, 2)


LOST = [
    ("blocks.0.attn.qkv.weight", slice(None), ["__0_0", "__1_0"]),
    ("blocks.1.mlp.fc2.weight", slice(16, None), ["__1_0"]),
    ("patch_embed.proj.weight", slice(0, 16), ["__0_0"]),
]


@pytest.mark.parametrize(("key", "rows", "files"), LOST, ids=["all of it", "the second half", "the first half"])
@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_a_weight_of_zeros_is_a_lost_shard(
    source: Path, tmp_path: Path, capsys, key: str, rows: slice, files: list[str], form: str
) -> None:
    folder, out = spoiled(source, tmp_path / "d", key, rows), tmp_path / "out"
    args = (folder, out, "--to", "hf-vit", "--format", form)
    assert call(*args) == 3
    err = capsys.readouterr().err
    assert "all zeros" in err and key in err and all(f"{file}.distcp" in err for file in files)
    assert not out.exists()
    assert call(*args, "--allow-zeros") == 0
    assert "were let pass" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["blocks.0.attn.qkv.bias", "cls_token", "pos_embed", "norm.bias"])
def test_zeros_that_a_network_may_have(source: Path, tmp_path: Path, key: str) -> None:
    folder = spoiled(source, tmp_path / "d", key, slice(None))
    assert call(folder, tmp_path / "out", "--to", "hf-vit") == 0


class Two(Ranks):
    """The first of two processes; the other one says `other`."""

    def __init__(self, other: Any) -> None:
        self.rank, self.size, self.group, self.ours, self.other = 0, 2, None, False, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_a_failure_anywhere_is_a_failure_everywhere() -> None:
    assert Two(None).together(lambda: 3) == 3
    with pytest.raises(Refused, match="process 1: disk full"):
        Two("disk full").together(lambda: 3)

    def own() -> None:
        raise Refused("mine")

    with pytest.raises(Refused, match="mine"):
        Two("disk full").together(own)


def test_the_parts_are_shared_out_whole_and_evenly() -> None:
    sizes = [7, 1, 5, 3, 3, 9, 0, 2]
    one, two = Two(None), Two(None)
    two.rank = 1
    parts = [one.share(sizes), two.share(sizes)]
    assert sorted(parts[0] + parts[1]) == list(range(len(sizes)))
    assert abs(sum(sizes[j] for j in parts[0]) - sum(sizes[j] for j in parts[1])) <= 1


def torchrun(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitconv"]
    command = [*start, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_two_processes_write_their_own_shards(source: Path, tmp_path: Path, form: str) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone.safetensors"
    done = torchrun(tmp_path, "convert", source, out, "--to", "hf-vit", "--format", form, "--prove", *SETS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("converted") == 1
    assert "2 processes wrote" in done.stdout
    assert call(source, alone, "--to", "hf-vit") == 0
    want = load_file(alone)
    if form == "dcp":
        assert {p.name for p in out.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp", "config.json"}
        assert same(loaded(out, want), want)
    else:
        shards = sorted(out.glob("model-*.safetensors"))
        assert len(shards) >= 2 and (out / "model.safetensors.index.json").exists()
        assert same({k: v for shard in shards for k, v in load_file(shard).items()}, want)


def zero_1(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """Lay out a folder of DeepSpeed's ZeRO stage 1: whole weights, fp32 copies in pieces by rank."""
    step = folder / "zero" / "global_step3"
    step.mkdir(parents=True)
    torch.save({"module": state, "optimizer": None, "ds_version": "0.15"}, step / "mp_rank_00_model_states.pt")
    pieces = {"single_partition_of_fp32_groups": [torch.zeros(9)], "zero_stage": 1, "partition_count": 2}
    for r in (0, 1):
        torch.save({"optimizer_state_dict": pieces}, step / f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
    (step.parent / "latest").write_text("global_step3")
    return step.parent


SHARDED = """
import sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from conversion_kit import timm_vit
dist.init_process_group("gloo")
net = timm_vit()
net.load_state_dict(load_file(sys.argv[1]))
mesh = init_device_mesh("cpu", (2,))
for block in net.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(net, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
net(torch.randn(2, 3, *net.patch_embed.img_size)).sum().backward()
optimizer.step()
model, moments = get_state_dict(net, optimizer)
dcp.save({"model": model, "optim": moments}, checkpoint_id=sys.argv[2])
dist.destroy_process_group()
"""


def fsdp(folder: Path, source: Path) -> Path:
    """Train one step of no length under FSDP2 in two processes, and save as torch does: each its own shards."""
    (folder / "sharded.py").write_text(SHARDED)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, str(folder / "sharded.py"), str(source), str(folder / "fsdp")]
    subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return folder / "fsdp"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["DeepSpeed ZeRO-1", "FSDP2"])
def test_two_processes_read_what_an_engine_saved(engine: str, source: Path, tmp_path: Path) -> None:
    held = fsdp(tmp_path, source) if engine == "FSDP2" else zero_1(tmp_path, load_file(source))
    if engine == "FSDP2":
        assert {p.name for p in held.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    out, alone = tmp_path / "out", tmp_path / "alone.safetensors"
    done = torchrun(tmp_path, "convert", held, out, "--to", "hf-vit", "--format", "dcp", "--prove", *SETS)
    assert done.returncode == 0, done.stderr
    assert "2 processes wrote" in done.stdout
    assert call(source, alone, "--to", "hf-vit") == 0
    assert same(loaded(out, load_file(alone)), load_file(alone))


@pytest.mark.slow
def test_two_processes_refuse_together(source: Path, tmp_path: Path) -> None:
    state = load_file(source) | {"stranger": torch.ones(3)}
    save_file(state, tmp_path / "odd.safetensors")
    done = torchrun(tmp_path, "convert", tmp_path / "odd.safetensors", tmp_path / "out", "--to", "hf-vit")
    assert done.returncode != 0
    assert "stranger" in done.stderr
    assert not (tmp_path / "out").exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """64 tensors of 4 MiB, in a process of its own."""
    code = f"""
import resource, torch, torch.distributed.checkpoint
from pathlib import Path
from vitconv.io.dcp_write import write_dcp
from vitconv.io.header import Out
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def out(i):
    return Out(f"w{{i}}", "F32", (1 << 20,), lambda: iter([bytes(4 << 20)]))
write_dcp(Path({str(tmp_path / "a")!r}), {{("m", "w"): out(0)}}, {{}}, durable=False)
before = peak()
write_dcp(Path({str(tmp_path / "b")!r}), {{("m", f"w{{i}}"): out(i) for i in range(64)}}, {{}}, durable=False)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), check=True)
    assert int(done.stdout) < 32 << 10
