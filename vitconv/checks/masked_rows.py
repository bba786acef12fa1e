"""Do rows of attention that are masked as a whole stay finite, forward and backward"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.halves import Watch
from vitconv.checks.base.passes import MaskedRows, loss_of
from vitconv.hosts.base.host import Built
from vitconv.parity.precision import running

NAMES = ("attn_mask", "attention_mask", "key_padding_mask", "padding_mask", "src_key_padding_mask", "mask")


@dataclass(frozen=True)
class Way:
    """A way of giving a network a mask: the argument, its form, and the masks that hide nothing, or all of one row."""

    argument: str
    form: str
    open: Tensor
    closed: Tensor


def run(context: Context, _limits: Limits) -> Iterator[Finding]:
    """Look at the rows of the network's own masks; where it takes a mask, hide all of one row and run both ways."""
    built, rows = context.network, context.signals
    images = context.data.batch(2)[0]
    if rows.masked:
        yield Finding(
            "error" if rows.lost else "warn",
            f"{rows.masked} rows of attention are masked as a whole in its own forward pass; {rows.lost} of them are "
            "NaN" + ("" if rows.lost else ", the others attend evenly to what is hidden"),
            {"masked": rows.masked, "lost": rows.lost},
            advice="let such a row attend to itself, or set its output to 0 after the softmax",
        )
    ways = accepted(built, images)
    if not ways and not rows.masked:
        raise NotApplicable("it takes no mask, and no row of its attention is masked as a whole")
    precisions = ["fp32"] + ([context.plan.precision] if context.plan.precision != "fp32" else [])
    for way in ways:
        yield from _closed(context, way, images, precisions)


def accepted(built: Built, images: Tensor) -> list[Way]:
    """Return the ways in which the network takes a mask: those whose open mask changes nothing, and whose other does.

    Polarity is found out and not assumed: in some codebases True hides, in others it shows.
    """
    found = []
    try:
        known = inspect.signature(built.module.forward).parameters
    except (TypeError, ValueError):
        return []
    arguments = [name for name in NAMES if name in known]
    if not arguments:
        return []
    with torch.no_grad():
        plain = built.run(built.module, images)
        for argument in arguments:
            for form, make in _forms(images, built).items():
                way = make(argument)
                try:
                    same = _output(built, images, way, way.open)
                    other = _output(built, images, way, _half_open(way))
                except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                    continue
                if same.shape != plain.shape or other.shape != plain.shape:
                    continue
                seen = torch.allclose(same, plain, rtol=1e-4, atol=1e-5)
                if seen and not torch.allclose(other, plain, rtol=1e-6, atol=1e-7):
                    found.append(Way(argument, form, way.open, way.closed))
    # One shape of each kind is enough.
    kinds: dict[tuple[str, str], Way] = {}
    for way in found:
        kinds.setdefault((way.argument, way.form.rpartition(" [")[0]), way)
    return list(kinds.values())


def _forms(images: Tensor, built: Built) -> dict[str, Callable[[str], Way]]:
    b, t = len(images), _tokens(built, images)
    low = float(torch.finfo(torch.float32).min)
    forms: dict[str, Callable[[str], Way]] = {}

    def way(argument: str, form: str, shape: tuple[int, ...], shown: float | bool, hidden: float | bool) -> Way:
        whole = torch.full(shape, shown)
        closed = whole.clone()
        if len(shape) == 2 and shape == (b, t):
            closed[0] = hidden
        else:
            closed[..., -1, :] = hidden
        return Way(argument, form, whole, closed)

    for name, shape in {"[t t]": (t, t), "[b 1 t t]": (b, 1, t, t), "[b t]": (b, t)}.items():
        for kind, shown, hidden in (
            ("bool, True shows", True, False),
            ("bool, True hides", False, True),
            ("-inf", 0.0, float("-inf")),
            ("finfo.min", 0.0, low),
        ):
            forms[f"{kind} {name}"] = partial(way, form=kind, shape=shape, shown=shown, hidden=hidden)
    return forms


