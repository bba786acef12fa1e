"""What a verification ran in."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from vitconv import __version__

_LIBRARIES = ("torch", "timm", "torchvision", "transformers", "xformers", "triton", "numpy")


def environment(device: str, seed: int) -> dict[str, Any]:
    """Return versions, device, threads and switches that numbers depend on."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = {"vitconv": __version__, "python": platform.python_version(), **versions}
    found |= {"device": device, "threads": torch.get_num_threads(), "seed": seed}
    found["deterministic"] = torch.are_deterministic_algorithms_enabled()
    if torch.device(device).type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    else:
        found["cpu capability"] = torch.backends.cpu.get_cpu_capability()
    return found
