"""Build the network of each library that the facts of a prepared conversion describe, with its fresh weights."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitconv.configs.request import stated
from vitconv.configs.timm_write import ratio_of
from vitconv.conversion.beside import Beside, configs_for
from vitconv.conversion.owners import LAYOUTS
from vitconv.conversion.prepare import Prepared
from vitconv.errors import Refused, UsageError
from vitconv.hosts.base.host import Built, Host, Spec

_EPS = ("norm_eps", "final_norm_eps", "embed_norm_eps", "qk_norm_eps")
# {library in `LAYOUTS`: the host that builds its networks}, where they are not of one name.
HOST_OF = {"vitconv": "reference", "xformers": "xformers-style", "open_clip": "open-clip"}


def layouts_of(host: Host, model: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layouts that the networks of a host can have, the usual one first.

    Raises:
        UsageError: the host is python and no factory is named, or nothing is known of such a host.
        NotRecognised: the tensors of the user's own network are in no known layout.
    """
    if host.name != "python":
        library = next((library for library, name in HOST_OF.items() if name == host.name), host.name)
        if library not in LAYOUTS:
            raise UsageError(f"host {host.name}: load knows {', '.join((*_BUILDERS, 'python:MODULE:FACTORY', 'auto'))}")
        return LAYOUTS[library]
    if not model:
        raise UsageError("host python: load needs the factory, as in python:MODULE:FACTORY")
    from vitconv.layout.detect import detect
    from vitconv.registry import DIALECTS, load_all

    built = host.build(Spec(model, options))
    every = load_all(DIALECTS)
    shapes = {key: tuple(t.shape) for key, t in built.module.state_dict().items()}
    likely = [every[name] for name in built.dialects] or list(every.values())
    match = detect(shapes, likely, choices=built.choices, given=built.axes, facts=built.facts.known())
    return (match.dialect.name,)


def build(host: Host, model: str, prepared: Prepared, options: dict[str, Any]) -> Built:
    """Return the network of a library that a prepared conversion fills.

    Raises:
        Refused: a fact that the library asks for is unknown, or it has no such network.
    """
    make = _BUILDERS.get(host.name)
    return host.build(Spec(model, options)) if make is None else make(host, prepared, options)


def _reference(host: Host, prepared: Prepared, options: dict[str, Any]) -> Built:
    network = prepared.plan.network
    return host.build(Spec("", options, network.facts, network.shapes))