def _tokens(built: Built, images: Tensor) -> int:
    """Return the number of tokens t that the blocks see."""
    from vitconv.hosts.base.tap import recording

    if "embed" not in built.taps:
        return images.shape[1]
    with torch.no_grad(), recording({"embed": built.taps["embed"]}) as seen:
        built.run(built.module, images)
    if "embed" not in seen.values():
        raise NotApplicable("its first block runs several times in a pass, so what a mask has to cover is not known")
    return seen.values()["embed"].shape[1]


def _half_open(way: Way) -> Tensor:
    """Return a mask that hides the second half of the keys from every row."""
    mask = way.open.clone()
    hidden = way.closed[way.closed != way.open].flatten()[0]
    mask[..., mask.shape[-1] // 2 :] = hidden
    return mask


def _output(built: Built, images: Tensor, way: Way, mask: Tensor) -> Tensor:
    value = built.module(images, **{way.argument: mask})
    while not isinstance(value, Tensor):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def _closed(context: Context, way: Way, images: Tensor, precisions: list[str]) -> Iterator[Finding]:
    """Hide all keys of one row, or all tokens of one example, and see what becomes of the others."""
    fresh = context.fresh()
    module = fresh.module.eval()
    labels = context.data.batch(2)[1]
    by_example = way.closed.dim() == 2 and way.closed.shape[0] == len(images) and way.form.startswith(("bool", "-inf"))
    for precision in precisions:
        module.zero_grad(set_to_none=True)
        try:
            # Products of the backward pass too: in a CPU's own float16 they take a hundred times as long.
            with running(precision, "cpu") as mode, MaskedRows() as rows, Watch(None):
                with mode.forward():
                    output = _output(fresh, images, way, way.closed)
                loss_of(output, labels).backward()
        except RuntimeError as e:
            # Such as a fill of -1e9, which half precision has no number for.
            text = f"{way.argument} ({way.form}), {precision}: {str(e).splitlines()[0]}"
            yield Finding("error", text, {"argument": way.argument}, advice="fill with torch.finfo(x.dtype).min")
            continue
        outputs = ~output.detach().isfinite().flatten(1).all(1)
        lost = [n for n, p in module.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
        total = sum(p.grad is not None for p in module.parameters())
        bad = bool(outputs.any()) or bool(lost)
        where = "all tokens of an example" if by_example else "all keys of a row"
        yield Finding(
            "error" if bad else "ok",
            f"{way.argument} ({way.form}) that hides {where}, {precision}: "
            + (
                f"{int(outputs.sum())} of {len(outputs)} outputs and the gradients of {len(lost)} of {total} parameters"
                " are not finite"
                if bad
                else f"outputs and gradients are finite{', such rows attend evenly' if rows.masked else ''}"
            ),
            {"outputs": int(outputs.sum()), "gradients": len(lost), "argument": way.argument},
            tuple(lost[:8]),
        )


CHECK = Check(
    id="masked-rows",
    title="Do rows of attention that are masked as a whole stay finite?",
    measures="rows of every softmax whose logits are all below -1e4, in the network's own forward pass; and where its "
    "forward takes a mask, outputs and gradients with all keys of one row hidden, as booleans, minus infinity and the "
    "lowest float, in float32 and in the planned precision",
    threshold="error when an output or a gradient is not finite: softmax of minus infinity only is 0/0, and one such "
    "row makes every gradient NaN; the lowest float instead of it attends evenly, and overflows to minus infinity in "
    "half precision. A warning for rows that attend evenly to what is hidden",
    advice="let a masked row attend to itself, or use scaled_dot_product_attention with a boolean mask, which gives 0",
    cost="pass",
    run=run,
    source="pytorch/pytorch#109517 and #178251",
)
