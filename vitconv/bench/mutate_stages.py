"""Spoil networks of stages (Swin, Swin V2) of three libraries on purpose. See `vitconv.bench.mutate`.

timm, torchvision and transformers call their parts by other names, so a part is known by what it holds: an index of
relative positions, a table of coordinates, a scale of the cosine, a `shift_size`, a `reduction`. Windows are square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log, log2, log10
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override

# Grid of offsets of a window of w: [2w-1 2w-1].
Grid = Callable[[Tensor, Tensor, int], Tensor]


def _with(net: Any, attribute: str) -> list[Any]:
    return [m for m in net.modules() if attribute in {**m._buffers, **m._parameters, **m._modules, **vars(m)}]  # noqa: SLF001


def _has(attribute: str) -> Callable[[Any], bool]:
    return lambda net: bool(_with(net, attribute))


def attentions(net: Any) -> list[Any]:
    """Return the modules that hold heads: they take x and a mask (torchvision's: x alone)."""
    kinds = ("WindowAttention", "ShiftedWindowAttention", "ShiftedWindowAttentionV2", "SwinAttention")
    return [m for m in net.modules() if type(m).__name__ in (*kinds, "Swinv2SelfAttention")]


@contextmanager
def _patched(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def _calling(owner: Any, name: str, new: Callable[..., Any]) -> Callable[[Any], None]:
    """Let the attentions find `new` where they call `owner.name`."""

    def plant(net: Any) -> None:
        for attn in attentions(net):
            whole = type(attn).forward

            def forward(self: Any, *args: Any, whole: Any = whole, **options: Any) -> Any:
                with _patched(owner, name, new):
                    return whole(self, *args, **options)

            override(attn, forward=forward)

    return plant


def _index(change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> Callable[[Any], None]:
    """Change the rows and columns, each in [0, 2w-2], of the index of relative positions."""

    def plant(net: Any) -> None:
        for m in _with(net, "relative_position_index"):
            index = m.relative_position_index
            side = 2 * round(index.numel() ** 0.25) - 1
            down, right = change(index // side, index % side, side - 1)
            m.relative_position_index = down * side + right

    return plant


def _coordinates(change: Grid) -> Callable[[Any], None]:
    """Make the table of coordinates anew from offsets [2w-1 2w-1] down and to the right, and w."""

    def plant(net: Any) -> None:
        for m in _with(net, "relative_coords_table"):
            table = m.relative_coords_table
            w = (table.shape[1] + 1) // 2
            # In float32, as the libraries make it.
            line = torch.arange(1 - w, w, dtype=torch.float32)
            down, right = torch.meshgrid(line, line, indexing="ij")
            m.relative_coords_table = change(down, right, w).to(table)[None]

    return plant


def _each(change: Callable[[Tensor, int], Tensor]) -> Grid:
    return lambda down, right, w: torch.stack([change(down, w), change(right, w)], -1)


def _signed_log(x: Tensor, base: float = log2(8)) -> Tensor:
    return x.sign() * torch.log2(x.abs() + 1) / base


def _right(x: Tensor, w: int) -> Tensor:
    return _signed_log(8 * x / (w - 1))


def _pretrained(width: int) -> Grid:
    return _each(lambda x, w: _signed_log(8 * x / (width - 1)))


def _cells(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Exchange the neighbours that a merging joins: x as [b h 2 w 2 c]."""

    def plant(net: Any) -> None:
        for m in _with(net, "reduction"):
            whole = type(m).forward

            def forward(self: Any, x: Tensor, *size: Any, whole: Any = whole) -> Tensor:
                h, w = size[0] if size else x.shape[1:3]
                cells = x.reshape(len(x), h // 2, 2, w // 2, 2, x.shape[-1])
                return whole(self, change(cells).reshape(x.shape), *size)

            override(m, forward=forward)

    return plant


def _columns(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Change the order of a merging's 4 c columns, just before its norm or, in Swin V2, its matrix."""

    def plant(net: Any) -> None:
        for m in _with(net, "reduction"):
            first = m.norm if m.norm.weight.shape[0] == m.reduction.in_features else m.reduction
            whole = type(first).forward

            def forward(self: Any, x: Tensor, whole: Any = whole) -> Tensor:
                return whole(self, change(x))

            override(first, forward=forward)

    return plant


def _no_merge_norm(net: Any) -> None:
    for m in _with(net, "reduction"):
        override(m.norm, forward=lambda self, x: x)


def _eps(where: Callable[[Any], list[Any]], eps: float) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        for norm in where(net):
            norm.eps = eps

    return plant


def _merge_norms(net: Any) -> list[Any]:
    return [m.norm for m in _with(net, "reduction")]


def block_norms(net: Any) -> list[Any]:
    """Return the norms of the blocks: what is neither a merging's, nor ahead of the blocks, nor behind them."""
    found = [(n, m) for n, m in net.named_modules() if isinstance(m, nn.LayerNorm)]
    others = {id(m) for m in _merge_norms(net)}
    return [m for n, m in found[1:-1] if id(m) not in others and n]


def _none_like(shift: Any) -> Any:
    return 0 if isinstance(shift, int) else type(shift)(0 for _ in shift)


def _unshifted(net: Any) -> None:
    for m in _with(net, "shift_size"):
        m.shift_size = _none_like(m.shift_size)
        if "attn_mask" in m._buffers:  # noqa: SLF001
            m.attn_mask = None


def _shift_first(net: Any) -> None:
    found = _with(net, "shift_size")
    for a, b in zip(found[::2], found[1::2], strict=True):
        a.shift_size, b.shift_size = b.shift_size, a.shift_size
        if "attn_mask" in a._buffers:  # noqa: SLF001
            a.attn_mask, b.attn_mask = b.attn_mask, a.attn_mask


def _masks(change: Callable[[Tensor], Tensor | None]) -> Callable[[Any], None]:
    """Change the mask of the shifted windows where attention is given one."""

    def plant(net: Any) -> None:
        for attn in attentions(net):
            whole = type(attn).forward

            def forward(self: Any, x: Tensor, *args: Any, whole: Any = whole, **options: Any) -> Any:
                args = tuple(change(a) if isinstance(a, Tensor) else a for a in args)
                options = {n: change(a) if isinstance(a, Tensor) else a for n, a in options.items()}
                return whole(self, x, *args, **options)

            override(attn, forward=forward)

    return plant


def _masked_inside(net: Any) -> bool:
    return type(net).__module__.startswith("torchvision.")


def _scale(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Change the cosine's scale before it is held below log 100."""

    def plant(net: Any) -> None:
        for m in _with(net, "logit_scale"):
            override(m, logit_scale=property(lambda self: change(self._parameters["logit_scale"])))

    return plant


def _normalize(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _lengths(eps: float) -> Callable[..., Tensor]:
    return lambda x, *_, **__: x / (x.norm(dim=-1, keepdim=True) + eps)


def _tanh(net: Any) -> None:
    for m in net.modules():
        if type(m).__name__ in ("GELU", "GELUActivation"):
            override(m, forward=lambda self, x: nn.functional.gelu(x, approximate="tanh"))


def _rms(net: Any) -> None:
    for norm in block_norms(net):
        override(
            norm, forward=lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps) + self.bias
        )


def of_every_swin() -> Iterator[Mutation]:
    """Yield what Swin and Swin V2 can both have."""
    # With a table of coordinates another index is another table of coordinates; one bias for all pairs is none.
    index: dict[str, tuple[str, str, Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]]] = {
        "transposed": ("table-transposed", "coordinates-exchanged", lambda d, r, n: (r, d)),
        "flipped": ("table-flipped", "coordinates-flipped", lambda d, r, n: (n - d, n - r)),
        "upside down": ("table-rows-flipped", "coordinates-rows-flipped", lambda d, r, n: (n - d, r)),
        "all zeros": ("table-first-row", "cpb-missing", lambda d, r, n: (d * 0, r * 0)),
    }
    for name, (with_table, with_mlp, at) in index.items():
        yield Mutation(f"index {name}", (with_table,), _index(at), _has("relative_position_bias_table"))
        yield Mutation(f"index {name} of an MLP", (with_mlp,), _index(at), _has("relative_coords_table"))
    merge: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "by rows": ("merge-order-rows", lambda x: x.transpose(2, 4)),
        "in reverse": ("merge-order-reversed", lambda x: x.flip(2, 4)),
        "left and right": ("merge-order-columns-exchanged", lambda x: x.flip(4)),
        "above and below": ("merge-order-rows-exchanged", lambda x: x.flip(2)),
    }
    for name, (truth, change) in merge.items():
        yield Mutation(f"merging {name}", (truth,), _cells(change), _has("reduction"))
    # nn.Unfold's columns: channel by channel, in each row by row; the libraries': by neighbours, column by column.
    unfolded: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "channel by channel": (
            "merge-as-unfold", lambda x: x.unflatten(-1, (2, 2, -1)).movedim(-1, -3).transpose(-1, -2).flatten(-3)
        ),
        "not channel by channel": (
            "merge-of-unfold", lambda x: x.unflatten(-1, (-1, 2, 2)).transpose(-1, -2).movedim(-3, -1).flatten(-3)
        ),
    }  # fmt: skip
    for name, (truth, change) in unfolded.items():
        yield Mutation(f"merging {name}", (truth,), _columns(change), _has("reduction"))
    yield Mutation("merging without norm", ("merge-norm-missing",), _no_merge_norm, _has("reduction"))
    yield Mutation("eps of mergings 1e-6", ("eps-merge-1e-6",), _eps(_merge_norms, 1e-6), _has("reduction"))
    yield Mutation("eps of blocks 1e-6", ("eps-blocks-1e-6",), _eps(block_norms, 1e-6), _has("reduction"))
    yield Mutation("no shift", ("shift-missing",), _unshifted, _has("shift_size"))
    yield Mutation("shift in the first block", ("shift-first",), _shift_first, _has("shift_size"))
    yield Mutation(
        "shift unmasked", ("shift-mask-missing",), _masks(lambda m: None),
        lambda net: _has("shift_size")(net) and not _masked_inside(net),
    )  # fmt: skip
    filled = _calling(Tensor, "masked_fill", lambda self, where, value: self * 0)
    yield Mutation("shift unmasked inside", ("shift-mask-missing",), filled, _masked_inside)
    yield Mutation("tanh GELU in stages", ("activation-gelu-tanh",), _tanh, _has("reduction"))
    yield Mutation("RMS norms in stages", ("norm-kind-rmsnorm-blocks",), _rms, _has("reduction"))


def of_swin_v2() -> Iterator[Mutation]:
    """Yield what Swin V2 alone can have."""
    tables: dict[str, tuple[str, Grid]] = {
        "natural log": ("coordinates-ln", _each(lambda x, w: _right(x, w) * log(2))),
        "decimal log": ("coordinates-log10", _each(lambda x, w: _right(x, w) * log10(2))),
        "not by log 8": ("coordinates-unscaled", _each(lambda x, w: _right(x, w) * 3)),
        "no log": ("coordinates-linear", _each(lambda x, w: x / (w - 1))),
        "no log, times 8": ("coordinates-linear-8", _each(lambda x, w: 8 * x / (w - 1))),
        "not times 8": ("coordinates-not-times-8", _each(lambda x, w: _signed_log(x / (w - 1)))),
        "exchanged": ("coordinates-exchanged", lambda d, r, w: torch.stack([_right(r, w), _right(d, w)], -1)),
        "of windows of 8": ("pretrained-window-8", _pretrained(8)),
        "of windows of 12": ("pretrained-window-12", _pretrained(12)),
        "of windows of 16": ("pretrained-window-16", _pretrained(16)),
        "in float64": ("coordinates-rounded", _each(lambda x, w: _right(x.double(), w))),
    }
    for name, (truth, table) in tables.items():
        yield Mutation(f"coordinates {name}", (truth,), _coordinates(table), _has("logit_scale"))
    scales: dict[str, Callable[[Tensor], Tensor]] = {
        "missing": lambda s: s * 0,
        "clamped-at-10": lambda s: s.clamp(max=log(10)),
        "not-exponentiated": lambda s: s.clamp(max=log(100)).log(),
        "as-it-is": lambda s: s.log(),
        "clamped-late": lambda s: s.exp().clamp(max=log(100)).log(),
    }
    for name, scale in scales.items():
        yield Mutation(f"scale {name}", (f"logit-scale-{name}",), _scale(scale), _has("logit_scale"))
    calls: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "logit-scale-unclamped": (torch, "clamp", lambda x, *_, **__: x),
        "cpb-sigmoid-missing": (torch, "sigmoid", lambda x: x / 16),
        "cpb-16-missing": (torch, "sigmoid", lambda x: x.sigmoid() / 16),
        "cpb-missing": (torch, "sigmoid", lambda x: x * 0),
        "cosine-missing": (nn.functional, "normalize", _normalize),
        **{f"cosine-eps-{e}": (nn.functional, "normalize", _lengths(float(e))) for e in ("1e-6", "1e-5", "1e-3")},
    }
    for name, (owner, attribute, new) in calls.items():
        fits = _bounded if name == "cosine-missing" else _has("logit_scale")
        yield Mutation(name, (name,), _calling(owner, attribute, new), fits)
    for name, plant in _biases().items():
        yield Mutation(name, (name,), plant, _timm_v2)


def _bounded(net: Any) -> bool:
    # transformers adds the shift's mask twice, which shows as soon as logits are not bounded by the cosine.
    return _has("logit_scale")(net) and not type(net).__module__.startswith("transformers.")


def _pyramid_norms(part: str) -> Callable[[Any], list[Any]]:
    """Return how to find norms of a pyramid: of patches, reduced keys, ends of stages, or all."""
    places = {
        "patches": r"(patch_embed|.*downsample|.*patch_embedding|.*patch_embeddings\.\d+)\.(norm|layer_norm)",
        "reduced": r".*(attn|attention|self)\.(norm|layer_norm)",
        "ends": r"(stages|.*encoder\.layers)\.\d+\.(norm|layer_norm)",
        "everywhere": ".*",
    }

    def find(net: Any) -> list[Any]:
        named = net.named_modules()
        return [m for n, m in named if isinstance(m, nn.LayerNorm) and re.fullmatch(places[part], n)]

    return find


def _pyramid(part: str) -> Callable[[Any], bool]:
    find = _pyramid_norms(part)
    return lambda net: re.match("Pyramid|Pvt", type(net).__name__) is not None and bool(find(net))


def _no_reduced_norm(net: Any) -> None:
    for norm in _pyramid_norms("reduced")(net):
        override(norm, forward=lambda self, x: x)


def _no_reduced_bias(net: Any) -> None:
    for name, m in net.named_modules():
        if name.endswith((".sr", ".spatial_reduction", ".sequence_reduction")) and m is not None:
            override(m, forward=lambda self, x: nn.functional.conv2d(x, self.weight, None, self.stride))


def of_pyramids() -> Iterator[Mutation]:
    """Yield what PVT and PVTv2 can have."""
    for part in ("patches", "reduced", "ends", "everywhere"):
        for eps in ("1e-3", "1e-12"):
            change = _eps(_pyramid_norms(part), float(eps))
            yield Mutation(f"pyramid eps {eps}, {part}", (f"eps-{part}-{eps}",), change, _pyramid(part))
    yield Mutation("reduced keys without norm", ("reduced-norm-missing",), _no_reduced_norm, _pyramid("reduced"))
    yield Mutation("reduction without bias", ("reduced-bias-missing",), _no_reduced_bias, _pyramid("reduced"))
    yield Mutation("tanh GELU in a pyramid", ("activation-gelu-tanh",), _tanh, _pyramid("everywhere"))


def _timm_v2(net: Any) -> bool:
    return type(net).__name__ == "SwinTransformerV2"


def _biases() -> dict[str, Callable[[Any], None]]:
    def keys(source: str) -> Callable[[Any], None]:
        def plant(net: Any) -> None:
            for attn in attentions(net):
                parts: dict[str, Any] = {"k_bias": property(lambda self: self._parameters[source])}
                if source == "v_bias":
                    parts["v_bias"] = property(lambda self: self._buffers["k_bias"])
                override(attn, **parts)

        return plant

    return {"k-bias-is-q-bias": keys("q_bias"), "v-bias-on-keys": keys("v_bias")}
