"""Checks that step: the loss scale, one batch by heart, two networks side by side, the probe; and what is random."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.checks.base.data import Data
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.scaler import judge
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import Moments, Run, train
from vitconv.checks.base.variants import Tried, named, parse, smaller
from vitconv.errors import UsageError
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
    assert [f.figures["steps"] for f in found.findings] == [5, 5]
    assert "moments carried from timm to canonical" in found.findings[1].text


def drop(moments: Moments) -> Moments:
    return Moments(0, {k: x * 0 for k, x in moments.first.items()}, {k: x * 0 for k, x in moments.second.items()})


def swap(moments: Moments) -> Moments:
    def one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k.replace(".q.", "<").replace(".k.", ".q.").replace("<", ".k."): x for k, x in tensors.items()}

    return Moments(moments.t, one(moments.first), one(moments.second))


@pytest.mark.parametrize("fault", [drop, swap], ids=["moments-dropped", "q-and-k-swapped"])
def test_moments_that_were_carried_wrongly_part_them(fault: Any, check: Any, monkeypatch: Any) -> None:
    sizes = ("img_size=16", "patch_size=4", "embed_dim=48", "depth=2", "num_heads=3", "num_classes=10")
    a = context_of("timm:vit_tiny_patch16_224", Wanted(sets=sizes, scheme="timm-moco"))
    b = context_of("vit_tiny", Wanted(("image=16", "patch=4", "dim=48", "depth=2", "heads=3", "classes=10")))
    carried = Moments.carried
    monkeypatch.setattr(Moments, "carried", lambda *words: fault(carried(*words)))
    found = check("step-parity", dataclasses.replace(a, other=b))
    assert [f.level for f in found.findings] == ["ok", "error"]


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


def test_mixup_and_cutmix_are_applied_and_the_plain_loss_is_judged(network: Any) -> None:
    pytest.importorskip("timm")
    import numpy as np

    context = network("depth=2", data=_pictures(32))
    before = np.random.get_state()[1][:4].tolist()
    runs = {}
    for mixed in (0.0, 0.8):
        plan = Plan(steps=10, batch=8, mixup=mixed, cutmix=mixed, smoothing=0.1)
        runs[mixed] = train(context.fresh(), context.data, plan, context.bridge)
    assert np.random.get_state()[1][:4].tolist() == before
    assert runs[0.0].losses != runs[0.8].losses
    assert (len(runs[0.0].plain), len(runs[0.8].plain)) == (0, 2)
    again = train(context.fresh(), context.data, Plan(steps=10, batch=8, mixup=0.8, cutmix=0.8, smoothing=0.1))
    assert again.losses[:1] == runs[0.8].losses[:1]


def test_mixed_images_have_labels_that_add_up_to_one() -> None:
    pytest.importorskip("timm")
    from vitconv.checks.base.mixing import mixing

    made = mixing(Plan(batch=4, mixup=0.8, cutmix=1.0, smoothing=0.1), 10)
    assert made is not None
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    mixed, labels = made.mix(images.clone(), torch.arange(4))
    assert labels.shape == (4, 10)
    assert torch.allclose(labels.sum(1), torch.ones(4))
    assert not torch.equal(mixed, images)
    assert float(labels.min()) == pytest.approx(0.01, abs=1e-3)
    assert mixing(Plan(), 10) is None
    with pytest.raises(UsageError, match="even batch"):
        mixing(Plan(batch=3, mixup=0.8), 10)


def _pictures(count: int) -> Data:
    g = torch.Generator().manual_seed(0)
    return Data(torch.randn(count, 1, 16, 16, generator=g), torch.randint(10, (count,), generator=g), "noise", True)


@pytest.mark.parametrize(
    ("texts", "count"),
    [((), 0), (("norm=pre,post",), 2), (("norm=pre,post", "eps=1e-6,1e-5", "init=timm"), 4)],
    ids=["none", "one-axis", "three-axes"],
)
def test_variants_are_all_combinations(texts: tuple[str, ...], count: int) -> None:
    assert len(parse(texts)) == count
    assert len({named(axes) for axes in parse(texts)}) == count


@pytest.mark.parametrize(("text", "says"), [("nrom=pre", "norm"), ("norm=", "VALUE"), ("norm", "VALUE")])
def test_variants_that_are_none(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse((text,))


@pytest.mark.parametrize(
    ("axes", "facts", "plan"),
    [
        ({"norm": "post"}, {"norm_placement": "post", "norm_eps": 1e-6}, {}),
        ({"eps": "1e-5"}, {"norm_eps": 1e-5, "kv_normalised": True}, {}),
        ({"kv_normalised": "false"}, {"kv_normalised": False}, {}),
        ({"release": "0.0.9"}, {"kv_normalised": False, "norm_eps": 1e-5, "release": "0.0.9"}, {}),
        ({"release": "0.0.28", "norm": "deepnorm"}, {"norm_placement": "deepnorm"}, {}),
        ({"precision": "amp-fp16", "lr": "1e-4"}, {}, {"precision": "amp-fp16", "lr": 1e-4}),
        ({"warmup": "7"}, {}, {"precision": "fp32", "warmup": 7}),
    ],
    ids=["norm", "eps", "kv", "release", "release-norm", "plan", "warmup"],
)  # fmt: skip
def test_a_variant_is_what_it_says(
    axes: dict[str, str], facts: dict[str, Any], plan: dict[str, Any], network: Any
) -> None:
    made = smaller(network(), 48, 2, axes)
    assert {k: made.facts.known()[k] for k in facts} == facts
    assert {k: getattr(made.plan, k) for k in plan} == plan
    assert made.arch.depth == 2


def test_a_variant_takes_the_users_pictures_at_their_own_size_and_classes(network: Any) -> None:
    g = torch.Generator().manual_seed(0)
    data = Data(torch.randn(40, 3, 40, 40, generator=g), torch.arange(40) % 17, "theirs", True)
    made = smaller(network("channels=3", "classes=17", data=data), 48, 2, {"norm": "pre"})
    assert made.data.origin == "theirs"
    assert made.network.inputs.shape == (3, 32, 32)
    assert made.arch.shapes["head.weight"] == (17, 48)


class Grid:
    """Verdicts of the trainings of a grid, in order, in place of the trainings."""

    def __init__(self, verdicts: list[tuple[str, str]]) -> None:
        self.verdicts = iter(verdicts)

    def __call__(self, context: Any, axes: Any) -> Tried:
        losses = {"trains": [2.3, 1.0], "stuck": [2.3, 2.3], "diverges": [2.3, float("nan")]}
        first, second = next(self.verdicts)
        return Tried(axes, Run(tuple(losses[first]), (), 2.3026), Run(tuple(losses[second]), (), 2.3026))


@pytest.mark.parametrize(
    ("verdicts", "words", "level"),
    [
        ([("trains", "trains"), ("trains", "stuck")], ["trains", "needs warm-up"], "ok"),
        ([("stuck", "stuck"), ("diverges", "diverges")], ["stuck", "diverges"], "error"),
    ],
    ids=["some-train", "none-trains"],
)
def test_the_verdict_of_a_grid(
    verdicts: Any, words: list[str], level: str, network: Any, check: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("vitconv.checks.training_probe.trial", Grid(verdicts))
    context = dataclasses.replace(network(), vary=parse(("norm=pre,post",)))
    found = check("training-probe", context)
    assert found.findings[0].level == level
    assert [f.figures["verdict"] for f in found.findings[1:]] == words
    assert set(found.findings[0].curves) == {"norm=pre", "norm=post"}


def test_a_variant_that_cannot_be_built_is_said(network: Any, check: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("vitconv.checks.training_probe.trial", Grid([("trains", "trains")]))
    context = dataclasses.replace(network(), vary=parse(("norm=pre,deepnorm", "init=deepnorm")))
    found = check("training-probe", context)
    assert [f.figures.get("verdict") for f in found.findings[1:]] == ["trains", "refused"]
    assert "alpha" in found.findings[2].text


@pytest.mark.slow
def test_a_grid_trains_what_it_says(network: Any, check: Any) -> None:
    vary = parse(("norm=pre,post", "depth=24", "init=timm-moco"))
    context = dataclasses.replace(network(plan=Plan(steps=150, warmup=1, batch=32)), vary=vary)
    found = check("training-probe", context)
    assert [f.figures["verdict"] for f in found.findings[1:]] == ["trains", "stuck"]
    assert found.level == "info"
