"""One forward and backward pass: the stream, the attention and the gradients, by depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from vitconv.hosts.base.host import Built
from vitconv.hosts.base.survey import eps_of, is_norm
from vitconv.hosts.base.tap import recording
from vitconv.layout.blocks import is_block
from vitconv.layout.semantics import Semantics
from vitconv.parity.bridge import Bridge, state_of

Batch = tuple[Tensor, Tensor]

# Examples whose attention is worked out again; a figure is over all heads and pairs of tokens.
EXAMPLES = 1
# What masks in float: anything lower than this is meant to be minus infinity.
LOW = -1e4


@dataclass(frozen=True)
class Attending:
    """The attention of one block: largest |logit|, std of the logits, and entropy over ln of the number of keys."""

    block: int
    largest: float
    std: float
    entropy: float


@dataclass(frozen=True)
class Normed:
    """What one norm is given and does: the median variance of its tokens, its eps, and the mean |gain|."""

    variance: float
    eps: float
    gain: float


@dataclass(frozen=True, eq=False)
class Pass:
    """What one pass left.

    Attributes:
        loss: cross-entropy, or a random projection of the output where it is no [b o].
        logits: whether the output is taken as logits.
        output: what the network gave.
        taps, tap_grads: {canonical name: value}, {canonical name: gradient of the loss}.
        grads: {canonical parameter, or its own name where there is no canonical view: gradient}.
        attention: by block; empty where it could not be worked out.
        norms: {norm module: what it is given, of the call with the smallest variance}.
        masked, lost: rows of a softmax whose every logit is masked, and those of them that came out as NaN.
        graded: whether the loss depends on anything that is trained.
    """

    loss: float
    logits: bool
    output: Tensor
    taps: Mapping[str, Tensor]
    tap_grads: Mapping[str, Tensor]
    grads: Mapping[str, Tensor]
    attention: tuple[Attending, ...]
    norms: Mapping[str, Normed]
    masked: int = 0
    lost: int = 0
    graded: bool = True

    def stream(self) -> list[tuple[str, Tensor]]:
        """Return (name, value) of the residual stream: ahead of the blocks, and after each."""
        return [(name, x) for name, x in self.taps.items() if name == "embed" or is_block(name)]


def rms(x: Tensor) -> float:
    """Return the root of the mean square."""
    x = x.detach()
    norm = float(torch.linalg.vector_norm(x))
    if not 1e-15 < norm < 1e15 or x.dtype in (torch.float16, torch.bfloat16):
        # Squares leave float32's range long before the numbers do.
        norm = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    return norm / math.sqrt(max(1, x.numel()))


def loss_of(output: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of logits [b o], or, of any other output, its mean product with fixed random numbers."""
    if output.dim() == 2 and (labels.dim() == 2 or int(labels.max()) < output.shape[1]):
        return functional.cross_entropy(output.float(), labels, label_smoothing=smoothing)
    generator = torch.Generator().manual_seed(7919)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device)
    return (output.float() * cotangent).mean()


def one_pass(built: Built, bridge: Bridge | None, batch: Batch, facts: Semantics) -> Pass:
    """Run once, forward and backward, in the network's own dtype, and keep what the checks look at."""
    images, labels = batch
    module = built.module
    module.zero_grad(set_to_none=True)
    with recording(built.taps, gradients=True) as seen, _attention_inputs(built) as read, _norms(module) as norms:
        with MaskedRows() as rows:
            output = built.run(module, images)
        loss = loss_of(output, labels)
        graded = loss.requires_grad
        if graded:
            loss.backward()
    values = {n: x.detach() for n, x in seen.values().items()}
    tap_grads = {n: g.detach() for n, g in seen.gradients().items()}
    state = state_of(module)
    if bridge is not None:
        # The module lets go of its gradients below, so these are the only ones to hold them.
        grads, weights = bridge.gradients(state, copies=False), _projections(bridge, state)
    else:
        grads = {n: p.grad.detach().clone() for n, p in module.named_parameters() if p.grad is not None}
        weights = {}
    module.zero_grad(set_to_none=True)
    few = slice(EXAMPLES)
    attended = (attending(i, q[few], k[few], weights, facts) for i, (q, k) in sorted(read.items()))
    found = tuple(attended) if weights else ()
    return Pass(
        float(loss.detach()),
        output.dim() == 2,
        output.detach(),
        values,
        tap_grads,
        grads,
        tuple(a for a in found if a is not None),
        norms,
        rows.masked,
        rows.lost,
        graded,
    )


