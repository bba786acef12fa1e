"""All hosts on equal weights: the same taps, outputs and gradients, and true facts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.hosts.base.host import Built, Spec
from vitconv.hosts.base.tap import recording
from vitconv.layout.semantics import Semantics
from vitconv.registry import HOSTS, load, names

WIDTH, DEPTH, HEADS, CLASSES, GRID, PATCH = 32, 3, 4, 5, 3, 4
TOLERANCE = 1e-12
FACTS = Semantics(
    heads=HEADS,
    norm_placement="pre",
    norm_eps=1e-6,
    final_norm_eps=1e-6,
    activation="gelu",
    attention="softmax",
    kv_normalised=True,
    pooling="token",
)
STACK: dict[str, Any] = {
    "block_type": "encoder",
    "dim_model": WIDTH,
    "num_layers": DEPTH,
    "residual_norm_style": "pre",
    "multi_head_config": {
        "num_heads": HEADS,
        "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "reference": {},
    "timm": {
        "img_size": GRID * PATCH,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "num_classes": CLASSES,
    },
    "torchvision": {
        "image_size": GRID * PATCH,
        "patch_size": PATCH,
        "num_layers": DEPTH,
        "num_heads": HEADS,
        "hidden_dim": WIDTH,
        "mlp_dim": 4 * WIDTH,
        "num_classes": CLASSES,
    },
    "transformers": {
        "image_size": GRID * PATCH,
        "patch_size": PATCH,
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "num_labels": CLASSES,
        "layer_norm_eps": 1e-6,
    },
    "xformers": {"config": [STACK], "image": GRID * PATCH, "patch": PATCH, "classes": CLASSES},
    "xformers-style": {
        "config": STACK,
        "release": "0.0.28.post3",
        "image": GRID * PATCH,
        "patch": PATCH,
        "classes": CLASSES,
    },
}
MODELS = {"timm": "vit_small_patch16_224", "torchvision": "VisionTransformer", "transformers": "vit"}
NETWORKS = [name for name in OPTIONS if name != "reference"]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def build(name: str, weights, carry, **more: Any) -> Built:
    host = load(HOSTS, name)
    if (reason := host.why_not()) is not None:
        pytest.skip(reason)
    options = {**copy.deepcopy(OPTIONS[name]), **more}
    shapes = {k: tuple(v.shape) for k, v in weights.items()} if name == "reference" else None
    built = host.build(Spec(MODELS.get(name, ""), options, FACTS, shapes))
    built.module.double()
    state = weights if name == "reference" else carry(weights, "xformers" if "xformers" in name else name)
    built.module.load_state_dict(state, strict=True)
    if "xformers" in name and not more:
        # The library's stack is at 1e-5; here the question is whether everything else agrees.
        for module_name, module in built.module.named_modules():
            if module_name.endswith("layer.norm"):
                module.eps = 1e-6
        built = host.describe(built.module, Spec())
    return built


def images() -> torch.Tensor:
    side = GRID * PATCH
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def trace(built: Built) -> dict[str, torch.Tensor]:
    """Taps and output, and the gradients of every tap and of the input."""
    x = images().requires_grad_()
    with recording(built.taps, gradients=True) as record:
        y = built(x)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    gradients = {f"grad.{name}": g for name, g in record.gradients().items()}
    return {**record.values(), "output": y, **gradients, "grad.input": x.grad}


def worst(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> tuple[float, str]:
    assert a.keys() == b.keys()
    return max((((a[k] - b[k]).abs().max() / b[k].abs().max()).item(), k) for k in a)


def test_the_registry_lists_the_hosts():
    assert set(OPTIONS) | {"python"} <= set(names(HOSTS))


@pytest.mark.parametrize("name", NETWORKS)
def test_all_taps_agree_with_the_reference(name, canonical, carry):
    reference = trace(build("reference", canonical, carry))
    blocks = [f"blocks.{i}{part}" for i in range(DEPTH) for part in (".attn", ".mlp", "")]
    taps = ["embed", *blocks, "norm", "pool", "head"]
    assert list(reference) == [*taps, "output", *(f"grad.{tap}" for tap in taps), "grad.input"]
    error, where = worst(trace(build(name, canonical, carry)), reference)
    assert error < TOLERANCE, where


@pytest.mark.parametrize("name", NETWORKS)
def test_facts_agree_with_the_reference(name, canonical, carry):
    built, reference = build(name, canonical, carry), build("reference", canonical, carry)
    facts = built.facts
    assert facts.differences(reference.facts) == {}
    assert not set(FACTS.known()) - set(facts.known())
    assert facts.grid == (GRID, GRID)
    assert built.inputs.shape == (3, GRID * PATCH, GRID * PATCH)
    assert not built.survey.training
    assert not built.survey.mixed
    assert [n.eps for n in built.survey.norms] == [1e-6] * (2 * DEPTH + 1)
    assert len({n.place for n in built.survey.norms}) == 2 * DEPTH + 1
    assert not any(site.active for site in built.survey.random)
    assert built.dialects


@pytest.mark.parametrize("name", NETWORKS)
def test_a_changed_norm_is_read_off_the_live_module_and_seen(name, canonical, carry):
    host, built = load(HOSTS, name), build(name, canonical, carry)
    site = next(s for s in built.survey.norms if s.place == "blocks.1.norm2")
    built.module.get_submodule(site.name).eps = 1e-5
    again = host.describe(built.module, Spec())
    assert again.facts.norm_eps is None
    assert {s.place for s in again.survey.norms if s.eps == 1e-5} == {"blocks.1.norm2"}
    new, reference = trace(again), trace(build("reference", canonical, carry))
    errors = {k: ((new[k] - reference[k]).abs().max() / reference[k].abs().max()).item() for k in reference}
    assert next(k for k, e in errors.items() if e > TOLERANCE) == "blocks.1.mlp"


@pytest.mark.parametrize("name", NETWORKS)
def test_train_mode_and_random_sites_are_told(name, canonical, carry):
    more = {
        "timm": {"proj_drop_rate": 0.1, "drop_path_rate": 0.2},
        "torchvision": {"dropout": 0.1, "attention_dropout": 0.2},
        "transformers": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
    }.get(name)
    if more is None:
        config = copy.deepcopy(STACK)
        config["multi_head_config"]["residual_dropout"] = 0.1
        config["feedforward_config"]["dropout"] = 0.2
        more = {"config": config if name == "xformers-style" else [config]}
    host, built = load(HOSTS, name), build(name, canonical, carry, **more)
    assert {0.1, 0.2} <= {round(s.rate, 3) for s in built.survey.random}
    assert not any(s.active for s in built.survey.random)
    built.module.train()
    again = host.describe(built.module, Spec())
    assert again.survey.training
    assert all(s.active == (s.rate > 0) for s in again.survey.random)
    if name == "timm":
        assert {s.kind for s in again.survey.random} == {"dropout", "drop-path"}
    list(built.module.modules())[-1].eval()
    assert host.describe(built.module, Spec()).survey.mixed


@pytest.mark.parametrize(("name", "eps"), [("xformers", 1e-5), ("xformers-style", 1e-5)])
def test_the_reports_network_has_two_eps(name, eps, canonical, carry):
    built = build(name, canonical, carry, wrap="report")
    assert (built.facts.norm_eps, built.facts.final_norm_eps) == (eps, 1e-6)
    error, _ = worst(trace(built), trace(build("reference", canonical, carry)))
    assert error > 1e-8


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"release": "0.0.9"}, {"kv_normalised": False, "norm_eps": 1e-5, "release": "0.0.9"}),
        ({"release": "0.0.10", "triton": True}, {"kv_normalised": True, "norm_eps": 1e-6}),
        ({"release": "0.0.10", "style": "deepnorm"}, {"norm_placement": "deepnorm", "residual_alpha": 6**0.25}),
        ({"release": "0.0.9", "style": "post"}, {"norm_placement": "post", "kv_normalised": True}),
        (
            {"release": "0.0.10", "triton": "true", "cuda": "true", "mlp": "FusedMLP", "width": 160},
            {"activation": "gelu_tanh"},
        ),
        ({"release": "0.0.10", "triton": True, "mlp": "FusedMLP", "width": 160}, {"activation": "gelu"}),
    ],
    ids=["K/V bug", "Triton norm", "deepnorm", "post", "fused kernel", "fused fallback"],
)
def test_facts_of_the_twin_by_release(options, facts):
    config = copy.deepcopy(STACK)
    style = config.pop("residual_norm_style")
    config["layer_norm_style"] = options.pop("style", style)
    config["feedforward_config"]["name"] = options.pop("mlp", "MLP")
    config["dim_model"] = options.pop("width", WIDTH)
    built = load(HOSTS, "xformers-style").build(Spec(options={"config": config, "wrap": "none", **options}))
    known = built.facts.known()
    assert {k: known.get(k) for k in facts} == pytest.approx(facts)
    assert built.dialects == ("xformers-fused",)
    y = built(torch.randn(2, *built.inputs.shape))
    assert y.shape == (2, *built.inputs.shape)


def test_the_twin_needs_a_release_and_reads_files(tmp_path):
    host = load(HOSTS, "xformers-style")
    file = tmp_path / "stack.json"
    file.write_text(json.dumps([STACK]))
    assert len(host.build(Spec(str(file), {"release": "0.0.28"})).module.backbone.encoders) == DEPTH
    with pytest.raises(UsageError, match="release=0"):
        host.build(Spec(str(file)))
    with pytest.raises(UsageError, match=r"no such configuration file.*or a folder with xformers\.json"):
        host.build(Spec("nowhere.yaml", {"release": "0.0.28"}))
    with pytest.raises(UsageError, match="does not know the option hugo; it knows: channels, classes"):
        host.build(Spec(str(file), {"release": "0.0.28", "hugo": 1}))


def test_a_final_norm_inside_the_stack_is_apart_from_the_stream(canonical, carry):
    config = [copy.deepcopy(STACK), copy.deepcopy(STACK)]
    config[0]["num_layers"], config[1]["num_layers"] = 2, 1
    built = load(HOSTS, "xformers-style").build(Spec(options={"config": config, "release": "0.0.28", "wrap": "none"}))
    for p in built.module.parameters():
        torch.nn.init.normal_(p)
    with recording(built.taps) as record:
        y = built(torch.randn(2, *built.inputs.shape))
    norm = built.module.encoders[2].wrap_ff.norm
    taps = record.values()
    assert torch.equal(taps["norm"], y)
    assert torch.equal(norm(taps["blocks.2"]), y)
    assert built.facts.final_norm_eps == 1e-5


def test_a_tap_can_be_changed_and_leaves_nothing_behind(canonical, carry):
    built = build("timm", canonical, carry)
    before = built(images())
    with recording(built.taps, change=lambda name, x: x + 1 if name == "blocks.1" else None):
        changed = built(images())
    assert not torch.equal(before, changed)
    assert torch.equal(before, built(images()))
    with recording(built.taps, change=lambda name, x: x + 1 if name == "embed" else None) as record:
        built(images())
    plain = build("reference", canonical, carry)
    with recording(plain.taps, change=lambda name, x: x + 1 if name == "embed" else None) as other:
        plain(images())
    assert torch.allclose(record.values()["head"], other.values()["head"], rtol=1e-12, atol=1e-12)
    torchvision = build("torchvision", canonical, carry)
    with (
        pytest.raises(Refused, match=r"blocks\.0\.attn stands in a tuple"),
        recording(torchvision.taps, change=lambda name, x: x + 1 if name == "blocks.0.attn" else None),
    ):
        torchvision(images())
    assert torch.isfinite(torchvision(images())).all()


def test_missing_libraries_and_wrong_networks_are_refused(monkeypatch):
    with pytest.raises(Refused, match="known are its VisionTransformer, Eva, Beit, NaFlexVit, Swin and PVTv2 families"):
        load(HOSTS, "timm").build(Spec("resnet18"))
    with pytest.raises(UsageError, match="timm has no model 'vit_hugo'; close names"):
        load(HOSTS, "timm").build(Spec("vit_hugo"))
    with pytest.raises(UsageError, match="does not take these arguments"):
        load(HOSTS, "timm").build(Spec("vit_tiny_patch16_224", {"hugo": 1}))
    with pytest.raises(UsageError, match="torchvision cannot build 'vit_hugo'"):
        load(HOSTS, "torchvision").build(Spec("vit_hugo"))
    with pytest.raises(UsageError, match="neither a configuration file or folder nor a model type"):
        load(HOSTS, "transformers").build(Spec("hugo"))
    with pytest.raises(UsageError, match="canonical shapes"):
        load(HOSTS, "reference").build(Spec())
    import vitconv.hosts.base.host as host_module

    monkeypatch.setattr(host_module, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="host torchvision cannot be used: torchvision is not installed"):
        load(HOSTS, "torchvision").build(Spec("vit_b_16"))


USER = """
import timm, torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=3e-6), nn.LayerNorm(d, eps=3e-6)
        self.attn = nn.Linear(d, d)
        self.mlp = nn.Sequential()
        self.mlp.fc1, self.mlp.act, self.mlp.fc2 = nn.Linear(d, d), nn.GELU(approximate="tanh"), nn.Linear(d, d)
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

