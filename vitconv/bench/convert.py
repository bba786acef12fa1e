"""Conversion against `cp` and against the usual torch scripts, whole processes, warm cache, fresh output name."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitconv.bench.process import Timing, rounds
from vitconv.io.sink import Out, file_order, write_file

CHUNK = 1 << 18


@dataclass(frozen=True)
class Size:
    """A ViT by its sizes: width, depth, MLP width, patch edge in pixels, patches, classes."""

    d: int
    depth: int
    m: int
    p: int
    n: int
    o: int = 1000


SIZES = {
    "vit_tiny": Size(192, 12, 768, 16, 196),
    "vit_small": Size(384, 12, 1536, 16, 196),
    "vit_base": Size(768, 12, 3072, 16, 196),
    "vit_large": Size(1024, 24, 4096, 16, 196),
    "vit_huge": Size(1280, 32, 5120, 14, 256),
}

RESAVE = """
import sys, torch
from safetensors.torch import load_file
torch.save(load_file(sys.argv[1]), sys.argv[2])
"""
SPLIT = """
import sys, torch
from safetensors.torch import load_file, save_file
src, dst, how = sys.argv[1:]
state = torch.load(src, weights_only=True) if src.endswith(".pth") else load_file(src)
if how == "split":
    for key in [k for k in state if ".attn.qkv." in k]:
        for part, t in zip("qkv", state.pop(key).chunk(3)):
            state[key.replace(".qkv.", f".{part}_proj.")] = t.contiguous()
save_file(state, dst)
"""


def timm_shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Return {key: shape} of a timm ViT of these sizes."""
    d, m = size.d, size.m
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, d),
        "pos_embed": (1, size.n + 1, d),
        "patch_embed.proj.weight": (d, 3, size.p, size.p),
        "patch_embed.proj.bias": (d,),
        "norm.weight": (d,),
        "norm.bias": (d,),
        "head.weight": (size.o, d),
        "head.bias": (size.o,),
    }
    for i in range(size.depth):
        for name, rows, cols in (("attn.qkv", 3 * d, d), ("attn.proj", d, d), ("mlp.fc1", m, d), ("mlp.fc2", d, m)):
            shapes |= {f"blocks.{i}.{name}.weight": (rows, cols), f"blocks.{i}.{name}.bias": (rows,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{norm}.weight": (d,), f"blocks.{i}.{norm}.bias": (d,)}
    return shapes


def make_checkpoint(path: Path, size: Size) -> None:
    """Write a timm checkpoint of random bits; contents do not matter to a copy."""
    noise = os.urandom(CHUNK)

    def chunks(nbytes: int) -> Iterator[bytes]:
        for at in range(0, nbytes, CHUNK):
            yield noise[: min(CHUNK, nbytes - at)]

    outs = []
    for key, shape in timm_shapes(size).items():
        nbytes = 4
        for n in shape:
            nbytes *= n
        outs.append(Out(key, "F32", shape, lambda nbytes=nbytes: chunks(nbytes)))  # type: ignore[misc]
    write_file(path, file_order(outs), {"format": "pt"})


def bench(name: str, folder: Path, repeat: int, *, peers: bool = True, pth: bool = False) -> dict[str, Timing]:
    """Time timm to xformers for one size against `cp` in the same rounds; return {job: timing}.

    `cp` returns before the disk has the data, so the fair pair to it is `--no-sync`; the default is paired with a copy
    that is synced.

    `peers` adds the torch scripts, where torch is installed; `pth` adds the `.pth` source, which needs torch to make.
    """
    source = folder / f"{name}.safetensors"
    make_checkpoint(source, SIZES[name])
    cp = shutil.which("cp") or "cp"
    command = [sys.executable, "-m", "vitconv", "convert", "--to", "xformers"]
    jobs: dict[str, Callable[[Path], Sequence[str]]] = {
        "cp": lambda out: [cp, str(source), str(out)],
        "vitconv --no-sync": lambda out: [*command, "--no-sync", str(source), str(out)],
        "vitconv --no-sync --prove": lambda out: [*command, "--no-sync", "--prove", str(source), str(out)],
        "vitconv --no-sync --keep-order": lambda out: [*command, "--no-sync", "--keep-order", str(source), str(out)],
        "cp, then sync FILE": lambda out: ["/bin/sh", "-c", 'cp "$0" "$1" && sync "$1"', str(source), str(out)],
        "vitconv": lambda out: [*command, str(source), str(out)],
    }
    has_torch = importlib.util.find_spec("torch") and importlib.util.find_spec("safetensors")
    if has_torch and pth:
        pickled = folder / f"{name}.pth"
        _resave(source, pickled)
        jobs["vitconv --no-sync, .pth"] = lambda out: [*command, "--no-sync", str(pickled), str(out)]
        if peers:
            jobs["torch.load, split, save_file"] = lambda out: _script(pickled, out, "split")
    if has_torch and peers:
        jobs["load_file, save_file"] = lambda out: _script(source, out, "copy")
    try:
        return rounds(jobs, folder, repeat)
    finally:
        source.unlink(missing_ok=True)
        (folder / f"{name}.pth").unlink(missing_ok=True)


def _script(source: Path, out: Path, how: str) -> list[str]:
    return [sys.executable, "-c", SPLIT, str(source), str(out), how]


def _resave(source: Path, pickled: Path) -> None:
    # In a process of its own: a child's peak memory counts what its parent held when it was made.
    subprocess.run([sys.executable, "-c", RESAVE, str(source), str(pickled)], check=True)  # noqa: S603
