"""Folders that DeepSpeed's save_checkpoint writes: what in them is whole is read, what is in pieces is refused.

Layout: repository deepspeedai/DeepSpeed, `deepspeed/runtime/engine.py`: `latest` names the folder of a step; in it
`mp_rank_00_model_states.pt` holds the weights up to ZeRO stage 2, and `zero_pp_rank_*_model_states.pt` placeholders in
stage 3. The `*_optim_states.pt` hold flat pieces of the optimizer and of the fp32 weights.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitconv.errors import BadFile, UsageError
from vitconv.io.contents import some

_STEP = re.compile(r"global_step\d+")
_WEIGHTS = re.compile(r"mp_rank_\d+_model_states\.pt")
_PLACEHOLDERS = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
_OPTIMIZER = re.compile(r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt")
_PIPELINE = re.compile(r"layer_\d+-.*model_states\.pt")
_MAX_LATEST = 4096


def gather_first(folder: Path) -> str:
    """Return how the weights are gathered, for messages; `folder` is the one that holds the steps."""
    script = folder / "zero_to_fp32.py"
    return (
        f"gather them first, with the script that DeepSpeed left there: python {script} {folder} OUT, and convert OUT"
        " (or train with stage3_gather_16bit_weights_on_model_save, or call model.save_16bit_model)"
    )


def find_deepspeed(folder: Path, names: list[str]) -> tuple[Path, str] | None:
    """Return (file with the weights, note) of a DeepSpeed folder, or None when `folder` is none.

    Raises:
        BadFile: the weights are in pieces; the message says how they are gathered.
        UsageError: several steps, or none.
    """
    here = [name for name in names if _WEIGHTS.fullmatch(name) or _PLACEHOLDERS.fullmatch(name)]
    here += [name for name in names if _OPTIMIZER.fullmatch(name) or _PIPELINE.fullmatch(name)]
    if here:
        home = folder.parent if (folder.parent / "latest").is_file() else folder
        return _of_step(folder, names, home)
    steps = [name for name in names if _STEP.fullmatch(name) and (folder / name).is_dir()]
    if "latest" in names or (steps and "zero_to_fp32.py" in names):
        step = _latest(folder, steps)
        if step is None:
            return None
        return _of_step(step, sorted(entry.name for entry in step.iterdir()), folder)
    if "zero_to_fp32.py" in names:
        raise BadFile(f"{folder}: DeepSpeed's script is there, and no weights; {gather_first(folder)}")
    return None


def _latest(folder: Path, steps: list[str]) -> Path | None:
    """Return the folder that `latest` names: a step, or what Lightning and accelerate call it; None if none is."""
    try:
        text = (folder / "latest").read_bytes()[:_MAX_LATEST].decode("utf-8", "replace").strip()
    except OSError:
        text = steps[0] if len(steps) == 1 else ""
    plain = bool(text) and Path(text).name == text and text not in (".", "..") and "\0" not in text
    if plain and (folder / text).is_dir():
        return folder / text
    if not steps:
        if (folder / "zero_to_fp32.py").exists():
            raise BadFile(f"{folder}: DeepSpeed's script is there, and no weights; {gather_first(folder)}")
        return None
    raise UsageError(
        f"{folder}: `latest` names {some([text])}, which is no folder of a step; there are {some(steps)}: name one"
    )


def _of_step(step: Path, names: list[str], home: Path) -> tuple[Path, str]:
    if any(_PLACEHOLDERS.fullmatch(name) for name in names):
        count = sum(bool(_PLACEHOLDERS.fullmatch(name)) for name in names)
        raise BadFile(
            f"{step}: ZeRO stage 3, the weights are cut up over {count} ranks and only placeholders are left of them;"
            f" {gather_first(home)}"
        )
    if any(_PIPELINE.fullmatch(name) for name in names):
        raise BadFile(f"{step}: a pipeline of DeepSpeed, each layer in a file; save the model's whole state dict")
    weights = [name for name in names if _WEIGHTS.fullmatch(name)]
    if len(weights) > 1:
        raise BadFile(
            f"{step}: {len(weights)} tensor-parallel pieces of the model ({some(weights)}); merge them with the tool of"
            " the trainer that cut them"
        )
    if not weights:
        raise BadFile(f"{step}: only the optimizer's pieces are there, not the weights; {gather_first(home)}")
    note = ""
    if any(_OPTIMIZER.fullmatch(name) for name in names):
        note = (
            f"read {weights[0]}: the weights in the precision of training; the optimizer's fp32 copies are in pieces"
            f" beside it, and were not read ({home / 'zero_to_fp32.py'} gathers them)"
        )
    return step / weights[0], note
