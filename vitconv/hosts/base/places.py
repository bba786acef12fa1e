"""Places: the module of a foreign network that plays each canonical part."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from vitconv.hosts.base.tap import Tap

# {canonical place: candidate module paths}; `{i}` is the layer. The first path that exists is taken.
Table = Mapping[str, tuple[str, ...]]
Places = dict[str, nn.Module]


def locate(module: nn.Module, table: Table) -> Places:
    """Find every place of `table` in `module`; absent ones, and Identity, are left out.

    Places of a block are `blocks.{i}` and `blocks.{i}.x` with x in norm1, norm2, attn, mlp, mlp.act, attn.q_norm,
    attn.k_norm; the others are embed.norm, norm, trunk_norm, pool.norm, head, head_dist.
    """
    # One module can have several names: old xformers registers attention twice.
    modules = dict(module.named_modules(remove_duplicate=False))
    found: Places = {}
    layers = 0
    while any(path.format(i=layers) in modules for path in table["blocks.{i}"]):
        layers += 1
    for place, paths in table.items():
        for i in range(layers if "{i}" in place else 1):
            path = next((p for p in (q.format(i=i) for q in paths) if p in modules), None)
            if path is not None and not isinstance(modules[path], nn.Identity):
                found[place.format(i=i)] = modules[path]
    return found


def depth(places: Mapping[str, nn.Module]) -> int:
    """Return the number of blocks."""
    return sum(1 for name in places if name.startswith("blocks.") and name.count(".") == 1)


def taps_of(
    places: Mapping[str, nn.Module], *, head: nn.Module | None = None, token: int | None = None
) -> dict[str, Tap]:
    """Return the taps of the canonical names in running order, from the places.

    `head` is the classifier, also where it is an Identity: pool is what it reads. `token`: the head runs on all
    tokens, and the value is that of one. embed is the input of the first block, or of the place `embed.end`.
    """
    first = places.get("embed.end", places.get("blocks.0"))
    taps: dict[str, Tap] = {} if first is None else {"embed": Tap(first, "input")}
    for i in range(depth(places)):
        for name in (f"blocks.{i}.attn", f"blocks.{i}.mlp", f"blocks.{i}"):
            if name in places:
                taps[name] = Tap(places[name], "output")
    if "norm" in places:
        taps["norm"] = Tap(places["norm"], "output")
    if head is not None:
        taps["pool"] = Tap(head, "input", token=token)
    if "head" in places:
        taps["head"] = Tap(places["head"], "output", token=token)
    return taps
