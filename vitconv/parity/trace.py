"""Run a network once, forward and backward, and keep what passes its taps and the gradient of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.errors import Refused
from vitconv.hosts.base.host import Built
from vitconv.hosts.base.tap import Tap, recording
from vitconv.parity.bridge import Bridge, bridge_of, state_of
from vitconv.parity.edits import Edited
from vitconv.parity.precision import Running, emulated, running

Hook = Callable[[Built], AbstractContextManager[Any]]
INPUT = "input"


@dataclass(frozen=True)
class Trace:
    """What one run left.

    Attributes:
        side: "A", "B", or what else ran.
        precision: its name.
        inputs: the name of the images.
        taps: {canonical name: value} in running order.
        tap_grads: {canonical name: gradient of the loss with respect to the value}, the loss scale taken out.
        grads: {canonical parameter: gradient}, the loss scale taken out; "input" is that of the images.
        output: the logits or features.
        loss_scale: what the loss was multiplied with.
        dtypes: {tap: dtype that the network computed it in}.
        facts: what else is to be known, such as how the precision was emulated.
    """

    side: str
    precision: str
    inputs: str
    taps: Mapping[str, Tensor]
    tap_grads: Mapping[str, Tensor]
    grads: Mapping[str, Tensor]
    output: Tensor
    loss_scale: float = 1.0
    dtypes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


def cotangent_of(shape: Sequence[int], seed: int) -> Tensor:
    """Return the fixed random gradient of the loss with respect to the output: [shape], float64, exact in bfloat16."""
    generator = torch.Generator().manual_seed(seed + 7919)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).bfloat16().double()


def trace(
    built: Built,
    images: Tensor,
    cotangent: Tensor | int,
    precision: str,
    *,
    side: str = "A",
    inputs: str = "images",
    bridge: Bridge | None = None,
    edits: tuple[Edited, Mapping[str, Tensor]] | None = None,
    backward: bool = True,
    teacher: Trace | None = None,
    loss_scale: float = 1.0,
    hooks: Sequence[Hook] = (),
    blockwise: bool = False,
    seed: int = 0,
) -> Trace:
    """Run once and keep taps and gradients.

    Args:
        built: the network, in the dtype of the precision; see `module_of`.
        images: what it takes, cast to the dtype of its parameters: [b c height width], float.
        cotangent: the gradient of the loss with respect to the output, or the seed of a random one.
        precision: one of `PRECISIONS`.
        side: name of the side, for the result.
        inputs: name of the images, for the result.
        bridge: its tensors as canonical ones; found anew when not given.
        edits: the edits to pull gradients back through, and the weights ahead of them.
        backward: whether to run the backward pass.
        teacher: a trace whose blocks' values take the place of this network's own at every block's end: each block
            then runs alone on the teacher's input, and backward on the teacher's gradient. Taps of blocks hold what
            the block gave, their gradients that of the value that was put in.
        loss_scale: the cotangent is multiplied with it, and the gradients divided by it.
        hooks: contexts around the run, entered with the network.
        blockwise: keep only what passes between blocks, and compute each block again in the backward pass.
        seed: of the random numbers that the network may draw.
    """
    parameters = dict(built.module.named_parameters())
    first = next(iter(parameters.values()))
    x = images.to(device=first.device, dtype=first.dtype).detach().clone().requires_grad_(backward)
    taps = {name: t for name, t in built.taps.items() if not (blockwise and _inside(name))}
    built.module.zero_grad(set_to_none=True)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[first.device] if first.is_cuda else []))
        torch.manual_seed(seed)
        for hook in hooks:
            stack.enter_context(hook(built))
        mode = stack.enter_context(running(precision, first.device))
        if blockwise:
            stack.enter_context(_recomputed(built, mode))
        stack.enter_context(torch.set_grad_enabled(backward))
        force = None if teacher is None else _Force(teacher)
        with mode.forward(), recording(taps, gradients=backward, change=force) as seen:
            output = built.run(built.module, x)
        if isinstance(cotangent, int):
            cotangent = cotangent_of(output.shape, cotangent)
        scaled = (cotangent.to(first.device) * loss_scale).to(output.dtype)
        if backward:
            roots, cotangents = _roots(output, scaled, force, loss_scale)
            if not any(root.requires_grad for root in roots):
                raise Refused(
                    f"{side} ({type(built.module).__name__}) runs, and its output has no gradient: its forward is under"
                    " torch.no_grad or inference_mode, or detaches what it gives; give a network that can be trained"
                )
            _Loss.apply(cotangents, *roots).backward()
        values = {n: v.detach() for n, v in seen.values().items()}
        tap_grads = {n: g.detach() for n, g in seen.gradients().items()}
    if force is not None:
        values |= {n: taps[n].select(v).detach() for n, v in force.given.items()}
    grads = _grads(built, bridge, edits, x) if backward else {}
    notes = {"emulated": how} if (how := emulated(precision, first.device)) else {}
    if seen.repeated:
        many = ", ".join(sorted(seen.repeated, key=list(seen.raw).index)[:4])
        notes["repeated"] = f"{len(seen.repeated)} modules run several times in one pass, such as {many}: not compared"
    if ran := _out_of_order(seen.calls, built.taps):
        notes["blocks"] = ran
    if mode.lifted:
        notes["lifted"] = f"{len(mode.lifted)} casts to float32 were made float64: {', '.join(sorted({*mode.lifted}))}"
    return Trace(
        side=side,
        precision=precision,
        inputs=inputs,
        taps=values,
        tap_grads={n: _unscaled(g, loss_scale) for n, g in tap_grads.items()},
        grads={n: _unscaled(g, loss_scale) for n, g in grads.items()},
        output=output.detach(),
        loss_scale=loss_scale,
        dtypes={n: str(v.dtype).removeprefix("torch.") for n, v in values.items()},
        facts=notes,
    )


class _Loss(torch.autograd.Function):
    """A loss of zero whose gradient with respect to every root is its cotangent.

    `torch.autograd.backward` with gradients would do, and imports the whole of symbolic shapes to compare sizes.
    """

    @staticmethod
    def forward(ctx: Any, cotangents: Sequence[Tensor], *roots: Tensor) -> Tensor:
        ctx.cotangents = cotangents
        return roots[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> Any:
        return None, *ctx.cotangents


def _out_of_order(calls: Sequence[str], taps: Mapping[str, Tap]) -> str:
    """Return the numbers of the blocks in the order in which they ran, or "" where that is the order of their names.

    Of a network that runs its images one by one, say, the order of one of the passes.
    """

    def blocks(names: Iterable[str]) -> list[str]:
        return [n.removeprefix("blocks.") for n in names if n.startswith("blocks.") and not _inside(n)]

    ran, straight = blocks(calls), blocks(taps)
    passes = ran.count(ran[0]) if ran else 1
    if len(ran) % passes == 0 and ran == ran[: len(ran) // passes] * passes:
        ran = ran[: len(ran) // passes]
    return "" if ran == straight else " ".join(ran)


def _inside(name: str) -> bool:
    return name.startswith("blocks.") and name.count(".") > 1


def _unscaled(g: Tensor, scale: float) -> Tensor:
    # Half precision could underflow when the scale is taken out.
    return g if scale == 1 else g.to(torch.promote_types(g.dtype, torch.float32)) / scale


def _grads(
    built: Built, bridge: Bridge | None, edits: tuple[Edited, Mapping[str, Tensor]] | None, x: Tensor
) -> dict[str, Tensor]:
    state = state_of(built.module)
    known = bridge or bridge_of(state, built.dialects, built.facts, built.choices, built.axes)
    # Views will do: the network forgets its gradients ahead of every run, and does not write over them.
    grads = known.gradients(state, copies=False)
    if edits is not None:
        grads = edits[0].gradients(edits[1], grads)
    return grads if x.grad is None else {**grads, INPUT: x.grad.detach()}


@dataclass
class _Force:
    """Put the teacher's values in the place of the network's own, and keep what these were."""

    teacher: Trace
    given: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, name: str, whole: Tensor) -> Tensor | None:
        if name not in self.teacher.taps or not (name == "embed" or (name.startswith("blocks.") and not _inside(name))):
            return None
        self.given[name] = whole
        return self.teacher.taps[name].to(whole).detach().clone().requires_grad_(torch.is_grad_enabled())


def _roots(output: Tensor, cotangent: Tensor, force: _Force | None, scale: float) -> tuple[list[Tensor], list[Tensor]]:
    roots, grads = [output], [cotangent]
    for name, value in ({} if force is None else force.given).items():
        assert force is not None
        if name in force.teacher.tap_grads and value.requires_grad:
            roots.append(value)
            grads.append((force.teacher.tap_grads[name] * scale).to(value))
    return roots, grads


@contextmanager
def _recomputed(built: Built, mode: Running) -> Iterator[None]:
    """Let every block forget what it computed, and compute it again in the backward pass."""
    from contextlib import nullcontext

    from torch.utils.checkpoint import checkpoint

    blocks = [t.module for name, t in built.taps.items() if name.startswith("blocks.") and not _inside(name)]

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            return checkpoint(
                forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), mode.forward()), **kwargs
            )

        return run

    for block in blocks:
        block.forward = wrapped(block.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def tap_modules(built: Built) -> dict[str, nn.Module]:
    """Return {canonical name: module at whose input or output the value passes}."""
    return {name: tap.module for name, tap in built.taps.items()}


def tap_of(built: Built, name: str) -> Tap:
    """Return the tap of a canonical name."""
    return built.taps[name]
