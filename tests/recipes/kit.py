"""The small timm-style network T of the recipes, and running the command line on files made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

from vitconv.cli.main import run as run_cli
from vitconv.io.source import open_checkpoint

DIM, DEPTH, HEADS, PATCH, GRID, MLP, CLASSES = 32, 2, 4, 4, 4, 128, 5

State = dict[str, torch.Tensor]


def rand_t(
    seed: int = 0, *, head: bool = True, classes: int = CLASSES, grid: tuple[int, int] = (GRID, GRID), cls: bool = True
) -> State:
    """Return rand(T): every parameter drawn, N(0, 0.3), norms around 1."""
    gen = torch.Generator().manual_seed(seed)

    def draw(*shape: int, around: float = 0.0) -> torch.Tensor:
        return around + 0.3 * torch.randn(*shape, generator=gen)

    rows = grid[0] * grid[1] + cls
    state: State = {"pos_embed": draw(1, rows, DIM)}
    if cls:
        state["cls_token"] = draw(1, 1, DIM)
    state |= {"patch_embed.proj.weight": draw(DIM, 3, PATCH, PATCH), "patch_embed.proj.bias": draw(DIM)}
    for i in range(DEPTH):
        for name, rows_, cols in (
            ("attn.qkv", 3 * DIM, DIM),
            ("attn.proj", DIM, DIM),
            ("mlp.fc1", MLP, DIM),
            ("mlp.fc2", DIM, MLP),
        ):
            state |= {f"blocks.{i}.{name}.weight": draw(rows_, cols), f"blocks.{i}.{name}.bias": draw(rows_)}
        for name in ("norm1", "norm2"):
            state |= {f"blocks.{i}.{name}.weight": draw(DIM, around=1.0), f"blocks.{i}.{name}.bias": draw(DIM)}
    state |= {"norm.weight": draw(DIM, around=1.0), "norm.bias": draw(DIM)}
    if head:
        state |= {"head.weight": draw(classes, DIM), "head.bias": draw(classes)}
    return state


def save(path: Path, contents: Any) -> Path:
    """Write contents as safetensors (a flat dict) or by torch.save, by the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in contents.items()}, path, metadata={"format": "pt"})
    else:
        torch.save(contents, path)
    return path


class Answer:
    """What a run of the command line gave: exit code, JSON of stdout if any, and both streams."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.text = out + err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def vitconv(*arguments: object) -> Answer:
    """Run the command line in this process."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_cli([str(a) for a in arguments])
    return Answer(code, out.getvalue(), err.getvalue())


def tensors(path: Path) -> State:
    """Return the tensors of a written file."""
    from safetensors.torch import load_file

    return load_file(path if path.is_file() else path / "model.safetensors")


def equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Say whether both hold the same keys and bits."""
    return a.keys() == b.keys() and all(bits(a[k]) == bits(b[k]) for k in a)


def bits(t: torch.Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def prefixed(state: State, prefix: str) -> State:
    """Return the state with a prefix before every key."""
    return {prefix + k: v for k, v in state.items()}


__all__ = [
    "Answer",
    "CliRunner",
    "bits",
    "equal",
    "open_checkpoint",
    "prefixed",
    "rand_t",
    "save",
    "tensors",
    "vitconv",
]
