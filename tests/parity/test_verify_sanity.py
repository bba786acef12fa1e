"""The test of the test: randomness, dead networks and parameters without influence are found and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconv.parity.verify import verify
from vitconv.vit.embed import Embed
from vitconv.vit.mlp import Mlp
from vitconv.vit.model import ViT
from vitconv.vit.norm import Norm

QUICK: dict[str, Any] = {"precisions": ["fp64"], "skip": ["why", "where"], "inputs": ["coloured"]}


class DropsInEval(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.1, training=True))


class MasksInEval(Embed):
    def forward(self, images: Tensor, masked: Tensor | None = None) -> Tensor:
        x = super().forward(images, masked)
        return x * (torch.rand(x.shape[:2]) > 0.5).unsqueeze(-1)


class HalfThePaths(Mlp):
    """DropPath with its training flag hard-coded."""

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.empty(len(x), 1, 1, dtype=x.dtype).bernoulli_(0.5)
        return super().forward(x) * keep / 0.5


RANDOM = {
    "dropout": (DropsInEval, "blocks.1.mlp", "blocks.1.mlp", "bernoulli"),
    "mask": (MasksInEval, "embed", "embed", "rand"),
    "drop path": (HalfThePaths, "blocks.0.mlp", "blocks.0.mlp", "bernoulli"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_in_eval_are_found_and_named(name, live):
    kind, path, site, operator = RANDOM[name]

    def change(module: Any) -> None:
        module.get_submodule(path).__class__ = kind

    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    row = next(r for r in result.stage("sanity").rows if r.name == "B: repeats")
    assert row.status == "fail"
    assert row.values["site"] == site
    assert any(where.startswith(path) and operator in op for where, op in row.values["random"].items()), row.detail
    # Of a baseline that does not repeat nothing can be said.
    result = verify(live(change), live(), **{**QUICK, "skip": ["why", "where", "function"]})
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert result.reason.startswith("A: repeats")


def test_a_forward_that_holds_the_instance_it_was_made_on_runs_in_the_copy(live):
    def change(module: Any) -> None:
        blocks, inner = module.blocks, module.forward
        module.forward = lambda images: inner(images) + 0 * blocks[0].norm1.weight.sum()

    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "same", result.reason


def test_a_class_that_holds_an_instance_is_told_why_nothing_moves(live):
    def change(module: Any) -> None:
        inner = module.forward
        module.__class__ = type("Held", (type(module),), {"forward": lambda self, images: inner(images)})

    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "undecided"
    assert result.reason.startswith("B: runs its own parts: a copy of it runs embed")
    assert "holds that instance where it should take self" in result.reason


def test_a_quiet_dropout_is_no_randomness(live):
    result = verify(live(), live(), **QUICK)
    assert [r.status for r in result.stage("sanity").rows if "repeats" in r.name] == ["ok", "ok"]


class Dead(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * x + self.weight + self.bias


class DeadGradients(ViT):
    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            y = super().forward(images, *args, **kwargs)
        return y + 0 * images.sum() + 0 * sum(p.sum() for p in self.parameters())


@pytest.mark.parametrize(("kind", "path"), [(Dead, "norm"), (DeadGradients, "")], ids=["constant", "no gradients"])
def test_two_dead_networks_do_not_agree(kind, path, live):
    def change(module: Any) -> None:
        (module.get_submodule(path) if path else module).__class__ = kind

    result = verify(live(change), live(change), **QUICK)
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert "vacuous" in result.reason


def test_dead_weights_of_a_living_network_are_undecided(live, weights):
    zero = {n: torch.zeros_like(t) for n, t in weights.items()}
    result = verify(live(given=zero), live(given=zero), **QUICK)
    assert result.verdict == "undecided"
    assert [r.status for r in result.stage("sanity").rows if r.name == "A: probe weights, alive"] == ["ok"]
    assert "given weights" in result.reason


def test_parameters_that_no_run_exercises_are_listed(live, weights):
    masked = {**weights, "embed.mask": torch.randn(32, dtype=torch.float64)}
    result = verify(live(given=masked), live(given=masked), **QUICK)
    assert result.verdict == "same"
    row = next(r for r in result.stage("sanity").rows if r.name == "A: parameters exercised")
    assert "embed.mask: it acts only on masked patches" in row.detail
    assert "attn.k.bias: it cancels in the softmax" in row.detail
    assert row.values == {"exercised": 39, "of": 42}


class CutOff(Embed):
    def forward(self, images: Tensor, masked: Tensor | None = None) -> Tensor:
        self._parameters["cls"], kept = nn.Parameter(self.cls.detach(), requires_grad=False), self.cls
        try:
            return super().forward(images, masked)
        finally:
            self._parameters["cls"] = kept


def test_a_parameter_that_acts_and_gets_no_gradient_is_named(live):
    def change(module: Any) -> None:
        module.embed.__class__ = CutOff

    result = verify(live(change), live(change), **QUICK)
    row = next(r for r in result.stage("sanity").rows if r.name == "A: parameters exercised")
    assert row.status == "warn"
    assert row.detail == "the output feels embed.cls, and they get no gradient: they are cut off backward"
    assert verify(live(), live(change), **QUICK).verdict == "differs"


@pytest.mark.parametrize("left_out", ["accounting", "sanity", "function"])
def test_what_was_left_out_is_never_the_same(left_out, live):
    result = verify(live(), live(), **{**QUICK, "skip": ["why", left_out]})
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert left_out in result.reason
    assert result.stage(left_out).why_skipped == "asked to"


def test_other_precisions_may_be_left_out_and_it_is_said(live):
    result = verify(live(), live(), **QUICK)
    assert result.verdict == "same"
    assert "no other precision was looked at" in result.reason


def test_inputs_and_values_that_were_left_out_are_said(live):
    notes = verify(live(), live(), **QUICK).stage("function").notes
    assert any("not run" in n and "single, low-variance, large" in n for n in notes)
    notes = verify(live(), live(), blockwise=True, **QUICK).stage("function").notes
    assert any("the values inside blocks" in n for n in notes)
    whole = verify(live(), live(), **{**QUICK, "inputs": []}).stage("function").notes
    assert not [n for n in whole if "not run" in n or "not compared" in n]


def test_what_only_training_does_is_said(network):
    spec, options = network("timm")
    dropping = {**options, "drop_path_rate": 0.1, "proj_drop_rate": 0.2}
    rows = verify(spec, spec, set_a=options, set_b=dropping, **QUICK).stage("accounting").rows
    told = {r.name: (r.status, r.detail) for r in rows if "while training" in r.name}
    assert told["drop-path while training"][0] == "warn"
    assert told["drop-path while training"][1].startswith("none in A, 2 sites at 0.1 in B: they train differently")
    assert "sites at 0.2 in B" in told["dropout while training"][1]
    same = verify(spec, spec, set_a=dropping, set_b=dropping, **QUICK).stage("accounting").rows
    assert {r.status for r in same if "while training" in r.name} == {"info"}


class OneTokenMore(Embed):
    def forward(self, images: Tensor, masked: Tensor | None = None) -> Tensor:
        x = super().forward(images, masked)
        return torch.cat([x, x[:, -1:]], 1)


def test_values_of_another_shape_are_a_difference_and_located(live):
    def change(module: Any) -> None:
        module.embed.__class__ = OneTokenMore

    result = verify(live(), live(change), **{**QUICK, "skip": ["why"]})
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert "first tap embed (shapes [2, 17, 32] and [2, 18, 32])" in result.reason
    assert result.where.forward == "embed"


def test_facts_of_one_side_only_are_said_and_are_no_difference(live, write):
    result = verify(write("a", mean=(0.5, 0.5, 0.5), release="0.0.22"), live(), **QUICK)
    row = next(r for r in result.stage("accounting").rows if r.name == "facts known of A only")
    assert "mean ((0.5, 0.5, 0.5))" in row.detail and "release" not in row.detail
    assert row.status == "info"
