"""The real factory of xformers, where a release that has it is installed (up to 0.0.28.post3)"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from torch import nn

from vitconv.configs.xformers_release import kv_normalised
from vitconv.errors import Refused, UsageError
from vitconv.hosts import _xformers
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.hosts.base.places import Places
from vitconv.vit.xformers_style.encoder import XFormer


def version() -> str | None:
    """Return the installed release of xformers, or None."""
    try:
        return metadata.version("xformers").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def make(spec: Spec) -> nn.Module:
    """Build the network of a configuration (see `_xformers.read_config`) with the installed library.

    Raises:
        UsageError: the library does not accept the configuration; its own words are in the message.
    """
    config = copy.deepcopy(_xformers.read_config(spec))
    if isinstance(config, dict) and "stack_configs" in config:
        config = config["stack_configs"]
    if isinstance(config, dict) and "block_type" in config:
        config = [config]
    # The library warns of its own deprecation at every module.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from xformers.factory.model_factory import xFormer, xFormerConfig

        try:
            stack = xFormer.from_config(xFormerConfig(config))
        except (TypeError, KeyError, ValueError, AssertionError) as e:
            raise UsageError(
                f"xformers {version()} does not accept the configuration: {type(e).__name__}: {e}{_older(str(e))}"
            ) from e
        if getattr(stack, "reversible_encoder", False) or len(stack.decoders):
            raise Refused("only encoder stacks that are not reversible are known")
        return _xformers.wrapped(stack, spec.options).eval()


def _older(words: str) -> str:
    """Say what to do with a configuration of the releases before 0.0.12, or a feedforward that is gone."""
    if "layer_norm_style" not in words and "FusedMLP" not in words:
        return ""
    key = "; since 0.0.12 the key is residual_norm_style" if "layer_norm_style" in words else "; it went in 0.0.27"
    return f"{key}; host xformers-style with release=0.0.x builds what the older release did"


def describe(module: nn.Module, spec: Spec) -> Built:
    """Tell what this network of the real library is."""
    dialects = ("xformers-fused",) if any("in_proj_weight" in k for k in module.state_dict()) else ("xformers",)
    return _xformers.describe(module, spec, "xformers", dialects, _facts)


def _facts(stack: Any, places: Places) -> dict[str, Any]:  # noqa: ARG001
    release = version()
    # The wrapper of pre-norm is a residual around the norm; the others have the norm outside.
    pre = hasattr(stack.encoders[0].wrap_att, "layer")
    kv = None if release is None else kv_normalised(release, "pre" if pre else "post")
    rates = [m.p for name, m in stack.named_modules() if ".mlp." in name and isinstance(m, nn.Dropout)]
    return {"release": release, "kv_normalised": kv, "mlp_dropout": max(rates, default=0.0)}


def accepts(module: nn.Module) -> bool:
    """Return True for the library's own stack of encoders, alone or inside another network."""
    stack = _xformers.stack_of(module)
    if not _xformers.is_stack(stack) or isinstance(stack, XFormer):
        return False
    return not getattr(stack, "reversible_encoder", False) and not len(stack.decoders)


@dataclass(frozen=True)
class _RealFactory(Host):
    def why_not(self) -> str | None:
        if version() is None or find_spec("xformers") is None:
            return "xformers is not installed; host xformers-style needs no library"
        if find_spec("xformers.factory") is None:
            return f"xformers {version()} has no factory any more (removed in 0.0.29); use host xformers-style"
        return None


HOST = _RealFactory(
    name="xformers",
    title="the real factory of xformers",
    dialects=("xformers", "xformers-fused"),
    options=_xformers.OPTIONS,
    make=make,
    describe=describe,
    accepts=accepts,
    library="xformers",
)
