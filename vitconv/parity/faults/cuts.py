"""Faults of the backward pass alone: nothing passes back from a place, as under no_grad or behind detach.

What stands ahead of the place keeps its values and gets no gradient; in training it stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel
    from vitconv.vit.model import ViT


def _output(path: str) -> OnModel:
    """Detach what a module gives: "" is the block itself."""

    def change(model: ViT, layers: Iterable[int]) -> None:
        for i in layers:
            block = model.get_submodule(f"blocks.{i}")
            block.get_submodule(path).register_forward_hook(lambda _m, _x, y: y.detach())

    return change


def _outside(name: str) -> OnModel:
    def change(model: ViT, _layers: Iterable[int]) -> None:
        model.get_submodule(name).register_forward_hook(lambda _m, _x, y: y.detach())

    return change


def _stream(*, of: str) -> OnModel:
    """Add the branch "attn" or "mlp" to a stream that was detached."""

    def change(model: ViT, layers: Iterable[int]) -> None:
        for i in layers:
            _detach_stream(model.get_submodule(f"blocks.{i}"), of)

    return change


def _detach_stream(block: Any, of: str) -> None:
    def forward(x: Tensor, *more: Any) -> Tensor:
        one, two = (1.0 if ls is None else ls for ls in (block.ls1, block.ls2))
        normed = block.norm1(x)
        attended = one * block.attn(normed, x if block.raw_kv else normed, *more)
        x = (x.detach() if of == "attn" else x) + attended
        return (x.detach() if of == "mlp" else x) + two * block.mlp(block.norm2(x))

    block.forward = forward


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, shows: str, model: OnModel, **more: Any) -> Fault:
        return Fault(f"backward-{name}", title, "backward", "backward", (shows,), model=model, **more)

    cut = "runs without gradients (no_grad, or detach behind it)"
    yield entry("cut-embed", f"all up to the embedding {cut}", "embed", _outside("embed"))
    yield entry("cut-block", f"all up to the end of a block {cut}", "block", _output(""), per_block=True)
    norm: Callable[[Any], bool] = lambda c: c.norm  # noqa: E731
    yield entry("cut-norm", f"all up to the final norm {cut}", "head", _outside("norm"), when=norm)
    yield entry("cut-features", f"all ahead of the head {cut}", "head", _outside("pool"))
    for part, word in (("attn", "attention"), ("mlp", "MLP")):
        title = f"the {word} branch {cut}"
        yield entry(f"cut-{part}-branch", title, part, _output(part), per_block=True)
        title = f"the stream that the {word} branch is added to is detached"
        pre: Callable[[Any], bool] = lambda c: c.facts.norm_placement == "pre"  # noqa: E731
        yield entry(f"cut-{part}-residual", title, "block", _stream(of=part), per_block=True, when=pre)


FAULTS = tuple(_entries())
