"""Build the table of a scheme: what most share is said once, and each scheme says what is its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import (
    Distribution,
    constant,
    fixed,
    lecun_normal,
    normal,
    torch_default,
    xavier_normal,
    xavier_uniform,
)
from vitconv.inits.base.fans import Fans, flat_fans, fused_fans, linear_fans
from vitconv.inits.base.sincos import Frequencies, Periods, Table

Value = Distribution | Callable[[Site], Distribution]

ZEROS = constant(0.0, "0")
ONES = constant(1.0, "1")
NEAR_ZERO = normal(1e-6)

# Parts of a block by their roles, without ".weight".
QKV = ("attn.q", "attn.k", "attn.v")
MLP = ("mlp.up", "mlp.gate", "mlp.down")


def table(
    *,
    linear: Value,
    bias: Value = ZEROS,
    mlp_bias: Value | None = None,
    patch: Value,
    patch_bias: Value = ZEROS,
    pos: Value,
    cls: Value,
    dist: Value | None = None,
    registers: Value | None = None,
    mask: Value = ZEROS,
    probe: Value | None = None,
    layer_scale: Value,
    head: Value | None = None,
    head_bias: Value | None = None,
    more: Mapping[str, Value] | None = None,
) -> dict[str, Value]:
    """Return a table with every role of the plain family, decoders of masked autoencoders included.

    Norms get 1 and 0. What is None follows: mlp_bias the bias, dist, registers and the probe of an
    attention-pooling head the class token, head the linear layers. `more` is laid over the rest, by template or role.
    """
    found: dict[str, Value] = {
        "norm.weight": ONES,
        "norm.bias": ZEROS,
        "patch.weight": patch,
        "patch.bias": patch_bias,
        "position": pos,
        "token": cls,
        "embed.dist": cls if dist is None else dist,
        "embed.reg": cls if registers is None else registers,
        "embed.mask": mask,
        "pool.probe": cls if probe is None else probe,
        "layer_scale": layer_scale,
        "head.weight": linear if head is None else head,
        "head.bias": bias if head_bias is None else head_bias,
        "pool.dense.weight": linear,
        "pool.dense.bias": bias,
        # A key bias that is masked, biases by relative position, and a norm that only training has.
        "dead": ZEROS,
        "rel_pos": ZEROS,
        "rel_pos_cls": ZEROS,
        "blocks.{i}.attn.rel_pos": ZEROS,
        "blocks.{i}.attn.rel_pos_cls": ZEROS,
        "training.weight": ONES,
        "training.bias": ZEROS,
        "decoder.weight": linear,
        "decoder.bias": bias,
        "rope": periods,
        "rope.mixed": frequencies,
        # What only networks of stages have. Swin-v2's scale of the logits starts at ln 10.
        "merge.weight": linear,
        "cpb.weight": linear,
        "cpb.bias": bias,
        "logit_scale": constant(math.log(10.0), "ln 10"),
        "attn.sr.weight": default,
        "attn.sr.bias": default,
        "dwc.weight": default,
        "dwc.bias": default,
        "focused.scale": ZEROS,
    }
    for part in (*QKV, "attn.out", *MLP):
        found[f"{part}.weight"] = linear
        found[f"{part}.bias"] = bias if mlp_bias is None or not part.startswith("mlp.") else mlp_bias
    return found | dict(more or {})


def weights(parts: tuple[str, ...], value: Value) -> dict[str, Value]:
    """Return {role of the weight: value} of these parts."""
    return {f"{part}.weight": value for part in parts}


def biases(parts: tuple[str, ...], value: Value) -> dict[str, Value]:
    """Return {role of the bias: value} of these parts."""
    return {f"{part}.bias": value for part in parts}


def default(site: Site) -> Distribution:
    """Return what torch's own constructor draws, for a weight as for a bias: both by the weight's fan-in."""
    shape = site.weight_shape
    return torch_default(flat_fans(shape) if len(shape) > 2 else linear_fans(shape))


def xavier(site: Site) -> Distribution:
    """Return xavier uniform on the matrix by itself; on a patch projection as the matrix it is."""
    return xavier_uniform(_own_fans(site))


def xavier_gaussian(gain: Callable[[Site], float]) -> Callable[[Site], Distribution]:
    """Return xavier normal with a gain by site."""
    return lambda site: xavier_normal(_own_fans(site), gain(site))


def fused_xavier(site: Site) -> Distribution:
    """Return xavier uniform as it comes out for q, k and v that are drawn as one matrix."""
    return xavier_uniform(fused_fans(site.shape))


def lecun(site: Site) -> Distribution:
    """Return lecun normal by the fan-in of the matrix."""
    return lecun_normal(_own_fans(site))


def sincos(kind: str) -> Callable[[Site], Distribution]:
    """Return the fixed position table of this kind."""
    return lambda site: fixed(Table(kind, *site.arch.grid, site.shape[-1]))


def periods(site: Site) -> Distribution:
    """Return the periods of a rotary embedding, which no seed changes."""
    theta = site.arch.facts.rope_theta
    return fixed(Periods(100.0 if theta is None else theta, site.shape[-1]))


def frequencies(site: Site) -> Distribution:
    """Return the frequencies of rotary positions that are trained, as they start without a turn of their own."""
    theta = site.arch.facts.rope_theta
    return fixed(Frequencies(10.0 if theta is None else theta, *site.shape[1:]))


def by_width(site: Site) -> Distribution:
    """Return N(0, 1/sqrt d)."""
    return normal(site.shape[-1] ** -0.5, f"N(0, 1/sqrt {site.shape[-1]})")


def _own_fans(site: Site) -> Fans:
    return flat_fans(site.shape) if len(site.shape) > 2 else linear_fans(site.shape)
