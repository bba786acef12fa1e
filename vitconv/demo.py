"""The main job on a really trained network: timm to xformers to transformers to timm, every step proved and run."""

from __future__ import annotations

import filecmp
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.convert import convert
from vitconv.conversion.diff import diff
from vitconv.conversion.prepare import Order
from vitconv.conversion.recognise import recognise
from vitconv.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

STEPS = (("xformers", "1-xformers"), ("hf-vit", "2-hf-vit"), ("timm", "3-timm"))


@dataclass(frozen=True)
class Step:
    """One conversion: where to, what it wrote, whether its weights are the source's bits, how long it took."""

    to: str
    folder: Path
    tensors: int
    same_bits: bool
    seconds: float


@dataclass(frozen=True)
class Loaded:
    """One converted file in its own library.

    Attributes:
        library: the library and its version, or the twin that stands for it.
        loaded: whether it was loaded strictly; None when the library is not installed, `why` then says so.
        accuracy: share of the held-out images that are right.
        worst: largest difference of a logit from those that were stored when the network was trained.
    """

    library: str
    loaded: bool | None
    why: str = ""
    accuracy: float | None = None
    worst: float | None = None


@dataclass(frozen=True)
class Demo:
    """What the demo did."""

    steps: tuple[Step, ...]
    loaded: tuple[Loaded, ...]
    same_file: bool
    accuracy: float | None = None

    @property
    def good(self) -> bool:
        """True when every step kept every bit, and every library that is there loaded its file and agreed."""
        numbers = all(x.loaded is None or (x.loaded and x.worst is not None and x.worst < 1e-4) for x in self.loaded)
        return self.same_file and all(s.same_bits for s in self.steps) and numbers


def fixture() -> Path:
    """Return the folder of the trained network.

    Raises:
        UsageError: it is not there: it ships with the source distribution and the wheel.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "fixtures" / "digits", here.parent / "fixtures" / "digits"):
        if (folder / "vit_digits.safetensors").is_file():
            return folder
    raise UsageError("the trained network of the demo is not installed; run it from the source tree")


def demo(folder: Path, *, told: Callable[[str], None] = lambda _: None) -> Demo:
    """Run the demo into `folder`; `told` hears what is being done.

    Raises:
        UsageError: the folder holds one of the outputs already.
    """
    source = fixture() / "vit_digits.safetensors"
    taken = [name for _, name in STEPS if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder} holds {taken[0]} already; give an empty folder")
    steps, at = [], source
    for to, name in STEPS:
        told(f"{at.name} to {to}")
        began = time.monotonic()
        prepared, _ = convert(at, folder / name, Order(to=to, plain=to == "timm", prove=True))
        seconds = time.monotonic() - began
        same = _same(source, folder / name)
        steps.append(Step(to, folder / name, len(prepared.plan.targets), same, seconds))
        at = folder / name
    same_file = filecmp.cmp(source, folder / "3-timm" / "model.safetensors", shallow=False)
    loaded = []
    for library, load in _LOADERS:
        told(f"{library}: load and run")
        loaded.append(_loaded(library, load, folder))
    return Demo(tuple(steps), tuple(loaded), same_file)


def _same(a: Path, b: Path) -> bool:
    left, right = recognise(a), recognise(b)
    with left.checkpoint, right.checkpoint:
        return diff(left, right).same


def _loaded(library: str, load: Callable[[Path], Iterator[Any]], folder: Path) -> Loaded:
    needed = ("torch", "numpy", "safetensors", *({"xformers": ("timm",)}.get(library, (library,))))
    lacking = [name for name in needed if find_spec(name) is None]
    if lacking:
        return Loaded(library, None, f"{' and '.join(lacking)} not installed")
    import numpy as np
    import torch

    name, run = load(folder)
    held_out = np.load(fixture() / "held_out.npz")
    with torch.inference_mode():
        logits = run(torch.from_numpy(held_out["images"]))
    right = (logits.argmax(1).numpy() == held_out["labels"]).mean()
    worst = (logits - torch.from_numpy(held_out["logits"])).abs().max().item()
    return Loaded(name, True, "", float(right), worst)


def _timm(folder: Path) -> tuple[str, Callable[[Tensor], Tensor]]:
    import timm

    model = timm.create_model(f"local-dir:{folder / '3-timm'}", pretrained=True).eval()
    return f"timm {timm.__version__}", model


def _transformers(folder: Path) -> tuple[str, Callable[[Tensor], Tensor]]:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    cls = transformers.ViTForImageClassification
    model, info = cls.from_pretrained(folder / "2-hf-vit", output_loading_info=True)
    odd = {k: v for k, v in info.items() if k != "error_msgs" and v}
    if odd:
        raise UsageError(f"transformers did not load the file strictly: {odd}")
    model.eval()
    return f"transformers {transformers.__version__}", lambda x: model(x).logits


def _xformers(folder: Path) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Build the first public report's ViT with the real factory, or with its twin where there is none."""
    from safetensors.torch import load_file
    from torch import nn

    from vitconv.hosts.base.host import Host, Spec
    from vitconv.registry import HOSTS, load

    real: Host = load(HOSTS, "xformers")
    host: Host = load(HOSTS, "xformers-style") if real.why_not() else real
    config = folder / "1-xformers" / "xformers.json"
    built = host.build(Spec(model=str(config), options={"image": 8, "patch": 2, "channels": 1, "classes": 10}))
    built.module.load_state_dict(load_file(folder / "1-xformers" / "model.safetensors"), strict=True)
    # What the factory's configuration cannot say: the digits were trained at timm's eps.
    for module in built.module.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    name = f"xformers {built.facts.release}" if host is real else "the twin of xformers' factory (xformers-style)"
    return name, built


_LOADERS: tuple[tuple[str, Callable[[Path], Any]], ...] = (
    ("timm", _timm),
    ("transformers", _transformers),
    ("xformers", _xformers),
)