def _projections(bridge: Bridge, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what makes queries and keys."""
    parts = (".attn.q.", ".attn.k.", ".attn.q_norm.", ".attn.k_norm.")
    return bridge.views(state, (n for n in bridge.network.cells if any(part in n for part in parts)))


class MaskedRows(TorchDispatchMode):
    """Counts the rows of softmax whose every logit is masked, and those of them that came out as NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.masked = self.lost = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, ten seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")  # noqa: SLF001
        if name in ("_softmax", "_log_softmax", "_safe_softmax") and args[0].dim() > 2:
            whole = args[0].detach().amax(-1) < LOW
            if bool(whole.any()):
                self.masked += int(whole.sum())
                self.lost += int((whole & out.detach().isnan().any(-1)).sum())
        return out


@contextmanager
def _norms(module: nn.Module) -> Iterator[dict[str, Normed]]:
    """Keep what every norm with an eps is given."""
    found: dict[str, Normed] = {}

    def hook(name: str, eps: float) -> Callable[..., None]:
        def keep(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
            weight = getattr(norm, "weight", None)
            gain = float(weight.detach().abs().mean()) if isinstance(weight, Tensor) else 1.0
            now = Normed(median_variance(args[0].detach()), eps, gain)
            found[name] = min(found.get(name, now), now, key=lambda n: n.variance)

        return keep

    handles = [
        m.register_forward_pre_hook(hook(name, eps))
        for name, m in module.named_modules()
        if is_norm(m) and "BatchNorm" not in type(m).__name__ and (eps := eps_of(m)) is not None
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def median_variance(x: Tensor) -> float:
    """Return the median over tokens of the variance over the last axis; torch's `var` takes fifteen times as long.

    Not the smallest: class tokens and registers start at a std of .02 or 1e-6, and get what they are from the others.
    """
    centred = x - x.mean(-1, keepdim=True)
    return float(centred.square_().mean(-1).median())


def watched_attention(
    built: Built, bridge: Bridge | None, images: Tensor, facts: Semantics
) -> tuple[tuple[Attending, ...], float]:
    """Run forward only, without gradients: the attention by block, and the RMS of the stream after the last block."""
    weights = {} if bridge is None else _projections(bridge, state_of(built.module))
    taps = {name: tap for name, tap in built.taps.items() if is_block(name)}
    with torch.no_grad(), recording(taps) as seen, _attention_inputs(built) as read:
        built.run(built.module, images)
    found = (attending(i, q, k, weights, facts) for i, (q, k) in sorted(read.items()))
    values = list(seen.values().values())
    return tuple(a for a in found if a is not None), rms(values[-1]) if values else math.nan


@contextmanager
def _attention_inputs(built: Built) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """Keep what the queries and the keys of every block are projected from."""
    read: dict[int, tuple[Tensor, Tensor]] = {}

    def hook(i: int) -> Callable[..., None]:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() == 3]
            if given:
                other = given[1] if len(given) > 1 and given[1].shape == given[0].shape else given[0]
                read[i] = (given[0].detach(), other.detach())

        return keep

    handles = [
        tap.module.register_forward_pre_hook(hook(int(name.split(".")[1])), with_kwargs=True)
        for name, tap in built.taps.items()
        if name.startswith("blocks.") and name.endswith(".attn")
    ]
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()


def attending(
    i: int, queries: Tensor, keys: Tensor, weights: Mapping[str, Tensor], facts: Semantics
) -> Attending | None:
    """Work out the attention of block i from its inputs [b t d] and the canonical weights.

    Returns:
        None where the head count is unknown, or positions enter the product (rope, relative).
    """
    at = f"blocks.{i}.attn"
    if facts.heads is None or facts.position in ("rope", "relative") or f"{at}.q.weight" not in weights:
        return None

    def project(part: str, x: Tensor) -> Tensor:
        y = functional.linear(x, weights[f"{at}.{part}.weight"].to(x), _given(weights, f"{at}.{part}.bias", x))
        y = y.unflatten(-1, (facts.heads or 1, -1)).transpose(1, 2)
        gain = _given(weights, f"{at}.{part}_norm.weight", x)
        if gain is None:
            return y
        eps, bias = facts.qk_norm_eps or 1e-6, _given(weights, f"{at}.{part}_norm.bias", x)
        if facts.norm_kind == "rmsnorm":
            return functional.rms_norm(y, gain.shape, gain, eps)
        return functional.layer_norm(y, gain.shape, gain, bias, eps)

    q, k = project("q", queries), project("k", keys)
    scale = facts.attention_scale or q.shape[-1] ** -0.5
    logits = (q * scale) @ k.transpose(-2, -1)
    logs = logits.log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return Attending(i, float(logits.abs().max()), float(logits.std()), float(entropy) / math.log(logits.shape[-1]))


def _given(weights: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor | None:
    return weights[name].to(like) if name in weights else None


def token_cosine(x: Tensor) -> float:
    """Return the mean cosine between two different tokens of an image, from the stream x: [b t d]."""
    if x.dim() != 3 or x.shape[1] < 2:
        return math.nan
    unit = functional.normalize(x.detach().double(), dim=-1)
    t = x.shape[1]
    # |sum of unit vectors|² counts every pair twice and every token with itself.
    return float(((unit.sum(1).square().sum(-1) - t) / (t * (t - 1))).mean())
