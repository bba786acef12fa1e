"""Faults of attention in windows: the shift and its mask, the table of relative positions, the cosine of Swin V2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.layout.semantics import CHOICES
from vitconv.parity.faults.fault import Fault, per_block

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.parity.faults.flat import FlatConfig

# Sides of windows that Swin V2 was pre-trained with, and 0: the coordinates are those of the windows themselves.
PRETRAINED = (0, 6, 7, 8, 12, 16, 24)


def _blocks(change: Callable[[Any], None]) -> OnModel:
    """Change every given block."""

    def every(model: Any, layers: Iterable[int]) -> None:
        for i in layers:
            change(model.blocks[i])

    return every


def _unshifted(block: Any) -> None:
    block.odd = False


def _other_parity(block: Any) -> None:
    block.odd = not block.odd


def _rule(name: str) -> Callable[[Any], None]:
    def change(block: Any) -> None:
        block.rule = name

    return change


def _masked(times: int) -> Callable[[Any], None]:
    def change(block: Any) -> None:
        inner = block.mask

        def mask(*where: Any) -> Tensor | None:
            found = inner(*where) if times else None
            return None if found is None else found * times

        block.mask = mask

    return change


def _cut(cut: bool) -> OnModel:
    """Make windows smaller where the map is, or give all stages those of the first."""

    def change(model: Any, layers: Iterable[int]) -> None:
        from vitconv.vit.stages.attention import coordinates

        config: FlatConfig = model.config
        first = config.stages.window(0, 0)
        for i in layers:
            block = model.blocks[i]
            now = block.attn.window
            new = tuple(map(min, now, block.grid)) if cut else first
            if new != now:
                block.attn.window = new
                told = config.stages.pretrained_window(config.blocks[i][0])
                block.attn.places = coordinates(new, told)  # type: ignore[arg-type]

    return change


def _table(new: Callable[[Tensor], Tensor]) -> OnWeights:
    """Change the tables of offsets [rows columns heads]."""

    def change(w: Weights, prefix: str, config: Any) -> Weights:
        name = f"{prefix}attn.table"
        if name not in w:
            return {}
        high, wide = config.stages.window(*config.blocks[int(prefix.split(".")[1])])
        return {name: new(w[name].unflatten(0, (2 * high - 1, 2 * wide - 1))).flatten(0, 1)}

    return per_block(change)


def _attention(change: Callable[[Any], None]) -> OnModel:
    def every(block: Any) -> None:
        if getattr(block.attn, "cosine", False):
            change(block.attn)

    return _blocks(every)


def _sharpness(new: Callable[[Tensor], Tensor]) -> OnModel:
    def change(attn: Any) -> None:
        attn.sharpness = lambda: new(attn.logit_scale)

    return _attention(change)


def _length(new: Callable[[Tensor], Tensor]) -> OnModel:
    def change(attn: Any) -> None:
        attn.unit = new

    return _attention(change)


def _longer(eps: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x / (x.norm(dim=-1, keepdim=True) + eps)


def _longer_squared(eps: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def _places(new: Callable[[Tensor], Tensor]) -> OnModel:
    def change(attn: Any) -> None:
        attn.places = new(attn.places)

    return _attention(change)


def _distance(table: Tensor) -> Tensor:
    """Return what a coordinate was before the logarithm: in [-8, 8]."""
    return table.sign() * ((table.abs() * 3).exp2() - 1)


def _rounded(table: Tensor) -> Tensor:
    """Move every other coordinate by a unit in float32's last place: how each of them was rounded nobody knows."""
    import torch

    signs = torch.ones(table.numel(), dtype=torch.float64).view_as(table)
    signs.view(-1)[1::2] = -1.0
    return table.double() * (1 + signs * torch.finfo(torch.float32).eps)


def _pretrained(side: int) -> OnModel:
    def change(attn: Any) -> None:
        from vitconv.vit.stages.attention import coordinates

        attn.places = coordinates(attn.window, side)

    return _attention(change)


