"""Train a network for a few steps, and say how it went."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitconv.checks.base.data import Data
from vitconv.checks.base.halves import Watch
from vitconv.checks.base.mixing import mixing
from vitconv.checks.base.passes import loss_of
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.scaler import Kind, Scaler
from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.hosts.base.host import Built
from vitconv.layout.groups import grouped, matched, preset
from vitconv.parity.bridge import Bridge, state_of
from vitconv.parity.precision import running
from vitconv.registry import HOSTS, load

# Where images are mixed, steps from one look at plain ones to the next.
EVERY = 5


@dataclass(frozen=True)
class Run:
    """A training: losses by step, what the loss scaler saw, and how it went.

    `plain`: cross-entropy of images that are not mixed, every fifth step, where the training mixes them.

    `verdict`: trains; stuck (never clearly below guessing); collapses (was below, and is back at guessing); diverges
    (not finite, or far above guessing).
    """

    losses: tuple[float, ...]
    steps: tuple[Kind, ...]
    guess: float
    scale: float = 1.0
    plain: tuple[float, ...] = ()

    @property
    def judged(self) -> tuple[float, ...]:
        """Return the losses that say how it went: those of plain images where the training's own are mixed."""
        return self.plain or self.losses

    @property
    def last(self) -> float:
        """Return the mean loss of the last tenth."""
        tail = self.judged[-max(1, len(self.judged) // 10) :]
        return sum(tail) / len(tail)

    @property
    def best(self) -> float:
        """Return the lowest mean of ten losses in a row."""
        k = min(10, max(1, len(self.judged) // 10))
        return min(sum(self.judged[i : i + k]) / k for i in range(len(self.judged) - k + 1))

    @property
    def verdict(self) -> str:
        """Return how it went."""
        # A head of more outputs than the data has classes starts far above guessing among these, and comes down.
        high = max(2 * self.guess, self.judged[0])
        if not all(math.isfinite(x) for x in self.losses) or self.last > high:
            return "diverges"
        if self.last <= 0.93 * self.guess:
            return "trains"
        return "collapses" if self.best < 0.9 * self.guess else "stuck"


@dataclass
class AdamW:
    """AdamW by hand (Loshchilov and Hutter, 2019): torch.optim imports torch's compiler, which takes ten seconds."""

    plan: Plan
    decayed: list[Tensor]
    others: list[Tensor]
    t: int = 0
    moments: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take one step."""
        self.t += 1
        b1, b2 = self.plan.betas
        for p, decay in [*((p, self.plan.decay) for p in self.decayed), *((p, 0.0) for p in self.others)]:
            if p.grad is None:
                continue
            m, v = self.moments.setdefault(id(p), (torch.zeros_like(p), torch.zeros_like(p)))
            m.lerp_(p.grad, 1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            p.mul_(1 - lr * decay)
            p.addcdiv_(m / (1 - b1**self.t), (v / (1 - b2**self.t)).sqrt_().add_(self.plan.eps), value=-lr)

    def state(self, module: nn.Module) -> Moments:
        """Return the moments under the keys of the module's state dict, zero where there is none."""
        state = state_of(module)
        pairs = {k: self.moments.get(id(p), (torch.zeros_like(p), torch.zeros_like(p))) for k, p in state.items()}
        return Moments(
            self.t,
            {k: m.detach().clone() for k, (m, _) in pairs.items()},
            {k: v.detach().clone() for k, (_, v) in pairs.items()},
        )

    def load(self, module: nn.Module, moments: Moments) -> None:
        """Take up these moments, which are under the keys of the module's state dict."""
        self.t = moments.t
        own = {id(p) for p in (*self.decayed, *self.others)}
        for key, p in state_of(module).items():
            if id(p) in own and key in moments.first:
                self.moments[id(p)] = (moments.first[key].clone(), moments.second[key].clone())


@dataclass(frozen=True)
class Moments:
    """An optimiser's state: steps taken, and Adam's two moments, {key of the state dict: tensor} each."""

    t: int
    first: dict[str, Tensor]
    second: dict[str, Tensor]

    def carried(self, from_: str, to: str, prefixes: tuple[str, str], facts: Mapping[str, object]) -> Moments:
        """Return the moments under the names and shapes of another dialect: they travel as weights do.

        `prefixes`: what stands ahead of every key, on this side and on the other.

        Raises:
            Refused: the other dialect has no place for a tensor.
        """

        def one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            inside = {key.removeprefix(prefixes[0]): x for key, x in tensors.items()}
            moved = translate(inside, from_, to, kind="moments", facts=facts)
            return {prefixes[1] + key: x for key, x in moved.items()}

        return Moments(self.t, one(self.first), one(self.second))


def optimiser(module: nn.Module, bridge: Bridge | None, plan: Plan) -> AdamW:
    """Return an optimiser whose decay goes by the plan's names, or else by role, or without roles by the axes."""
    parameters = dict(module.named_parameters())
    # The reference has names of its own, which no list is made for.
    if plan.no_decay and not load(HOSTS, "reference").accepts(module):
        names = {n for n in parameters if not any(matched(pattern, n) for pattern in plan.no_decay)}
    elif bridge is None:
        names = {n for n, p in parameters.items() if p.dim() > 1}
    else:
        state = state_of(module)
        ids = {id(p): n for n, p in parameters.items()}
        own = {name: id(state[bridge.prefix + cell.view.tensor]) for name, cell in bridge.network.cells.items()}
        found = grouped(((n, (n,), shape) for n, shape in bridge.shapes.items()), 0, rule=preset("role"))
        names = {ids[own[g.key]] for g in found if g.decays and own[g.key] in ids}
    return AdamW(
        plan,
        [p for n, p in parameters.items() if n in names],
        [p for n, p in parameters.items() if n not in names],
    )


def batches(data: Data, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one batch per step, in an order that depends on the seed alone."""
    generator = torch.Generator().manual_seed(plan.seed)
    order: list[int] = []
    for _ in range(plan.steps):
        while len(order) < plan.batch:
            order += torch.randperm(len(data.images), generator=generator).tolist()
        now, order = order[: plan.batch], order[plan.batch :]
        yield data.images[now], data.labels[now]


def train(
    built: Built,
    data: Data,
    plan: Plan,
    bridge: Bridge | None = None,
    *,
    watch: Callable[[int], bool] | None = None,
    optim: AdamW | None = None,
    skip: int = 0,
) -> Run:
    """Train in place; `watch(step)` is called after each step, and True ends the training.

    `optim` goes on with an optimiser that has taken steps already; `skip` leaves out that many steps of the plan.

    A precision of `amp-fp16` is CUDA autocast's policy emulated, with a loss scale by GradScaler's rule.
    """
    module, classes = built.module, 0
    optim = optimiser(module, bridge, plan) if optim is None else optim
    half = plan.precision == "amp-fp16"
    scaler = Scaler(65536.0 if half else 1.0)
    losses, seen = list[float](), list[Kind]()
    parameters = [p for p in module.parameters() if p.requires_grad]
    mixed = mixing(plan, _classes(built, data)) if plan.mixup or plan.cutmix else None
    plain = list[float]()
    with torch.random.fork_rng(devices=[]), running(plan.precision, "cpu") as mode:
        torch.manual_seed(plan.seed)
        for step, (x, labels) in enumerate(batches(data, plan)):
            if step < skip:
                continue
            module.zero_grad(set_to_none=True)
            smoothing = plan.smoothing
            if mixed is not None:
                if step % EVERY == 0:
                    plain.append(_plain(built, x, labels))
                x, labels = mixed.mix(x, labels)
                smoothing = 0.0
            with Watch(None) if half else nullcontext():
                with mode.forward():
                    output = built.run(module, x)
                loss = loss_of(output, labels, smoothing)
                (loss * scaler.scale).backward()
            classes = classes or output.shape[-1]
            if not step and output.dim() == 2 and labels.dim() == 1 and data.classes > classes:
                raise Refused(
                    f"the labels of {data.origin} go up to {data.classes - 1} and the network has {classes} outputs: "
                    f"build it with {data.classes} classes (--set classes={data.classes}, or its library's option)"
                )
            losses.append(float(loss.detach()))
            finite = all(bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None)
            kind: Kind = "clean" if finite else "overflow" if math.isfinite(losses[-1]) else "forward"
            seen.append(kind)
            if half:
                if finite and scaler.scale != 1.0:
                    for p in parameters:
                        if p.grad is not None:
                            p.grad.div_(scaler.scale)
                scaler.update(not finite)
            if finite:
                if plan.clip:
                    nn.utils.clip_grad_norm_(parameters, plan.clip)
                optim.step(plan.lr_at(step))
            if (watch is not None and watch(step)) or (not math.isfinite(losses[-1]) and not half):
                break
    # A bias of the head alone comes to that, so less is learnt from the images.
    return Run(tuple(losses), tuple(seen), data.guess or math.log(2), scaler.scale, tuple(plain))


def _plain(built: Built, images: Tensor, labels: Tensor) -> float:
    """Return the cross-entropy of these images as they are, in evaluation."""
    training = built.module.training
    built.module.eval()
    with torch.no_grad():
        loss = float(loss_of(built.run(built.module, images), labels))
    built.module.train(training)
    return loss


def _classes(built: Built, data: Data) -> int:
    """Return the number of logits."""
    with torch.no_grad():
        return int(built.run(built.module, data.images[:1]).shape[-1])
