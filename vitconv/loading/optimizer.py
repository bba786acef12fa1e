"""Put the optimizer state that a conversion wrote into an optimizer of the target's module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.conversion.translate import translate
from vitconv.errors import BadFile, Refused, UsageError, shown
from vitconv.layout.match import collapse

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def load_optimizer(path: str | Path, module: nn.Module, optimizer: Optimizer) -> list[str]:
    """Give an optimizer the moments and counters of `optimizer.pt`, and the settings of its groups; return notes.

    Parameters are found by name, whatever the order and the groups of `optimizer`. Where the module speaks another
    naming than the file, such as transformers 5 in memory, the state is carried over by the layouts once more. Settings
    (learning rate, decay, ...) are taken where all parameters of a group had the same.

    Args:
        path: what `vitconv convert --optimizer` wrote.
        module: the module of the converted weights.
        optimizer: over some or all of its parameters.

    Raises:
        UsageError: no such file, or a parameter of the optimizer is not the module's.
        Refused: the file does not speak of the parameters of the module.
    """
    state, groups = _read(Path(path))
    names = {id(p): name for name, p in module.named_parameters()}
    held = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    if any(name is None for group in held for name in group):
        raise UsageError("the optimizer holds parameters that are not the module's")
    known = state.keys() | {n for g in groups for n in g["params"]}
    # Some names may be alike in both: a file of the module's own naming knows all of them.
    if not {n for group in held for n in group if n} <= known:
        state, groups = _renamed(state, groups, module)
    own = optimizer.state_dict()
    notes: list[str] = []
    filled: dict[int, Any] = {}
    fresh: list[str] = []
    for part, group in zip(own["param_groups"], held, strict=True):
        for number, name in zip(part["params"], group, strict=True):
            if name in state:
                filled[number] = dict(state[name])
            else:
                fresh.append(str(name))
        notes += _settings(part, [str(n) for n in group], groups)
    if not filled:
        raise Refused(f"{path} holds nothing for the parameters of this module ({shown(next(iter(names.values())))})")
    _check_shapes(filled, own, held, module)
    optimizer.load_state_dict({"state": filled, "param_groups": own["param_groups"]})
    if fresh:
        notes.append(f"start without moments: {', '.join(collapse(fresh))}")
    return notes


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise BadFile(f"{path}: not what vitconv convert --optimizer writes") from error
    if not isinstance(found, dict) or not {"state", "param_groups"} <= found.keys():
        raise BadFile(f"{path}: not what vitconv convert --optimizer writes")
    if not all(isinstance(name, str) for group in found["param_groups"] for name in group["params"]):
        raise Refused(f"{path} numbers its parameters; convert it with vitconv convert --optimizer, which names them")
    return found["state"], found["param_groups"]


def _renamed(
    state: Mapping[str, Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], module: nn.Module
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Carry state and groups over to the names of a module: as moments, numbers as tensors of one number."""
    import torch

    from vitconv.conversion.candidates import Candidates
    from vitconv.layout.detect import detect

    have = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    target = detect(have, Candidates().every()).dialect.name
    of = {name: float(number) for number, group in enumerate(groups) for name in group["params"]}
    kinds = list(dict.fromkeys(name for held in state.values() for name in held))
    shapes = {name: next(t.shape for t in held.values() if t.ndim or t.numel() > 1) for name, held in state.items()}
    if of.keys() != state.keys():
        raise Refused("some parameters have no moments yet, so they cannot be carried over to the module's names")
    made: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        flat = {name: _spread(held[kind], shapes[name]) for name, held in state.items()}
        counts = all(held[kind].numel() == 1 and shapes[name].numel() > 1 for name, held in state.items())
        for name, tensor in translate(flat, None, target, "moments").items():
            made.setdefault(name, {})[kind] = tensor.reshape(-1)[0].clone() if counts else tensor
    marks = {name: torch.full(shapes[name], number) for name, number in of.items()}
    new: list[dict[str, Any]] = [{**group, "params": []} for group in groups]
    for name, tensor in translate(marks, None, target, "moments").items():
        numbers = tensor.unique()
        if len(numbers) > 1:
            raise Refused(f"{name} joins parameters of different groups; one parameter is in one group")
        new[int(numbers)]["params"].append(name)
    return made, new


def _spread(tensor: Any, shape: Any) -> Any:
    return tensor if tensor.shape == shape else tensor.reshape(()).expand(shape).contiguous()


def _settings(part: dict[str, Any], names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Take the settings over into one group of the optimizer, in place."""
    home = {name: number for number, group in enumerate(groups) for name in group["params"]}
    numbers = sorted({home[name] for name in names if name in home})
    if not numbers:
        return []
    first, *others = [{k: v for k, v in groups[n].items() if k != "params"} for n in numbers]
    odd = sorted(k for k in first if any(str(o.get(k)) != str(first[k]) for o in others))
    part.update({k: v for k, v in first.items() if k not in odd and k in part})
    return [f"a group keeps its own {', '.join(odd)}: its parameters came from groups that differ in it"] if odd else []


def _check_shapes(filled: Mapping[int, Any], own: Mapping[str, Any], held: Sequence[Any], module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    wrong = [
        f"{name}: {key} is {list(value.shape)}, the parameter {list(parameters[name].shape)}"
        for part, group in zip(own["param_groups"], held, strict=True)
        for number, name in zip(part["params"], group, strict=True)
        for key, value in filled.get(number, {}).items()
        if value.numel() != 1 and value.shape != parameters[name].shape
    ]
    if wrong:
        raise Refused(f"the optimizer's state does not fit the module: {'; '.join(wrong[:4])}")
