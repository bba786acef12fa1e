"""Which tensors does an init function set? Fill all with NaN, run it, and look what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitconv.errors import Refused, UsageError
from vitconv.layout.held import refuse_unheld

State = Literal["set", "twice", "partly", "scaled", "left", "replaced", "outside"]

MEANING: Mapping[str, str] = {
    "set": "set once by the function",
    "twice": "set more than once: the last one counts",
    "partly": "only some of its elements are set",
    "scaled": "changed in place but never set: it is its old value times something",
    "left": "not touched: it stays as the constructor left it",
    "replaced": "the attribute is another tensor now: an optimiser made before holds the old one",
    "outside": "a tensor that is neither parameter nor buffer: no init walk, optimiser or state dict sees it",
}

# What writes every element of its target without reading it.
_FILLS = frozenset(
    {"uniform_", "normal_", "random_", "fill_", "zero_", "copy_", "bernoulli_", "exponential_", "log_normal_",
     "cauchy_", "geometric_", "set_"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Covered:
    """One tensor.

    Attributes:
        name: its name in the module.
        module: the class of the module that holds it.
        state: see `MEANING`.
        share: share of its elements that the function set.
        times: how often it was written whole or in parts, counted in whole tensors, rounded up.
        before: what the constructor left there, in words.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    state: State
    share: float
    times: int
    before: str

    @property
    def missed(self) -> bool:
        """Return True when something is to be looked at."""
        return self.state != "set"


def coverage(module: nn.Module, fn: Callable[[nn.Module], Any], *, each: bool | None = None) -> tuple[Covered, ...]:
    """Run an init function on a module filled with NaN, and return one row per parameter and per hidden tensor.

    The module and torch's generators are put back afterwards, bit for bit.

    Args:
        module: a network whose parameters hold their elements.
        fn: the init function.
        each: True calls it once per submodule, as `module.apply(fn)`; False once with the whole module; None tries
            the whole, and each submodule when that set nothing.

    Raises:
        UsageError: the module has no parameters, or the function fails on it.
        Refused: parameters are on the meta device, or partitioned away.
    """
    if not any(True for _ in module.parameters()):
        raise UsageError(f"{type(module).__name__} has no parameters to set")
    refuse_unheld(module.named_parameters(), type(module).__name__)
    if each is not None:
        return _run(module, fn, each)
    try:
        rows = _run(module, fn, False)
    except UsageError as whole:
        # One that is written for single layers may fail on the whole.
        try:
            return _run(module, fn, True)
        except UsageError:
            raise whole from whole.__cause__
    # What only scales has found its layers.
    return rows if any(row.times or row.state == "scaled" for row in rows) else _apart(module, fn, rows)


def _apart(module: nn.Module, fn: Callable[[nn.Module], Any], rows: tuple[Covered, ...]) -> tuple[Covered, ...]:
    """Run the function on each submodule, and keep what it did to the whole where it fails on one."""
    try:
        return _run(module, fn, True)
    except UsageError:
        return rows


def hidden_tensors(module: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield (name, module, tensor) of float tensors held as plain attributes, in lists, tuples or dicts too."""
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}
    for path, owner in module.named_modules():
        for name, value in vars(owner).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for suffix, tensor in _tensors(value):
                if tensor.is_floating_point() and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield ".".join(filter(None, (path, name + suffix))), owner, tensor


def _tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield "", value
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{k}]", v) for k, v in enumerate(value) if isinstance(v, Tensor))
    elif isinstance(value, dict):
        yield from ((f"[{k!r}]", v) for k, v in value.items() if isinstance(v, Tensor))


def _run(module: nn.Module, fn: Callable[[nn.Module], Any], each: bool) -> tuple[Covered, ...]:
    owners = {id(p): owner for owner in module.modules() for p in owner.parameters(recurse=False)}
    params = {name: p for name, p in module.named_parameters() if p.is_floating_point()}
    hidden = {name: (owner, t) for name, owner, t in hidden_tensors(module)}
    watched = {**params, **{name: t for name, (_, t) in hidden.items()}}
    with _kept(module, watched):
        with torch.no_grad():
            for t in watched.values():
                t.fill_(math.nan)
        watch = _Watch(watched)
        try:
            with torch.random.fork_rng(devices=[]), watch:
                module.apply(fn) if each else fn(module)
        except Refused:
            raise
        except Exception as e:
            name = getattr(fn, "__name__", type(fn).__name__)
            on = f"the submodules of {type(module).__name__}, one after another" if each else type(module).__name__
            raise UsageError(f"{name} fails on {on}: {type(e).__name__}: {e}") from e
        now = dict(module.named_parameters())
        rows = []
        for name, t in watched.items():
            share = 1.0 - float(t.detach().isnan().float().mean()) if t.numel() else 1.0
            written = watch.written.get(name, 0)
            state = _state(share, math.ceil(written / max(t.numel(), 1)), name in watch.touched)
            if name in hidden:
                state = "outside"
            elif now.get(name) is not t:
                state = "replaced"
            rows.append((name, state, share, math.ceil(written / max(t.numel(), 1))))
    return tuple(
        Covered(
            name,
            type(hidden[name][0] if name in hidden else owners[id(watched[name])]).__name__,
            tuple(watched[name].shape),
            state,
            share,
            times,
            described(watched[name]),
        )
        for name, state, share, times in rows
    )


def _state(share: float, times: int, touched: bool) -> State:
    if share == 1.0:
        return "twice" if times > 1 else "set"
    if share > 0.0:
        return "partly"
    return "scaled" if touched else "left"


def described(tensor: Tensor) -> str:
    """Return what a tensor holds, in a few words: a constant, or mean and std; or that it looks uninitialised."""
    t = tensor.detach().double().flatten()
    if not t.numel():
        return "empty"
    low, high = (float(x) for x in t.aminmax())
    if low == high:
        return f"{low:g} everywhere"
    if not math.isfinite(low + high) or max(abs(low), abs(high)) > 1e3:
        return f"{low:.2g} to {high:.2g}: looks like uninitialised memory"
    return f"std {float(t.std(correction=0)):.4g}, {low:.3g} to {high:.3g}"


@contextmanager
def _kept(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put every tensor back as it was when the context ends; data and parameters that were swapped too."""
    places = [(owner, name, p) for owner in module.modules() for name, p in owner.named_parameters(recurse=False)]
    before = {name: (t.data, t.detach().clone()) for name, t in tensors.items()}
    try:
        yield
    finally:
        for owner, name, p in places:
            setattr(owner, name, p)
        with torch.no_grad():
            for name, t in tensors.items():
                data, copy = before[name]
                t.data = data
                t.copy_(copy)


class _Watch(TorchDispatchMode):
    """Count the elements of each watched tensor that are written without being read, and note any change in place."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.places = {t.untyped_storage().data_ptr(): name for name, t in tensors.items() if t.numel()}
        self.written: dict[str, int] = {}
        self.touched: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.endswith("_") and args and isinstance(args[0], Tensor) and args[0].numel():
            target = self.places.get(args[0].untyped_storage().data_ptr())
            if target is not None:
                self.touched.add(target)
                if name in _FILLS:
                    self.written[target] = self.written.get(target, 0) + args[0].numel()
        return func(*args, **(kwargs or {}))
