"""Which host's model fits a bare checkpoint whose facts are not known."""

from __future__ import annotations

from vitconv.configs.timm_table import arguments, models
from vitconv.parity.weights import Weights

SHOWN = 3


def suggestion(source: Weights, spec: str) -> str:
    """Return a sentence that names the network to give in place of the bare checkpoint, or ""."""
    host = {"timm": "timm", "torchvision": "torchvision", "xformers": "xformers-style"}.get(source.dialect)
    if source.dialect.startswith("hf-"):
        return f"\nor name the network: transformers:config.json@{spec}"
    if source.dialect.startswith("xformers"):
        return f"\nor name the network: xformers-style:CONFIG.yaml@{spec} with release=0.0.x"
    if host == "timm":
        fitting = _timm(source)
        if fitting:
            return f"\nor name the network; these have its sizes: {', '.join(f'timm:{m}@{spec}' for m in fitting)}"
    return f"\nor name the network: {host}:MODEL@{spec}" if host else ""


def _timm(source: Weights) -> list[str]:
    """Return names of timm's models with the sizes of these weights, the shortest first."""
    sizes, found = source.sizes, []
    pos = source.tensors.get("embed.pos")
    for name in models():
        args = arguments(name)
        if args is None or not isinstance(args["patch_size"], int) or not isinstance(args["img_size"], int):
            continue
        fits = (
            args["embed_dim"] == sizes.get("d")
            and args["depth"] == source.depth
            and args["patch_size"] == sizes.get("p")
            and int(args["embed_dim"] * args["mlp_ratio"]) == sizes.get("m")
            and (pos is None or (args["img_size"] // args["patch_size"]) ** 2 == pos.shape[0])
        )
        if fits:
            found.append(name)
    return sorted(found, key=lambda n: (len(n), n))[:SHOWN]