class Mine(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.trunk = nn.Module()
        self.trunk.patch = nn.Conv2d(1, d, 4, 4)
        self.trunk.blocks = nn.ModuleList([Block(d), Block(d)])
        self.head = nn.Linear(d, 3)
    def forward(self, x):
        x = self.trunk.patch(x).flatten(2).transpose(1, 2)
        for b in self.trunk.blocks:
            x = b(x)
        return {"logits": self.head(x.mean(1))}

def of_timm(**options):
    return timm.create_model("vit_tiny_patch16_224", **options)

def no_network():
    return 3
value = 3
"""


@pytest.fixture
def user(tmp_path):
    file = tmp_path / "user_net.py"
    file.write_text(USER)
    return file


def test_the_users_own_network(user):
    host = load(HOSTS, "python")
    built = host.build(Spec(f"{user}:Mine", {"d": 16}, Semantics(image_size=(8, 12))))
    assert built.inputs.shape == (1, 8, 12)
    assert built.facts.known() == {"norm_kind": "layernorm", "norm_eps": 3e-6, "activation": "gelu_tanh"}
    assert [n.place for n in built.survey.norms] == [f"blocks.{i}.norm{j}" for i in (0, 1) for j in (1, 2)]
    with recording(built.taps) as record:
        y = built(torch.randn(2, 1, 8, 12))
    assert y.shape == (2, 3)
    assert list(record.values()) == [
        "embed",
        *(f"blocks.{i}{p}" for i in (0, 1) for p in (".attn", ".mlp", "")),
        "pool",
        "head",
    ]
    assert built.notes


def test_the_users_network_of_a_known_library_is_described_by_its_host(user):
    built = load(HOSTS, "python").build(Spec(f"{user}:of_timm", {"num_classes": 7, "depth": 1}))
    assert (built.host, built.facts.heads, built.dialects) == ("timm", 3, ("timm",))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("hugo", "expected package.module:factory"),
        ("no_such_package:f", "no module 'no_such_package'"),
        ("{user}:nothing", "has no 'nothing'"),
        ("{user}:value", "is int, expected a factory"),
        ("{user}:no_network", "gives int, expected a torch.nn.Module"),
        ("no_such_file.py:f", "no such file"),
    ],
)
def test_what_is_no_network_is_refused(model, says, user):
    with pytest.raises(UsageError, match=says):
        load(HOSTS, "python").build(Spec(model.format(user=user)))


def test_the_factory_is_built_from_a_folder_that_convert_wrote(tmp_path: Path) -> None:
    (tmp_path / "xformers.json").write_text(json.dumps([STACK]))
    options = {"image": GRID * PATCH, "patch": PATCH, "classes": CLASSES, "release": "0.0.28.post3"}
    built = load(HOSTS, "xformers-style").build(Spec(str(tmp_path), options))
    assert built.facts.heads == STACK["multi_head_config"]["num_heads"]


@pytest.mark.parametrize("option", ["pretrained", "weights"])
@pytest.mark.parametrize(("host", "model"), [("timm", "vit_tiny_patch16_224"), ("torchvision", "vit_b_16")])
def test_weights_are_never_downloaded_nor_is_the_wish_ignored(host: str, model: str, option: str) -> None:
    pytest.importorskip(host)
    with pytest.raises(UsageError, match=rf"never downloaded.*{host}:{model}@"):
        load(HOSTS, host).build(Spec(model, {option: "DEFAULT"}))
    assert load(HOSTS, host).build(Spec(model, {option: "false"})).model == model
