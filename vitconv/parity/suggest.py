"""Which host's model fits a bare checkpoint whose facts are not known."""

from __future__ import annotations

from typing import Any

from vitconv.configs.timm_table import arguments, models
from vitconv.conversion.recognise import AUTHOR
from vitconv.parity.weights import Weights

SHOWN = 3


def suggestion(source: Weights, spec: str) -> str:
    """Return a sentence that names the network to give in place of the bare checkpoint, or ""."""
    host = {"timm": "timm", "torchvision": "torchvision", "xformers": "xformers-style"}.get(source.dialect)
    if source.dialect.startswith("hf-"):
        return f"\nor name the network: transformers:config.json@{spec}"
    if source.dialect.startswith("xformers"):
        return _xformers(source, spec)
    if host == "timm":
        fitting = _timm(source)
        if fitting:
            return f"\nor name the network; these have its sizes: {', '.join(f'timm:{m}@{spec}' for m in fitting)}"
    return f"\nor name the network: {host}:MODEL@{spec}" if host else ""


def _xformers(source: Weights, spec: str) -> str:
    eps = "\nin the blocks of xformers' factory norm_eps is 1e-5, and 1e-6 where Triton ran (0.0.10 to 0.0.26)"
    eps = eps if source.facts.norm_eps is None else ""
    # The networks of its examples have a final norm that no host puts around the stack.
    own = source.sources.get("final_norm_eps", "").startswith(AUTHOR)
    return eps + ("" if own else f"\nor name the network: xformers-style:CONFIG.yaml@{spec} with release=0.0.x")


def _timm(source: Weights) -> list[str]:
    """Return names of timm's models with the sizes and the tokens of these weights, the shortest first."""
    sizes, has = source.sizes, source.tensors.__contains__
    rows = sizes.get("n")
    found = []
    for name in models():
        args = arguments(name)
        if args is None:
            continue
        image, patch = _pair(args["img_size"]), _pair(args["patch_size"])
        fits = (
            (args["embed_dim"], args["depth"], patch)
            == (sizes.get("d"), source.depth, (sizes.get("p"), sizes.get("q")))
            and int(args["embed_dim"] * args["mlp_ratio"]) == sizes.get("m")
            and (rows is None or (image[0] // patch[0]) * (image[1] // patch[1]) == rows)
            and bool(args["class_token"]) == has("embed.cls")
            and bool(args["reg_tokens"]) == has("embed.reg")
            and bool(args["pre_norm"]) == has("embed.norm.weight")
            and bool(args["init_values"]) == has("blocks.0.ls1")
        )
        if fits:
            found.append(name)
    return sorted(found, key=lambda n: (len(n), n))[:SHOWN]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
