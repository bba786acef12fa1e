"""What a fault is: a reversible change of the reference ViT, described and not yet made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.flat import FlatConfig
from vitconv.vit.config import ViTConfig

AnyConfig = ViTConfig | FlatConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.vit.model import ViT

    Weights = dict[str, Tensor]
    OnWeights = Callable[[Weights, ViTConfig, Iterable[int]], Weights]
    OnModel = Callable[[ViT, Iterable[int]], None]
    OnImages = Callable[[Tensor], Tensor]

# Where a fault can show first, in running order: the kinds of taps.
KINDS = ("embed", "attn", "mlp", "block", "norm", "pool", "head")
_SHOWS = {
    "input": ("embed",),
    "embed": ("embed",),
    "attention": ("attn",),
    "mlp": ("mlp",),
    "norm": ("attn", "mlp", "block"),
    "block": ("attn", "mlp", "block"),
    "head": ("norm", "pool", "head"),
    "precision": KINDS,
    "backward": KINDS,
}
# always: by the values, in any precision that is fine enough. half: only as more rounding error. backward: only in
# gradients. never: the function is the same. random: two runs differ. watched: where it happens, by watching the run.
# solved: always, for a number that the search solves for.
VISIBLE = ("always", "half", "backward", "never", "random", "watched", "solved")
# Those that nothing has to be changed for: they are measured, and no candidates of a search.
MEASURED = ("random", "watched")


@dataclass(frozen=True)
class Knobs:
    """The reference ViT with changes that are made when it is built.

    `weights` turn canonical weights into those the network computes with, and autograd runs through them; `model`
    change the freshly built network; `images` change what it is fed.
    """

    config: AnyConfig
    weights: tuple[Callable[[Weights], Weights], ...] = ()
    model: tuple[Callable[[ViT], None], ...] = ()
    images: tuple[OnImages, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One way in which a network goes wrong.

    Attributes:
        name: what it is called in reports.
        title: the sentence that follows "the other side:", naming the cause.
        site: input, embed, attention, mlp, norm, block, head, precision or backward.
        visible: see `VISIBLE`.
        shows: the kinds of taps at which the values can part first.
        facts: the facts that say the same.
        per_block: it can be in one block only.
        single: it can only be in one block (not the last one).
        families: the kinds of networks that can have it: plain, stages.
        when: whether a network of this configuration can have it.
        also: further words for the same function, such as what the converter did.
        number: of a fault with a number that is solved for: what makes it of that number, fields of this class.
        start: where to start from.
    """

    name: str
    title: str
    site: str
    visible: str = "always"
    shows: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    per_block: bool = False
    single: bool = False
    families: tuple[str, ...] = ("plain",)
    when: Callable[[ViTConfig], bool] = lambda config: True
    also: str = ""
    weights: OnWeights | None = None
    model: OnModel | None = None
    images: OnImages | None = None
    config: Callable[[ViTConfig], ViTConfig] | None = None
    number: Callable[[float], dict[str, Any]] | None = None
    start: float = 1.0

    def __post_init__(self) -> None:
        if self.visible not in VISIBLE or self.site not in _SHOWS:
            raise ValueError(f"fault {self.name}: visible={self.visible}, site={self.site}")
        if not self.shows:
            object.__setattr__(self, "shows", _SHOWS[self.site])

    @property
    def summary(self) -> str:
        """Return the title and, in brackets, where and how it can be seen."""
        seen = {
            "always": "",
            "half": ", more rounding error only",
            "backward": ", gradients only",
            "never": ", the function is the same",
            "random": ", two runs differ",
            "watched": ", the run shows it",
            "solved": ", the number is solved for",
        }[self.visible]
        return f"{self.title} ({self.site}{seen})"

    def of(self, number: float) -> Fault:
        """Return the fault with this number."""
        assert self.number is not None
        return dataclasses.replace(self, title=f"{self.title} {_told(number)}", **self.number(number))

    def apply(self, knobs: Knobs, layers: Iterable[int] | None = None) -> Knobs | None:
        """Return knobs with this fault added, in all blocks or in `layers`; the given ones stay as they are.

        None: a network of this configuration cannot have it (no registers to drop, the activation is this one), or
        it was asked for in single blocks and is none of a block.
        """
        # A network of stages answers to the words that its faults ask for.
        config: Any = knobs.config
        if getattr(config, "family", "plain") not in self.families or not self.when(config):
            return None
        if layers is not None and not self.per_block:
            return None
        if self.single and (layers is None or [*layers] == [] or max(layers) >= config.depth - 1):
            return None
        where = tuple(range(config.depth)) if layers is None else tuple(layers)
        changes: dict[str, object] = {}
        if self.weights is not None:
            on_weights = self.weights
            changes["weights"] = (*knobs.weights, lambda w: {**w, **on_weights(w, config, where)})
        if self.model is not None:
            on_model = self.model
            changes["model"] = (*knobs.model, lambda model: on_model(model, where))
        if self.images is not None:
            changes["images"] = (self.images, *knobs.images)
        if self.config is not None:
            changes["config"] = self.config(config)
        return dataclasses.replace(knobs, **changes)  # type: ignore[arg-type]


def _told(number: float) -> str:
    """Return a number, and whether it is the root of a whole one or the inverse of that."""
    for power, words in ((2.0, "the square root of"), (-2.0, "1 over the square root of")):
        whole = number**power
        root = round(whole) ** 0.5
        if 1.5 < whole < 1e5 and abs(whole - round(whole)) < 1e-7 * whole and root != round(root):
            return f"{number:.9g}, {words} {round(whole)}"
    return f"{number:.9g}"


def per_block(change: Callable[[Weights, str, ViTConfig], Weights]) -> OnWeights:
    """Turn a change of one block's weights, `change(weights, "blocks.3.", config)`, into one of all given blocks."""

    def every(w: Weights, config: ViTConfig, layers: Iterable[int]) -> Weights:
        new: Weights = {}
        for i in layers:
            new |= change(w, f"blocks.{i}.", config)
        return new

    return every


def zeroed(*stems: str) -> OnWeights:
    """Zero the tensors of one block whose names end so, where they exist; they get no gradient."""

    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        return {name: w[name] * 0 for stem in stems if (name := prefix + stem) in w}

    return per_block(change)


def swapped(first: str, second: str) -> OnWeights:
    """Exchange two modules' tensors in a block: each leaf that both have."""

    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        new: Weights = {}
        for name in w:
            if name == prefix + first or name.startswith(prefix + first + "."):
                other = prefix + second + name[len(prefix + first) :]
                if other in w:
                    new |= {name: w[other], other: w[name]}
        return new

    return per_block(change)
