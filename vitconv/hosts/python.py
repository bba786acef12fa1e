"""The user's own network: package.module:factory, or a file.py:factory"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.errors import Refused, UsageError, VitconvError, in_a_line
from vitconv.hosts import reference, timm, torchvision, transformers, xformers, xformers_style
from vitconv.hosts.base.autocasts import remembering
from vitconv.hosts.base.facts import activation_fact, eps_facts, norm_kind
from vitconv.hosts.base.host import Built, Host, Inputs, Spec
from vitconv.hosts.base.images import image_shape
from vitconv.hosts.base.places import Places, Table, locate, taps_of
from vitconv.hosts.base.survey import survey
from vitconv.layout.semantics import Semantics

# Facts that a factory may take as arguments.
SIZES = frozenset({"image_size", "patch_size"})
_HOSTS = (reference, timm, torchvision, transformers, xformers_style, xformers)
_TABLES: tuple[tuple[str, Table], ...] = (
    ("canonical", reference.TABLE),
    ("timm", timm.TABLE),
    ("torchvision", torchvision.TABLE),
    ("hf-vit", transformers.TABLE),
)


def make(spec: Spec) -> nn.Module:
    """Import and call the factory; options are its arguments. The result must be a torch module.

    This runs the user's own code, as importing it does. A size of images that the factory has no argument for is not
    given to it: it is that of the images to run.

    Raises:
        UsageError: not of the form `module:name`, no such module or name, the factory takes no such arguments, or the
            result is not a module.
    """
    with remembering():
        network = load(spec.model)
        made = network if isinstance(network, nn.Module) else network(**_arguments(network, spec))
    if not isinstance(made, nn.Module):
        raise UsageError(f"python:{spec.model} gives {type(made).__name__}, expected a torch.nn.Module")
    return made.eval()


def _arguments(factory: Callable[..., Any], spec: Spec) -> dict[str, Any]:
    options = dict(spec.options)
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # of a builtin: what it takes is not said
        return options
    takes = signature.parameters
    if not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        options = {name: value for name, value in options.items() if name in takes or name not in SIZES}
    try:
        signature.bind(**options)
    except TypeError as e:
        known = f"it takes {', '.join(takes)}" if takes else "it takes none"
        raise UsageError(f"python:{spec.model}: arguments do not fit: {e}; {known}") from None
    return options


def load(reference_text: str) -> Callable[..., Any] | nn.Module:
    """Return what `package.module:name` or `path/file.py:name` names.

    Raises:
        UsageError: not of that form, or nothing there.
    """
    where, colon, name = reference_text.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"python:{reference_text}: expected package.module:factory or file.py:factory")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except VitconvError:
        raise
    except ModuleNotFoundError as e:
        raise UsageError(
            f"python:{reference_text}: no module {e.name!r} on the Python path, nor in the folder you are in; set "
            f"PYTHONPATH, or name the file: python:path/file.py:{name}"
        ) from e
    except (Exception, SystemExit) as e:
        raise UsageError(f"python:{reference_text}: {where} cannot be imported: {in_a_line(e)}") from e
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise UsageError(f"python:{reference_text}: {where} has no {name!r}")
        target = getattr(target, part)
    if not callable(target):
        raise UsageError(f"python:{reference_text}: {name} is {type(target).__name__}, expected a factory or a module")
    return target


def _from_path(where: str) -> Any:
    """Import a module; one of the folder that the user is in is found too, after all that is installed."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return import_module(where)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"python: no such file: {path}")
    spec = spec_from_file_location(f"vitconv_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses and pickling look the module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network is: as the host of its library does, else by the names of its modules.

    Raises:
        Refused: it is compiled to TorchScript, inside of which nothing can be watched.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise Refused("a TorchScript module cannot be looked into; give the network that it was made from")
    for known in _HOSTS:
        if known.HOST.accepts(module):
            try:
                built = known.HOST.describe(module, spec)
            # With parts of the user's own in it, a library's network lacks what its host reads.
            except (AttributeError, KeyError, IndexError, StopIteration, TypeError):
                break
            # One that is derived from a library's network may give its tensor in something of its own.
            own = built.run if known in (transformers, xformers) else partial(_unpacked, built.run)
            return replace(built, run=partial(_on_a_copy, own))
    dialects, places = _recognised(module)
    facts = Semantics().replaced(
        {k: v for k, v in {"norm_kind": norm_kind(places), **eps_facts(places)}.items() if v is not None}
    )
    act = activation_fact(places)
    taps = taps_of(places, head=places.get("head"))
    return Built(
        host="python",
        model=spec.model,
        module=module,
        dialects=dialects,
        facts=facts if act is None else facts.replaced({"activation": act}),
        survey=survey(module, places, "unknown"),
        taps=taps,
        inputs=Inputs("images", image_shape(module, spec)),
        run=partial(_on_a_copy, run),
        notes=("the network is of no library that is known here: facts and taps are read off module names",),
    )


def _recognised(module: nn.Module) -> tuple[tuple[str, ...], Places]:
    """Return the dialect whose module names fit best, under any prefix, and the places found."""
    best: tuple[tuple[str, ...], Places] = ((), {})
    for prefix in dict.fromkeys(["", *(f"{name}." for name, _ in module.named_children())]):
        for dialect, table in _TABLES:
            under = {place: tuple(prefix + path for path in paths) for place, paths in table.items()}
            # A head often stays outside the wrapped trunk.
            under["head"] = (*under["head"], *table["head"])
            places = locate(module, under)
            if "blocks.0" in places and len(places) > len(best[1]):
                best = ((dialect,), places)
    return best


def _on_a_copy(run: Callable[[nn.Module, Tensor], Tensor], module: nn.Module, images: Tensor) -> Tensor:
    """Run on a copy: code that changes its images in place works in a training, and must not change the next run's."""
    return run(module, images.clone())


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the one tensor the network gives: itself, the first of a tuple, or `logits`, `CLS`, `pooler_output`.

    Raises:
        Refused: it gives something else.
    """
    return _tensor_of(module, module(images))


def _tensor_of(module: nn.Module, y: Any) -> Tensor:
    if isinstance(y, (tuple, list)) and y:
        y = y[0]
    if isinstance(y, Tensor):
        if not y.dim() or not y.numel() or y.is_complex():
            raise Refused(
                f"{type(module).__name__} gives a {str(y.dtype).removeprefix('torch.')} tensor of shape "
                f"{list(y.shape)}; expected real numbers, with the images of the batch along the first axis"
            )
        return y
    for name in ("CLS", "logits", "pooler_output", "last_hidden_state", "output"):
        value = y.get(name) if isinstance(y, dict) else getattr(y, name, None)
        if isinstance(value, Tensor):
            return value
    held = f" with {', '.join(map(str, y))}" if isinstance(y, dict) else ""
    raise Refused(
        f"{type(module).__name__} gives {type(y).__name__}{held}; expected a tensor, or one called logits: let the "
        "factory return a network whose forward gives the one to compare"
    )


def _unpacked(known: Callable[[nn.Module, Tensor], Tensor], module: nn.Module, images: Tensor) -> Tensor:
    """Run as the library's host does, which knows of tensors, and of the two of a distilled network."""

    def one(_module: nn.Module, _args: Any, y: Any) -> Tensor | None:
        pair = isinstance(y, (tuple, list)) and len(y) > 1
        return None if isinstance(y, Tensor) or pair else _tensor_of(module, y)

    handle = module.register_forward_hook(one)
    try:
        return known(module, images)
    finally:
        handle.remove()


HOST = Host(
    name="python",
    title="the user's own network",
    dialects=(),
    options={"*": "arguments of the factory"},
    make=make,
    describe=describe,
    accepts=lambda module: isinstance(module, nn.Module),
)
