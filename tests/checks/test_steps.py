"""Checks that step: the loss scale, one batch by heart, two networks side by side, the probe; and what is random."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.scaler import judge
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import Run
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (["clean"] * 100, "healthy"),
        (["overflow"] * 4 + ["clean"] * 100, "settling"),
        (["clean"] * 60 + ["overflow"] + ["clean"] * 60, "isolated"),
        (["clean"] * 30 + ["overflow"] * 5, "collapse"),
        (["overflow"] * 18, "collapse"),
        (["clean"] * 30 + ["forward"], "forward"),
    ],
    ids=["healthy", "settling", "one-in-100", "five-in-a-row", "scale-below-1", "forward-nan"],
)
def test_the_course_of_a_scale(steps: Any, verdict: str) -> None:
    assert judge(steps).verdict == verdict


def test_the_steady_state_of_the_scaler_skips_one_in_2000() -> None:
    from vitconv.checks.base.scaler import Scaler

    scaler, skips = Scaler(), 0
    for _ in range(20000):
        overflow = scaler.scale > 65536
        skips += overflow
        scaler.update(overflow)
    assert skips == pytest.approx(10, abs=1)


def test_a_healthy_network_keeps_its_scale(network: Any, check: Any) -> None:
    assert check("loss-scale", network("depth=2")).level == "ok"


def test_a_forward_pass_that_is_not_finite_is_told_from_a_scale(network: Any, check: Any) -> None:
    context = network("depth=2")
    with torch.no_grad():
        context.network.module.blocks[1].mlp.up.weight.mul_(1e7)
    found = check("loss-scale", context, steps=4)
    assert found.level == "error"
    assert found.findings[0].figures["verdict"] == "forward"


def test_one_batch_is_learnt(network: Any, check: Any) -> None:
    assert check("overfit", network("depth=2"), steps=160).level == "ok"


def test_one_batch_is_not_learnt_when_images_do_not_arrive(network: Any, check: Any) -> None:
    context = network("depth=2")
    with torch.no_grad():
        context.network.module.embed.patch.weight.zero_()
    context = dataclasses.replace(context, data=dataclasses.replace(context.data, images=context.data.images * 0))
    assert check("overfit", context, steps=40).level == "error"


def beside(context: Any, eps: float | None = None, scale: float = 1.0) -> Any:
    module = copy.deepcopy(context.network.module)
    if scale != 1.0:
        for block in module.blocks:
            block.attn.scale *= scale
    other = load(HOSTS, "reference").describe(module, Spec(facts=context.facts))
    return dataclasses.replace(context, other=dataclasses.replace(context, built=other))


def test_a_network_beside_its_copy_stays_the_same(network: Any, check: Any) -> None:
    found = check("step-parity", beside(network("depth=2")))
    assert found.level == "ok"
    assert found.findings[0].figures["largest"] == 0.0


def test_a_network_beside_timms_stays_the_same(check: Any) -> None:
    sizes = ("img_size=16", "patch_size=4", "embed_dim=48", "depth=2", "num_heads=3", "num_classes=10")
    a = context_of("timm:vit_tiny_patch16_224", Wanted(sets=sizes))
    ours = ("image=16", "patch=4", "dim=48", "depth=2", "heads=3", "classes=10")
    b = context_of("vit_tiny", Wanted(sets=ours))
    found = check("step-parity", dataclasses.replace(a, other=b))
    assert found.level == "ok", found.findings


def test_a_wrong_attention_scale_parts_them(network: Any, check: Any) -> None:
    found = check("step-parity", beside(network("depth=2", scheme="timm-moco"), scale=8.0))
    assert found.level == "error"
    assert found.findings[0].figures["step"] == 1


class Mixer(nn.Module):
    """A head over pixels; `leak` subtracts the batch's mean; `rate` of a dropout that `dead` never calls."""

    def __init__(self, leak: bool = False, rate: float = 0.0, dead: bool = False) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)
        self.drop, self.leak, self.dead = nn.Dropout(rate), leak, dead

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images).mean((2, 3))
        x = x - x.mean(0) if self.leak else x
        return self.head(x if self.dead else self.drop(x))


IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("leak", "level"), [(False, "ok"), (True, "error")])
def test_examples_that_see_each_other(leak: bool, level: str, check: Any) -> None:
    assert check("example-leakage", context_of(Mixer(leak), images=IMAGES)).level == level


@pytest.mark.parametrize(("dead", "level"), [(False, "ok"), (True, "error")])
def test_a_dropout_that_is_never_called(dead: bool, level: str, check: Any) -> None:
    assert check("dropout-alive", context_of(Mixer(rate=0.5, dead=dead), images=IMAGES)).level == level


def test_registers_and_positions_are_no_vectors(network: Any, check: Any) -> None:
    found = check("decay-groups", network("registers=2"))
    assert "embed.reg" in found.findings[1].where
    assert found.findings[0].figures["decayed"] == 6 * 4 + 2


@pytest.mark.parametrize(("warmup", "level"), [(40, "ok"), (1, "warn")])
def test_a_first_step_without_warm_up(warmup: int, level: str, network: Any, check: Any) -> None:
    assert check("first-step", network(plan=Plan(lr=1e-3, warmup=warmup))).level == level


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([2.3] * 100, "stuck"),
        ([2.3 - 0.015 * i for i in range(100)], "trains"),
        ([2.3 - 0.02 * i for i in range(50)] + [2.31] * 50, "collapses"),
        ([2.3] * 10 + [float("nan")], "diverges"),
        ([2.3] * 50 + [9.0] * 50, "diverges"),
    ],
    ids=["stuck", "trains", "collapses", "nan", "explodes"],
)
def test_how_a_training_went(losses: list[float], verdict: str) -> None:
    assert Run(tuple(losses), (), 2.3026).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "level"), [("pre", "ok"), ("post", "error")])
def test_the_probe_tells_a_dead_network_from_a_live_one(norm: str, level: str, network: Any, check: Any) -> None:
    sets = ("depth=24",) if norm == "pre" else ("depth=24", "norm=post")
    context = network(*sets, scheme="timm-moco", plan=Plan(steps=150, warmup=1, batch=32))
    assert check("training-probe", context).level == level
