"""What an init function misses: the first report's own, over the releases, and the libraries' own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from vitconv.errors import UsageError
from vitconv.hosts.base.host import Spec
from vitconv.inits import coverage
from vitconv.inits.base.coverage import Covered
from vitconv.registry import HOSTS, load


def init_vit_weights(module: nn.Module) -> None:
    """The first report's function: nn.Linear and the norms of torch, by class."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
        nn.init.zeros_(module.bias)
        nn.init.ones_(module.weight)


def report_init(model: Any) -> None:
    """All that the first report's model does: tokens and positions, then the function on every module."""
    nn.init.trunc_normal_(model.pos_embed, std=0.02)
    nn.init.trunc_normal_(model.cls_token, std=0.02)
    model.apply(init_vit_weights)


def report(release: str, mlp: str = "MLP", triton: bool = False) -> nn.Module:
    key = "layer_norm_style" if int(release.split(".")[2]) < 12 else "residual_norm_style"
    config = {
        "reversible": False, "block_type": "encoder", "num_layers": 2, "dim_model": 32, key: "pre",
        "multi_head_config": {
            "num_heads": 4, "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {"name": mlp, "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }  # fmt: skip
    options = {"config": config, "release": release, "image": 32, "patch": 8, "classes": 5, "triton": triton}
    return load(HOSTS, "xformers-style").build(Spec(options=options)).module


def names(rows: tuple[Covered, ...], *states: str) -> set[str]:
    return {row.name.replace("backbone.encoders.", "") for row in rows if row.state in states}


PATCH = {"patch_embed.proj.weight", "patch_embed.proj.bias"}


@pytest.mark.parametrize("release", ["0.0.1", "0.0.9", "0.0.10", "0.0.11"])
def test_up_to_0_0_11_the_joined_projection_is_never_touched(release: str) -> None:
    rows = coverage(report(release), report_init)
    joined = {f"{i}.mha.in_proj_container.in_proj_{part}" for i in (0, 1) for part in ("weight", "bias")}
    assert names(rows, "left") == PATCH | joined
    assert names(rows, "partly", "scaled", "replaced", "outside") == set()
    # Attention and MLP are registered under two names, so `apply` visits their layers twice.
    assert {n.split(".")[1] for n in names(rows, "twice")} == {"mha", "feedforward"}


@pytest.mark.parametrize("release", ["0.0.12", "0.0.22", "0.0.28.post3"])
def test_from_0_0_12_on_only_the_patch_projection_is_left(release: str) -> None:
    rows = coverage(report(release), report_init)
    assert {row.name for row in rows if row.missed} == PATCH


def test_the_function_alone_leaves_tokens_and_positions_too() -> None:
    rows = coverage(report("0.0.12"), init_vit_weights)
    assert names(rows, "left") == PATCH | {"cls_token", "pos_embed"}


@pytest.mark.parametrize("release", ["0.0.9", "0.0.12"])
def test_the_hidden_bias_of_fused_mlp_is_outside_the_parameters(release: str) -> None:
    rows = coverage(report(release, "FusedMLP", triton=True), report_init)
    outside = [row for row in rows if row.state == "outside"]
    assert len(outside) == 4
    assert {row.module for row in outside} == {"FusedDropoutBias"}
    assert all(".mlp." in row.name and row.name.endswith(".bias") for row in outside)


def test_fused_layer_norms_are_no_layer_norms() -> None:
    rows = coverage(report("0.0.9", triton=True), report_init)
    assert {n for n in names(rows, "left") if ".norm." in n} == {
        f"{i}.wrap_{w}.layer.norm.{p}" for i in (0, 1) for w in ("att", "ff") for p in ("weight", "bias")
    }


def test_the_real_factory_agrees_with_its_twin() -> None:
    host = load(HOSTS, "xformers")
    if host.why_not() is not None:
        pytest.skip(host.why_not())
    config = {
        "reversible": False, "block_type": "encoder", "num_layers": 2, "dim_model": 32, "residual_norm_style": "pre",
        "multi_head_config": {
            "num_heads": 4, "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }  # fmt: skip
    model = host.build(Spec(options={"config": config, "image": 32, "patch": 8, "classes": 5})).module
    assert {row.name for row in coverage(model, report_init) if row.missed} == PATCH


def timm_model(**args: Any) -> Any:
    models = pytest.importorskip("timm.models.vision_transformer")
    small = {"img_size": 32, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 1, "num_heads": 4}
    return models.VisionTransformer(**{**small, **args})


NORMS = {f"{n}.{p}" for n in ("blocks.0.norm1", "blocks.0.norm2", "norm") for p in ("weight", "bias")}
GAMMAS = {"blocks.0.ls1.gamma", "blocks.0.ls2.gamma"}
TIMM = {
    "constructor, ''": (partial(timm_model), "", False, NORMS | PATCH),
    "constructor, moco": (partial(timm_model), "moco", False, NORMS | PATCH),
    "constructor, jax": (partial(timm_model), "jax", False, NORMS),
    "constructor, layer scale": (partial(timm_model, init_values=1e-5), "", False, NORMS | PATCH | GAMMAS),
    "reset, ''": (partial(timm_model, init_values=1e-5), "", True, set()),
    "reset, jax": (partial(timm_model), "jax", True, set()),
}  # fmt: skip


@pytest.mark.parametrize(("build", "mode", "reset", "missed"), TIMM.values(), ids=TIMM)
def test_what_timms_own_modes_leave_to_the_constructors(
    build: Callable[[], Any], mode: str, reset: bool, missed: set[str]
) -> None:
    rows = coverage(build(), lambda m: m.init_weights(mode, needs_reset=reset))
    assert names(rows, "left") == missed


def test_multihead_attention_hides_its_projection_from_a_walk_over_linear_layers() -> None:
    rows = coverage(nn.MultiheadAttention(16, 2), lambda m: m.apply(init_vit_weights))
    assert names(rows, "left") == {"in_proj_weight", "in_proj_bias"}


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Parameter(torch.ones(4, 4)) for _ in range(5))
        self.table = [torch.zeros(3), "text"]


def odd_init(m: Any) -> None:
    nn.init.normal_(m.a)
    nn.init.normal_(m.b[:2])
    m.c.data.mul_(0.5)
    nn.init.normal_(m.d)
    nn.init.zeros_(m.d)
    m.e = nn.Parameter(torch.zeros(4, 4))


def test_every_state() -> None:
    model = Odd()
    held = model.e
    rows = {row.name: row for row in coverage(model, odd_init)}
    assert {n: r.state for n, r in rows.items()} == {
        "a": "set", "b": "partly", "c": "scaled", "d": "twice", "e": "replaced", "table[0]": "outside"
    }  # fmt: skip
    assert (rows["b"].share, rows["d"].times, rows["c"].before) == (0.5, 2, "1 everywhere")
    assert model.e is held
    assert float(held.detach().min()) == 1.0


def test_a_helper_that_is_called_on_a_copy_does_nothing() -> None:
    # The call that looks right: nn.init on a tensor that is not the parameter.
    rows = coverage(nn.Linear(8, 8), lambda m: nn.init.normal_(m.weight.detach().clone()))
    assert names(rows, "left") == {"weight", "bias"}


def test_module_and_generator_are_as_before() -> None:
    model = timm_model()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    coverage(model, lambda m: m.init_weights("jax"))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert not any(t.isnan().any() for t in model.parameters())


def test_nothing_to_set_is_an_error() -> None:
    with pytest.raises(UsageError, match="no parameters"):
        coverage(nn.ReLU(), init_vit_weights)