def _configured(host: Host, prepared: Prepared, options: dict[str, Any]) -> Built:
    """Build from the configuration files that a folder would get."""
    beside = _files(prepared)
    if not beside.files:
        why = beside.asked or beside.lacking or "its library has no configuration"
        raise Refused(f"{prepared.source.checkpoint.path}: {why}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in beside.files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        if not host.name.startswith("xformers"):
            return host.build(Spec(folder, {**_bare(prepared), **options}))
        # The library that is installed is of one release, and takes none.
        around = {k: v for k, v in _around(prepared).items() if k in host.options}
        return host.build(Spec(str(Path(folder) / next(iter(beside.files))), {**around, **options}))


def _bare(prepared: Prepared) -> dict[str, Any]:
    """Return the option that leaves out the pooler, which the bare classes of ViT and DeiT would make up."""
    p = prepared.plan
    whole = any(name in p.network.cells for name in ("head.weight", "pool.dense.weight"))
    return {"pooler": False} if p.target.variant.dialect.name in ("hf-vit", "hf-deit") and not whole else {}


def _files(prepared: Prepared) -> Beside:
    """Return the configuration, if need be with one eps that the library can say: the true ones are put in later."""
    p, extra = prepared.plan, prepared.source.extra
    first = configs_for(p, extra)
    known = [name for name in _EPS if getattr(p.network.facts, name) is not None]
    if first.files or p.source.variant.dialect.family != "plain" or "norm_eps" not in known:
        return first
    for eps in (p.network.facts.norm_eps, 1e-6, 1e-5):
        facts = p.network.facts.replaced(dict.fromkeys(known, eps))
        even = configs_for(dataclasses.replace(p, network=dataclasses.replace(p.network, facts=facts)), extra)
        if even.files:
            return even
    return first


def _around(prepared: Prepared) -> dict[str, Any]:
    """Return what the first report's network puts around the factory's stack, and the release of the stack."""
    p = prepared.plan
    sizes, facts = p.sizes, p.network.facts
    fused = p.target.variant.dialect.name == "xformers-fused"
    out: dict[str, Any] = {"release": facts.release or ("0.0.11" if fused else "0.0.28.post3")}
    if "embed.patch.weight" not in p.network.cells:
        return {**out, "wrap": "none"}
    if facts.image_size is None and facts.grid is None:
        raise Refused(f"the weights do not say grid; state it, as in {stated(['grid'])}")
    sides = (sizes["p"], sizes.get("q", sizes["p"]))
    image = facts.image_size or tuple(n * s for n, s in zip(facts.grid or (), sides, strict=True))
    return {**out, "image": image, "patch": sides, "channels": sizes["c"], "classes": sizes.get("o", 0)}


def _open_clip(host: Host, prepared: Prepared, options: dict[str, Any]) -> Built:
    p = prepared.plan
    sizes, facts, cells = p.sizes, p.network.facts, p.network.cells
    _check([name for name in ("heads", "norm_eps", "activation", "pooling") if getattr(facts, name) is None])
    if facts.image_size is None and facts.grid is None:
        _check(["grid"])
    p_, q = sizes["p"], sizes.get("q", sizes["p"])
    acts = {"quick_gelu": {}, "gelu": {}, "gelu_tanh": {"act_kwargs": {"approximate": "tanh"}}}
    if facts.activation not in acts:
        raise Refused(f"activation={facts.activation}: open_clip's own towers have gelu or quick_gelu")
    pools = {"token": "tok", "avg": "avg", "none": "none"}
    d, has = sizes["d"], cells.__contains__
    pooler: dict[str, Any] = {}
    if has("coca.queries"):
        _check(["pool_heads"] if facts.pool_heads is None else [])
        queries, _ = cells["coca.queries"].shape
        pooler = {"attentional_pool": True, "attn_pooler_queries": queries, "attn_pooler_heads": facts.pool_heads}
    vision = {
        "layers": p.network.depth,
        "width": d,
        "head_width": d // (facts.heads or 1),
        "mlp_ratio": ratio_of(sizes["m"], d),
        "patch_size": (p_, q),
        "image_size": facts.image_size or tuple(n * s for n, s in zip(facts.grid or (), (p_, q), strict=True)),
        "ls_init_value": 1.0 if has("blocks.0.ls1") else None,
        "no_ln_pre": not has("embed.norm.weight"),
        "final_ln_after_pool": has("pool.norm.weight"),
        "pool_type": pools.get(facts.pooling or "", "tok"),
        "norm_kwargs": {"eps": facts.norm_eps},
        "qk_norm": has("blocks.0.attn.q_norm.weight"),
        "scale_attn_inner": has("blocks.0.attn.norm.weight"),
        "scale_fc": has("blocks.0.mlp.norm.weight"),
        **acts[facts.activation or ""],
        **pooler,
    }
    # A pooler is as wide as what it gives.
    embed = cells["coca.queries"].shape[1] if pooler else sizes.get("o", d)
    config = {"embed_dim": embed, "vision_cfg": vision, "quick_gelu": facts.activation == "quick_gelu"}
    proj = has("head.weight") or has("coca.proj")
    return host.build(Spec("", {"config": config, "proj": proj, **options}))


def _torchvision(host: Host, prepared: Prepared, options: dict[str, Any]) -> Built:
    if prepared.plan.source.variant.dialect.family == "stages":
        return host.build(Spec("SwinTransformer", {**_swin(prepared), **options}, prepared.plan.network.facts))
    from torch import nn

    p = prepared.plan
    sizes, facts = p.sizes, p.network.facts
    lacking = [name for name in ("heads", "norm_eps") if getattr(facts, name) is None]
    if facts.image_size is None and facts.grid is None:
        lacking.append("grid")
    _check(lacking)
    image = facts.image_size or tuple(n * sizes["p"] for n in facts.grid or ())
    if image[0] != image[1]:
        raise Refused(f"torchvision's networks take square images, this one {image[0]}x{image[1]}")
    given = {
        "image_size": image[0],
        "patch_size": sizes["p"],
        "num_layers": p.network.depth,
        "num_heads": facts.heads,
        "hidden_dim": sizes["d"],
        "mlp_dim": sizes["m"],
        "num_classes": sizes["o"],
        "norm_layer": partial(nn.LayerNorm, eps=facts.norm_eps or 0.0),
    }
    return host.build(Spec("VisionTransformer", {**given, **options}))


def _swin(prepared: Prepared) -> dict[str, Any]:
    from torch import nn
    from torchvision.models import swin_transformer as swin

    p = prepared.plan
    sizes, facts, cells = p.sizes, p.network.facts, p.network.cells
    _check([name for name in ("stage_heads", "window", "norm_eps") if getattr(facts, name) is None])
    stages = len({name.split(".")[1] for name in cells if name.startswith("stages.")})
    blocks = [len({n.split(".")[3] for n in cells if n.startswith(f"stages.{s}.blocks.")}) for s in range(stages)]
    windows = set(facts.window or ())
    if len(windows) > 1:
        raise Refused(f"torchvision's Swin has one window for all stages, this one {sorted(windows)}")
    heads = facts.stage_heads or ()
    v2 = p.target.variant.dialect.name == "torchvision-swinv2"
    more = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if v2 else {}
    return {
        "patch_size": [sizes["p"], sizes.get("q", sizes["p"])],
        "embed_dim": sizes["d_0"],
        "depths": blocks,
        "num_heads": list(heads) * (stages if len(heads) == 1 else 1),
        "window_size": [windows.pop()] * 2,
        "mlp_ratio": sizes["m_0"] / sizes["d_0"],
        "num_classes": sizes["o"],
        "norm_layer": partial(nn.LayerNorm, eps=facts.norm_eps or 0.0),
        **more,
    }


def _check(lacking: list[str]) -> None:
    if lacking:
        raise Refused(f"the weights do not say {', '.join(lacking)}; state them, as in {stated(lacking)}")


_BUILDERS: Mapping[str, Callable[[Host, Prepared, dict[str, Any]], Built]] = {
    "timm": _configured,
    "transformers": _configured,
    "torchvision": _torchvision,
    "open-clip": _open_clip,
    "xformers": _configured,
    "xformers-style": _configured,
    "reference": _reference,
}
