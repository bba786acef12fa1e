"""A difference planted in every path: each value, each gradient, each input, each precision, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitconv.parity.verify import verify
from vitconv.vit.mlp import Mlp
from vitconv.vit.model import ViT

QUICK: dict[str, Any] = {"precisions": ["fp64"], "skip": ["why"], "inputs": ["coloured"]}
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16")
When = Callable[[Tensor], bool]


class Scaled(torch.autograd.Function):
    """x forward; backward the gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return ctx.factor * g, None


def low(x: Tensor) -> bool:
    """Whether a pass is not in float64."""
    return x.dtype != torch.float64


def always(x: Tensor) -> bool:
    return True


def forward_of(place: type, when: When, factor: float = 1.05) -> type:
    """Return a module of `place` whose result is larger when the input says so."""

    def forward(self: Any, x: Tensor, *more: Any) -> Tensor:
        y = place.forward(self, x, *more)  # type: ignore[attr-defined]
        return y * factor if when(x) else y

    return type("Forward", (place,), {"forward": forward})


def backward_of(place: type, when: When, factor: float = 1.5) -> type:
    """Return a module of `place` that is right forward, and passes on a larger gradient when the input says so."""

    def forward(self: Any, x: Tensor, *more: Any) -> Tensor:
        return place.forward(self, Scaled.apply(x, factor) if when(x) else x, *more)  # type: ignore[attr-defined]

    return type("Backward", (place,), {"forward": forward})


def put(kind: type, path: str = "") -> Callable[[Any], None]:
    def change(module: Any) -> None:
        (module.get_submodule(path) if path else module).__class__ = kind

    return change


def failing(result: Any, stage: str) -> set[str]:
    return {r.name for r in result.stage(stage).failures}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("profile", ["default", "strict"])
def test_values_at_one_precision(precision, profile, live):
    change = put(forward_of(Mlp, low), "blocks.1.mlp")
    result = verify(live(), live(change), **{**QUICK, "precisions": [precision]}, profile=profile)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.stage("function").status == "ok"
    assert {"taps", "output"} <= failing(result, f"numerics-{precision}")
    assert result.where.forward == "blocks.1.mlp"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_at_one_precision(precision, live):
    change = put(backward_of(Mlp, low, 3.0), "blocks.1.mlp")
    result = verify(live(), live(change), **{**QUICK, "precisions": [precision]})
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.stage("function").status == "ok"
    seen = failing(result, f"numerics-{precision}")
    assert {"gradients of taps", "gradients of parameters", "all gradients"} <= seen
    assert not {"taps", "output"} & seen


@pytest.mark.parametrize("precision", ["fp64", *PRECISIONS])
def test_the_gradient_of_the_images_alone(precision, live):
    """No parameter and no tap stands ahead of the images."""
    change = put(backward_of(ViT, low if precision != "fp64" else always, 20.0))
    result = verify(live(), live(change), **{**QUICK, "precisions": [precision]})
    assert (result.verdict, result.exit_code) == ("differs", 1)
    if precision == "fp64":
        assert "first grad input" in result.reason
    else:
        assert failing(result, f"numerics-{precision}") == {"gradients of parameters"}
        assert "input" in result.reason


@pytest.mark.parametrize("blockwise", [True, False])
@pytest.mark.parametrize(
    ("change", "site"),
    [
        (put(forward_of(Mlp, always), "blocks.0.mlp"), "forward"),
        (put(backward_of(Mlp, always), "blocks.0.mlp"), "backward"),
        (put(backward_of(Mlp, always, 0.0), "blocks.1.mlp"), "backward"),
        (put(backward_of(ViT, always)), "input"),
    ],
    ids=["values in a block", "gradients in a block", "no gradient of a block", "gradient of the images"],
)
def test_block_by_block_too(change, site, blockwise, live):
    result = verify(live(), live(change), blockwise=blockwise, **QUICK)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert (result.where.forward is not None) is (site == "forward")
    assert result.where.backward is not None


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("kind", [forward_of(Mlp, low), backward_of(Mlp, low, 3.0)], ids=["values", "gradients"])
def test_block_by_block_at_a_precision(kind, precision, live):
    rules = {**QUICK, "precisions": [precision], "blockwise": True}
    result = verify(live(), live(put(kind, "blocks.0.mlp")), **rules)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.stage("function").status == "ok"
    assert verify(live(), live(), **rules).verdict == "same"


# {input: which images those are}
ON: dict[str, When] = {
    "single": lambda x: len(x) == 1 and x.shape[-1] == 16 and 0.6 < float(x.detach().abs().mean()) < 3,
    "low-variance": lambda x: float(x.detach().std()) < 0.1,
    "large": lambda x: float(x.detach().abs().mean()) > 3,
}


@pytest.mark.parametrize("name", ON)
@pytest.mark.parametrize("of", [forward_of, backward_of], ids=["values", "gradients"])
def test_one_kind_of_images_alone(name, of, live):
    result = verify(live(), live(put(of(ViT, ON[name]))), **{**QUICK, "inputs": []})
    assert (result.verdict, result.exit_code) == ("differs", 1)
    bad = {r.name.partition(", ")[2].partition(" to ")[0] for r in result.stage("function").failures}
    assert bad == {name}


@pytest.mark.parametrize("of", [forward_of, backward_of], ids=["values", "gradients"])
def test_images_of_another_size_alone(of):
    timm = pytest.importorskip("timm")

    def network(kind: Any = None) -> Any:
        torch.manual_seed(0)
        made = timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5,
            dynamic_img_size=True,
        )  # fmt: skip
        if kind is not None:
            made.__class__ = kind(type(made), lambda x: x.shape[-1] != 16)
        return made

    rules = {**QUICK, "inputs": ["coloured", "resized"]}
    assert verify(network(), network(), **rules).verdict == "same"
    result = verify(network(), network(of), **rules)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert {"resized" in r.name for r in result.stage("function").failures} == {True}
    assert "and not at another" in result.reason


def test_a_tap_whose_difference_is_taken_back_behind_it(live):
    """The output and every gradient of a parameter agree; a value on the way does not."""

    def change(module: Any) -> None:
        module.norm.register_forward_hook(lambda _m, _a, y: 2 * y)
        module.pool.register_forward_pre_hook(lambda _m, a: (a[0] / 2, *a[1:]))

    result = verify(live(), live(change), **QUICK)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.where.forward == "norm"
    off = {g.key for g in result.stage("function").data["gaps"] if g.rel_rms > 1e-10}
    assert off == {("tap", "norm"), ("tap-grad", "norm")}
