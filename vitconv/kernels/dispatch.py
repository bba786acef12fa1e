"""Decide per call whether a Triton kernel or its plain reference runs, and say why.

The decision is a function of what is passed in: no state is kept between calls, so one odd input does not
change the next call. `auto` falls back to the reference; `triton` insists, and is refused with the reason;
`torch` never asks. With TRITON_INTERPRET=1 set before triton is first imported, `triton` also runs on CPU
tensors, slowly, for tests; `prefer` is `auto` that takes the interpreter too.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from vitconv.errors import Refused, UsageError

Backend = Literal["auto", "torch", "triton", "prefer"]
CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """State what a call needs of a kernel; `objections` are shapes and the like that it does not support."""

    kernel: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    objections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """State what the machine offers; a value, so that the decision can be tested without a GPU."""

    triton: bool
    interpreter: bool
    capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Name the path a call takes, `triton` or `torch`, and why."""

    kernel: str
    path: Literal["triton", "torch"]
    why: str

    @property
    def triton(self) -> bool:
        """Tell whether the Triton kernel runs."""
        return self.path == "triton"

    def __str__(self) -> str:
        return f"{self.kernel}: {self.path} ({self.why})"


def machine(device: str = "cuda") -> Machine:
    """Describe this machine: triton, its interpreter, and the compute capability of the current GPU."""
    usable = device == "cuda" and torch.version.hip is None and torch.cuda.is_available()
    return Machine(
        triton=importlib.util.find_spec("triton") is not None,
        interpreter=os.environ.get("TRITON_INTERPRET") == "1",
        capability=torch.cuda.get_device_capability() if usable else None,
    )


_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _obstacles(request: Request, offers: Machine) -> list[str]:
    found = [] if offers.triton else ["triton is not installed"]
    if request.device == "cpu" and not offers.interpreter:
        found.append("the tensors are on the CPU, and TRITON_INTERPRET=1 is not set")
    elif request.device == "cuda" and offers.interpreter:
        found.append("TRITON_INTERPRET=1 is set, and the tensors are on a GPU")
    elif request.device == "cuda" and offers.capability is None:
        found.append("no NVIDIA GPU can be reached")
    elif request.device == "cuda" and offers.capability is not None and offers.capability < CAPABILITY:
        have = ".".join(str(part) for part in offers.capability)
        found.append(f"compute capability {have}, the kernels need {CAPABILITY[0]}.{CAPABILITY[1]}")
    elif request.device not in ("cpu", "cuda"):
        found.append(f"device {request.device} is neither cuda nor cpu")
    wrong = sorted({str(d).removeprefix("torch.") for d in request.dtypes if d not in _FLOATS})
    if wrong:
        found.append(f"dtype {', '.join(wrong)} is none of float32, float16, bfloat16")
    return [*found, *request.objections]


def choose(request: Request, backend: str = "auto", offers: Machine | None = None) -> Choice:
    """Decide which path a call takes.

    `auto` on the CPU runs the reference even under the interpreter, which is a test tool. `triton` raises
    Refused with every obstacle when the kernel cannot run; an unknown backend raises UsageError.
    """
    if backend not in get_args(Backend):
        raise UsageError(f"backend {backend!r} is unknown; expected one of {', '.join(get_args(Backend))}")
    if backend == "torch":
        return Choice(request.kernel, "torch", "asked for")
    obstacles = _obstacles(request, offers or machine(request.device))
    if obstacles:
        if backend == "triton":
            raise Refused(
                f"the Triton kernel of {request.kernel} cannot run: {'; '.join(obstacles)}. "
                "Use backend 'auto' to run the plain reference instead."
            )
        return Choice(request.kernel, "torch", "; ".join(obstacles))
    if backend == "auto" and request.device == "cpu":
        return Choice(request.kernel, "torch", "the tensors are on the CPU; the interpreter runs only when asked for")
    return Choice(request.kernel, "triton", "supported" if backend == "auto" else "asked for")


def together(*objections: str | None) -> tuple[str, ...]:
    """Keep the objections that were raised."""
    return tuple(text for text in objections if text)


def same_device(tensors: Sequence[torch.Tensor | None]) -> str | None:
    """Object when the tensors do not share one device."""
    names = sorted({str(t.device) for t in tensors if t is not None})
    return f"the tensors are on {', '.join(names)}" if len(names) > 1 else None