def _bias(new: Callable[[Any], Tensor]) -> OnModel:
    """Give the bias of places another table [t h] out of the attention itself."""

    def change(attn: Any) -> None:
        def bias() -> Tensor:
            from vitconv.vit.stages.attention import pairs

            table = new(attn)
            return table[pairs(attn.window).to(table.device)].permute(2, 0, 1)

        attn.bias = bias

    return _attention(change)


def _keys(part: str) -> OnModel:
    """Add another projection's bias to the keys."""

    def change(attn: Any) -> None:
        def keys(x: Tensor) -> Tensor:
            bias = getattr(attn, part).bias
            return x @ attn.k.weight.T + bias

        attn.keys = keys

    return _attention(change)


def _values_without(model: Any, layers: Iterable[int]) -> None:
    _keys("v")(model, layers)

    def change(attn: Any) -> None:
        from vitconv.parity.faults.swaps import replace

        replace(attn.v, lambda x: x @ attn.v.weight.T)

    _attention(change)(model, layers)


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, when: Callable[[Any], bool], **more: Any) -> Fault:
        return Fault(name, title, "attention", per_block=True, families=("stages",), when=when, **more)

    def windowed(c: FlatConfig) -> bool:
        return c.stages.windowed

    def cosine(c: FlatConfig) -> bool:
        return c.somewhere("attn.logit_scale")

    def table(c: FlatConfig) -> bool:
        return c.somewhere("attn.table")

    title = "windows are never shifted"
    yield entry("shift-missing", title, windowed, model=_blocks(_unshifted))
    title = "the first of two blocks has the shifted windows, not the second"
    yield entry("shift-first", title, windowed, model=_blocks(_other_parity))
    title = "shifted windows have no mask: places that the shift brought together attend to each other"
    yield entry("shift-mask-missing", title, windowed, model=_blocks(_masked(0)))
    title = "the mask of shifted windows is added twice"
    yield entry("shift-mask-twice", title, windowed, model=_blocks(_masked(2)), also="Swin V2 of transformers")
    for rule in CHOICES["window_rule"]:

        def another_rule(c: FlatConfig, rule: str = rule) -> bool:
            return windowed(c) and c.facts.window_rule != rule

        known: dict[str, Any] = {"facts": ("window_rule",)}
        title = f"windows are laid out as {rule} does"
        yield entry(f"windows-of-{rule}", title, another_rule, model=_blocks(_rule(rule)), **known)
    told: dict[str, Any] = {"facts": ("window",)}
    yield entry("windows-cut", "windows are made smaller where the map is", cosine, model=_cut(True), **told)
    title = "windows are not made smaller where the map is, all stages have those of the first"
    yield entry("windows-not-cut", title, cosine, model=_cut(False), **told)
    tables: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "transposed": (
            "rows and columns of the table of relative positions are exchanged",
            lambda t: t.transpose(0, 1),
        ),
        "flipped": ("relative positions have the other sign", lambda t: t.flip(0, 1)),
        "rows-flipped": ("relative positions have the other sign along the rows", lambda t: t.flip(0)),
        "first-row": (
            "every pair of places has the first row of the table: an index that is all zeros",
            lambda t: t[:1, :1].expand_as(t),
        ),
        "missing": ("the table of relative positions is not used", lambda t: t * 0),
    }
    for name, (title, new) in tables.items():
        when = _square_table if name == "transposed" else table
        yield entry(f"table-{name}", title, when, weights=_table(new))
    steep: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "unclamped": ("the cosine's scale is not held below 100", lambda s: s.exp()),
        "clamped-at-10": ("the cosine's scale is held below 10", lambda s: s.clamp(max=10**0.5).exp().clamp(max=10.0)),
        "clamped-late": ("the cosine's scale is held below log 100 after the power of e",
                         lambda s: s.exp().clamp(max=4.605170185988092)),
        "not-exponentiated": ("the cosine's scale is held below log 100 and taken without the power of e",
                              lambda s: s.clamp(max=4.605170185988092)),
        "as-it-is": ("the cosine's scale is taken as it is, without limit and power of e", lambda s: s),
        "missing": ("the cosine's scale is not used", lambda s: s * 0 + 1),
    }  # fmt: skip
    for name, (title, new) in steep.items():
        yield entry(f"logit-scale-{name}", title, cosine, model=_sharpness(new))
    lengths: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {}
    for eps in ("1e-6", "1e-5", "1e-3"):
        lengths[f"eps-{eps}"] = f"to the lengths of queries and keys {eps} is added", _longer(float(eps))
        title = f"to the squared lengths of queries and keys {eps} is added"
        lengths[f"eps-{eps}-squared"] = title, _longer_squared(float(eps))
    lengths["missing"] = ("queries and keys are not divided by their lengths", lambda x: x)
    for name, (title, new) in lengths.items():
        yield entry(f"cosine-{name}", title, cosine, model=_length(new))
    title = "the keys have the bias of the queries"
    yield entry("k-bias-is-q-bias", title, lambda c: cosine(c) and c.q_bias, model=_keys("q"))
    title = "the keys have the bias of the values, the values have none"
    yield entry("v-bias-on-keys", title, lambda c: cosine(c) and c.v_bias, model=_values_without)
    coordinates: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "ln": ("coordinates have the natural logarithm for that of base 2", lambda t: t * 0.6931471805599453),
        "log10": ("coordinates have the decimal logarithm for that of base 2", lambda t: t * 0.3010299956639812),
        "unscaled": ("coordinates are not divided by the logarithm of 8", lambda t: t * 3),
        "linear": ("coordinates have no logarithm: they lie in [-1, 1]", lambda t: _distance(t) / 8),
        "linear-8": ("coordinates have no logarithm: they lie in [-8, 8]", lambda t: _distance(t)),
        "not-times-8": (
            "coordinates are not multiplied by 8 ahead of the logarithm",
            lambda t: t.sign() * (_distance(t).abs() / 8 + 1).log2() / 3,
        ),
        "exchanged": ("rows and columns of the coordinates are exchanged", lambda t: t.flip(-1)),
        "flipped": ("coordinates have the other sign", lambda t: -t),
        "rows-flipped": ("coordinates have the other sign along the rows", lambda t: t * t.new_tensor([-1.0, 1.0])),
        "rounded": ("coordinates are rounded otherwise: made in another order, or not in float32", _rounded),
    }
    for name, (title, new) in coordinates.items():
        yield entry(f"coordinates-{name}", title, cosine, model=_places(new))
    for side in PRETRAINED:

        def another(c: FlatConfig, side: int = side) -> bool:
            return cosine(c) and set(c.facts.pretrained_window or ()) != {side}

        title = f"coordinates are those of a pre-training with windows of {side}"
        title = title if side else "coordinates are those of the windows themselves, not of pre-training's"
        known = {"facts": ("pretrained_window",)}
        yield entry(f"pretrained-window-{side}", title, another, model=_pretrained(side), **known)
    title = "the bias of places is not 16 sigmoid of what the MLP gives, but that itself"
    yield entry("cpb-sigmoid-missing", title, cosine, model=_bias(lambda attn: attn.from_coordinates()))
    title = "the bias of places is the sigmoid of what the MLP gives, not 16 times that"
    yield entry("cpb-16-missing", title, cosine, model=_bias(lambda attn: attn.from_coordinates().sigmoid()))
    title = "there is no bias of places"
    yield entry("cpb-missing", title, cosine, model=_bias(lambda attn: attn.from_coordinates() * 0))


def _square_table(c: FlatConfig) -> bool:
    sides = [c.stages.window(s, i) for s, i in c.blocks if c.has(f"stages.{s}.blocks.{i}.attn.table")]
    return bool(sides) and all(high == wide for high, wide in sides)


FAULTS = tuple(_entries())
