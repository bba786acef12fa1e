"""Paths between layouts against `cp` of the source and against the owning library's own loader, whole processes.

Each round runs every job once, warm cache, fresh output name; sources are float32 of random bits around one.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconv.bench.convert import SIZES, Size
from vitconv.bench.process import Timing, rounds

# The library reads the author's file into its own network, whose state dict is then written.
NPZ = """
import sys, timm
from safetensors.torch import save_file
d, depth, heads, p, image = map(int, sys.argv[3:])
net = timm.models.VisionTransformer(img_size=image, patch_size=p, embed_dim=d, depth=depth, num_heads=heads)
net.load_pretrained(sys.argv[1])
save_file(net.state_dict(), sys.argv[2])
"""
FILTER = """
import sys, timm, torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import checkpoint_filter_fn
d, depth, heads, p, image = map(int, sys.argv[3:])
clip = "clip" in sys.argv[1]
state = load_file(sys.argv[1])
scaled = 1.0 if any("ls1" in key for key in state) else None
more = {"pre_norm": True, "num_classes": 512} if clip else {"init_values": scaled, "num_classes": 0}
net = timm.models.VisionTransformer(img_size=image, patch_size=p, embed_dim=d, depth=depth, num_heads=heads, **more)
net.load_state_dict(checkpoint_filter_fn(state, net))
save_file(net.state_dict(), sys.argv[2])
"""


@dataclass(frozen=True)
class Route:
    """One path: the source's layout and file ending, the target's layout, the library's script, further options."""

    source: str
    suffix: str
    target: str
    script: str
    options: tuple[str, ...] = ()


PATHS: Mapping[str, Route] = {
    "vit-jax npz to timm": Route("vit-jax", ".npz", "timm", NPZ),
    "open-clip to timm": Route("open-clip", ".safetensors", "timm", FILTER),
    "dinov2 to timm": Route("dinov2", ".safetensors", "timm", FILTER, ("--drop", "embed.mask")),
}
HEAD_WIDTH = 64


def shapes_of(dialect: str, size: Size) -> dict[str, tuple[int, ...]]:
    """Return {key: shape} of a network of these sizes, as a layout's default variant has it."""
    from vitconv.layout.rule import Rule
    from vitconv.layout.shape import shape_of
    from vitconv.registry import DIALECTS, load

    axes = {"d": size.d, "a": size.d, "m": size.m, "p": size.p, "q": size.p, "c": 3, "n": size.n, "*": 3}
    axes |= {"h": size.d // HEAD_WIDTH, "e": HEAD_WIDTH, "o": 512 if dialect == "open-clip" else size.o}
    wanted = {"numbering": "published"} if dialect == "vit-jax" else {}
    out: dict[str, tuple[int, ...]] = {}
    # Of what is optional a pretrained network has these.
    usual = {"open-clip": ("ln_pre", "proj"), "vit-jax": ("head/",), "dinov2": ("blocks",)}[dialect]
    for item in load(DIALECTS, dialect).variant(wanted).items:
        rule = item.entry
        if not isinstance(rule, Rule) or (item.optional and not item.key.startswith(usual)):
            continue
        for i in range(size.depth) if "{i}" in item.key else (0,):
            out[item.key.replace("{i}", str(i))] = shape_of(rule.axes, axes)
    return out


def make_source(path: Path, dialect: str, size: Size) -> None:
    """Write a file of a layout; the values do not matter, but they are no zeros."""
    import numpy as np

    rng = np.random.default_rng(0)
    # As open_clip's whole network has it, which is what timm looks for.
    prefix = "visual." if dialect == "open-clip" else ""
    arrays = {prefix + k: rng.random(s, np.float32) for k, s in shapes_of(dialect, size).items()}
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **arrays)  # type: ignore[arg-type]
        return
    from vitconv.io.sink import Out, file_order, write_file

    outs = [Out(k, "F32", v.shape, _chunks(v)) for k, v in arrays.items()]
    write_file(path, file_order(outs), {"format": "pt"})


def _chunks(array: Any) -> Callable[[], Any]:
    return lambda: iter([memoryview(array).cast("B")])


def bench(path: str, size: str, folder: Path, repeat: int, *, peers: bool = True) -> dict[str, Timing]:
    """Time one path for one size; return {job: timing}. `peers` adds the library's loader where it is installed."""
    job, sizes = PATHS[path], SIZES[size]
    source = folder / f"{job.source}{job.suffix}"
    make_source(source, job.source, sizes)
    cp = shutil.which("cp") or "cp"
    ours = [sys.executable, "-m", "vitconv", "convert", "--to", job.target, *job.options]
    jobs: dict[str, Callable[[Path], Sequence[str]]] = {
        "cp": lambda out: [cp, str(source), str(out)],
        "vitconv --no-sync": lambda out: [*ours, "--no-sync", str(source), str(out)],
        "vitconv": lambda out: [*ours, str(source), str(out)],
    }
    if peers and all(importlib.util.find_spec(name) for name in ("torch", "timm", "safetensors")):
        image = int(sizes.n**0.5) * sizes.p
        told = [str(x) for x in (sizes.d, sizes.depth, sizes.d // HEAD_WIDTH, sizes.p, image)]
        jobs["timm's own loader"] = lambda out: [sys.executable, "-c", job.script, str(source), str(out), *told]
    try:
        return rounds(jobs, folder, repeat)
    finally:
        source.unlink(missing_ok=True)
