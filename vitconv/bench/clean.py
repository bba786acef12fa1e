"""Pairs that compute the same: other code, other libraries, other kernels, other batches. None may be accused."""

from __future__ import annotations

import copy
import itertools
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitconv.bench.detection import INPUTS, Bench, configuration
from vitconv.bench.mutate import override
from vitconv.bench.mutate_block import attention, each
from vitconv.bench.networks import host_of
from vitconv.bench.stage_networks import stage_networks
from vitconv.hosts.base.host import Built, Spec
from vitconv.parity.bridge import Bridge, bridge_of, state_of
from vitconv.parity.explain import explain_traces, in_a_row
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.precision import precision_of
from vitconv.parity.probe import probe_images, probe_weights
from vitconv.parity.trace import Trace, trace
from vitconv.registry import HOSTS, load
from vitconv.vit.config import config_from_shapes

_STACK: dict[str, Any] = {
    "block_type": "encoder",
    "dim_model": 32,
    "num_layers": 3,
    "residual_norm_style": "pre",
    "multi_head_config": {
        "num_heads": 4,
        "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
}
_TRANSFORMERS = {
    "image_size": 12, "patch_size": 4, "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32,
    "intermediate_size": 128, "num_labels": 5, "layer_norm_eps": 1e-6,
}  # fmt: skip
# {name: (host, model, options)}: one ViT of width 32 and depth 3 in every library.
LIBRARIES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "timm": (
        "timm",
        "vit_small_patch16_224",
        {"img_size": 12, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5},
    ),
    "torchvision": (
        "torchvision",
        "VisionTransformer",
        {
            "image_size": 12, "patch_size": 4, "num_layers": 3, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 128,
            "num_classes": 5,
        },
    ),
    "transformers": ("transformers", "vit", _TRANSFORMERS),
    "transformers eager": ("transformers", "vit", {**_TRANSFORMERS, "attn": "eager"}),
    "xformers-style": (
        "xformers-style",
        "",
        {"config": _STACK, "release": "0.0.22", "image": 12, "patch": 4, "classes": 5},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Clean:
    """One clean pair: `alarm` when the precision shows a difference, `accused` when it is given a name."""

    pair: str
    precision: str
    alarm: bool
    accused: tuple[str, ...]


def _manual_norm(self: Any, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def _written_norms(net: Any) -> None:
    for module in list(net.modules()):
        if type(module).__name__ == "LayerNorm":
            override(module, forward=_manual_norm)


def _split_qkv(net: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        biases = [None] * 3 if self.bias is None else self.bias.chunk(3)
        parts = zip(self.weight.chunk(3), biases, strict=True)
        return torch.cat([nn.functional.linear(x, w, b) for w, b in parts], -1)

    each("attn.qkv", forward)(net)


def _eager(net: Any) -> None:
    for block in net.blocks:
        block.attn.fused_attn = False


def _erf(_: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def _unfold(net: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        columns = nn.functional.unfold(x, self.kernel_size, stride=self.stride).transpose(1, 2)
        y = nn.functional.linear(columns, self.weight.flatten(1), self.bias)
        rows = x.shape[2] // self.stride[0]
        return y.transpose(1, 2).unflatten(2, (rows, -1))

    override(net.patch_embed.proj, forward=forward)


def _erf_gelu(net: Any) -> None:
    for block in net.blocks:
        if isinstance(block.mlp.act, nn.GELU):
            override(block.mlp.act, forward=_erf)


def can_compile() -> bool:
    """Whether torch.compile finds a C++ compiler here."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))


def compiled_pair(bench: Bench, precision: str) -> Clean:
    """Return the verdict on a network whose MLPs and norms are compiled by torch; see `can_compile`."""

    def mlp(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.gelu(nn.functional.linear(x, w, b)), v, c)

    def norm(x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
        return nn.functional.layer_norm(x, w.shape, w, b, eps)

    fast_mlp, fast_norm = torch.compile(mlp), torch.compile(norm)
    net = copy.deepcopy(bench.net)
    for block in net.blocks:
        override(
            block.mlp,
            forward=lambda self, x: fast_mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias),
        )
        for one in (block.norm1, block.norm2):
            override(one, forward=lambda self, x: fast_norm(x, self.weight, self.bias, self.eps))
    with _quiet():
        cause = bench.explain(net, precision)
    alarm = not cause.reason.endswith("no fault")
    return Clean(f"{bench.name}, {bench.weights_name}: compiled", precision, alarm, cause.found)


@contextmanager
def _quiet() -> Iterator[None]:
    # The compiler asks values that are no leaves for their gradients, and torch says that there are none.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def variants() -> dict[str, tuple[Callable[[Any], None], Callable[[], AbstractContextManager[Any]]]]:
    """Return {name: (change of a timm network, context to run it in)}, all of which leave the function as it is."""

    def nothing(net: Any) -> None:
        del net

    return {
        "itself": (nothing, nullcontext),
        "attention unfused": (_eager, nullcontext),
        "attention written out": (each("attn", attention()), nullcontext),
        "SDPA math": (nothing, lambda: sdpa_kernel(SDPBackend.MATH)),
        "SDPA flash": (nothing, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
        "norms written out": (_written_norms, nullcontext),
        "q, k, v apart": (_split_qkv, nullcontext),
        "patches unfolded": (_unfold, nullcontext),
        "GELU by erf": (_erf_gelu, nullcontext),
        "channels last": (lambda net: net.to(memory_format=torch.channels_last), nullcontext),
        "two threads": (nothing, lambda: _threads(2)),
    }


def timm_pairs(bench: Bench, precision: str) -> Iterator[Clean]:
    """Yield the verdicts on equivalent forms of one timm network."""
    for name, (change, context) in variants().items():
        net = copy.deepcopy(bench.net)
        change(net)
        with context():
            cause = bench.explain(net, precision)
        alarm = not cause.reason.endswith("no fault")
        yield Clean(f"{bench.name}, {bench.weights_name}: {name}", precision, alarm, cause.found)
    yield _batches(bench, precision)


def _batches(bench: Bench, precision: str) -> Clean:
    """The same images one by one and in one batch."""
    whole = bench.clean(precision)[0]
    kept, parts = bench.images, []
    try:
        for image in kept["coloured"].split(1):
            bench.images = {"coloured": image}
            parts.append(bench.traces(bench.net, precision, backward=False)[0])
    finally:
        bench.images = kept
    taps = {n: torch.cat([p.taps[n] for p in parts]) for n in whole.taps}
    joined = Trace("B", precision, "coloured", taps, {}, {}, torch.cat([p.output for p in parts]))
    right = Trace("A", precision, "coloured", whole.taps, {}, {}, whole.output)
    cause = explain_traces(bench.config, bench.weights, [kept["coloured"]], [joined], right=[right], gradients=False)
    alarm = not cause.reason.endswith("no fault")
    return Clean(f"{bench.name}, {bench.weights_name}: one by one", precision, alarm, cause.found)


@dataclass
class _Network:
    built: Built
    bridge: Bridge
    host: Any


def _network(name: str) -> _Network:
    host_name, model, options = LIBRARIES[name]
    host = load(HOSTS, host_name)
    built = host.build(Spec(model, copy.deepcopy(options)))
    if name == "xformers-style":
        # The factory's norms are at 1e-5; the question here is whether all else is the same.
        for path, module in built.module.named_modules():
            if path.endswith("layer.norm"):
                module.eps = 1e-6
        built = host.describe(built.module, Spec())
    return _Network(built, bridge_of(state_of(built.module), built.dialects, built.facts), host)


def stage_library_pairs(seed: int) -> Iterator[Clean]:
    """Yield the verdicts on Swin, and on Swin V2, of every library against every other, in float64."""
    for kind in ("swin", "swin v2"):
        libraries = ("timm", "torchvision", "transformers")
        drawn: dict[str, Tensor] = {}
        sides: dict[str, tuple[FlatConfig, dict[str, Tensor], list[Tensor], list[Trace]]] = {}
        for library in libraries:
            net = stage_networks()[f"{library} {kind}"]().double().eval()
            host = host_of(net)
            # torchvision's take images of any size.
            built = host.describe(net, Spec("", {"image_size": 32}))
            bridge = bridge_of(state_of(net), built.dialects, built.facts)
            drawn = drawn or probe_weights(bridge.shapes, seed)
            # torchvision's Swin V2 has a bias of keys, and never adds it.
            given = {n: drawn.get(n, torch.zeros(shape)) for n, shape in bridge.shapes.items()}
            bridge.write(given, state_of(net))
            config = configuration(bridge.shapes, built.facts)
            assert isinstance(config, FlatConfig)
            images = [x for n, x in probe_images(built.inputs, seed).items() if n in INPUTS]
            runs = [in_a_row(config, trace(built, x, 0, "fp64", bridge=bridge)) for x in images]
            sides[library] = config, config.flat({n: w.double() for n, w in given.items()}), images, runs
        for a, b in itertools.permutations(libraries, 2):
            config, weights, images, runs = sides[a]
            cause = explain_traces(config, weights, images, sides[b][-1], right=runs)
            alarm = not cause.reason.endswith("no fault")
            yield Clean(f"{a} / {b}, {kind}, seed {seed}", "fp64", alarm, cause.found)


def library_pairs(seed: int, precision: str) -> Iterator[Clean]:
    """Yield the verdicts on every library against every other, with the same weights."""
    nets = {name: _network(name) for name in LIBRARIES}
    first = nets["timm"]
    drawn = probe_weights(first.bridge.shapes, seed)
    images = {n: x for n, x in probe_images(first.built.inputs, seed).items() if n in INPUTS}
    runs: dict[tuple[str, str], list[Trace]] = {}
    for kind in dict.fromkeys(("fp64", precision)):
        for name, n in nets.items():
            module = copy.deepcopy(n.built.module).to(precision_of(kind).dtype).eval()
            n.bridge.write(drawn, state_of(module))
            built = n.host.describe(module, Spec())
            runs[name, kind] = [trace(built, x, 0, kind, bridge=n.bridge) for x in images.values()]
    for a, b in itertools.permutations(nets, 2):
        config = config_from_shapes(nets[a].bridge.shapes, nets[a].built.facts)
        cause = explain_traces(config, drawn, list(images.values()), runs[b, precision], right=runs[a, precision])
        alarm = not cause.reason.endswith("no fault")
        yield Clean(f"{a} / {b}, seed {seed}", precision, alarm, cause.found)
