"""Our twin of xformers' factory: the network of any release 0.0.1 to 0.0.28.post3, without the library"""

from __future__ import annotations

from typing import Any

from torch import nn

from vitconv.errors import UsageError
from vitconv.hosts import _xformers
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.hosts.base.places import Places
from vitconv.vit.xformers_style.encoder import XFormer, xformer
from vitconv.vit.xformers_style.feedforward import FusedDropoutBias, FusedLinear
from vitconv.vit.xformers_style.release import Environment

_ENVIRONMENT = {
    "triton": "CUDA and Triton can be imported: the Triton norm class, FusedMLP",
    "cuda": "tensors are on the card: the Triton kernels run",
    "nvfuser": "the nvFuser form of the MLP is switched on (0.0.12 to 0.0.21)",
    "sparse": "the compiled sparse extension is there",
}


def make(spec: Spec) -> nn.Module:
    """Build the network of a configuration (see `_xformers.read_config`) in the release of the option `release`.

    Raises:
        UsageError: no release, or what the release answers with an error.
        Refused: what the twin does not build.
    """
    options = spec.options
    release = options.get("release") or spec.facts.release
    if release is None:
        raise UsageError("which release? The network depends on it: say release=0.0.x")
    environment = Environment(**{name: _flag(options.get(name, False)) for name in _ENVIRONMENT})
    stack = xformer(
        _xformers.read_config(spec),
        str(release),
        environment,
        refuse_ignored=_flag(options.get("refuse_ignored", False)),
    )
    return _xformers.wrapped(stack, options).eval()


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this twin is."""
    stack: XFormer = _xformers.stack_of(module)
    notes = [f"xformers {stack.release.text} drops {key} without a word" for key in stack.stack.ignored]
    if any(isinstance(m, FusedDropoutBias) and m.fused and m.bias is not None for m in stack.modules()):
        notes.append("FusedMLP: its hidden bias is in no state dict; here it is zero")
    dialect = "xformers-fused" if stack.release.fused_projection else "xformers"
    return _xformers.describe(module, spec, "xformers-style", (dialect,), _facts, tuple(notes))


def _facts(stack: XFormer, places: Places) -> dict[str, Any]:
    configs, release = stack.stack.blocks, stack.release
    facts: dict[str, Any] = {"release": release.text, "mlp_dropout": max(c.mlp_dropout for c in configs)}
    pre = configs[0].style == "pre"
    facts["kv_normalised"] = release.kv_normalised or not pre
    acts = {_activation(places[name]) for name in places if name.endswith(".mlp")}
    facts["activation"] = acts.pop() if len(acts) == 1 else None
    return facts


def _activation(feedforward: Any) -> str | None:
    """Return the activation in effect now: a fused kernel's gelu is the tanh form."""
    first, second = feedforward.mlp[0], feedforward.mlp[1]
    if isinstance(first, FusedLinear):
        name, tanh = first.act.name, True
    elif isinstance(second, FusedDropoutBias):
        dropping = second.training and second.p > 0
        width = first.out_features
        name = second.act.name
        tanh = second.fused and second.release.fused_kernel_runs(second.environment, width, dropping)
    else:
        name, tanh = second.name, False
    if name in ("smelu", "star_relu"):
        # Without a name among the facts.
        return None
    return "gelu_tanh" if name == "gelu" and tanh else name


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise UsageError(f"{value!r}: expected true or false")
    return text in ("true", "1", "yes")


HOST = Host(
    name="xformers-style",
    title="our twin of xformers' factory, by release",
    dialects=("xformers", "xformers-fused"),
    options={
        **_xformers.OPTIONS,
        "release": "the release to be, 0.0.1 to 0.0.28.post3",
        **_ENVIRONMENT,
        "refuse_ignored": "refuse configuration keys that the release drops without a word",
    },
    make=make,
    describe=describe,
    accepts=lambda module: isinstance(_xformers.stack_of(module), XFormer),
)
