"""LoRA adapters: merged as a reported edit by the stated rule, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversion_kit import timm_vit
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run

State = dict[str, torch.Tensor]
PREFIX = "base_model.model."
RANK, ALPHA = 4, 12


def call(*words: object) -> int:
    return run(["convert", *map(str, words)])


def adapter(base: State, modules: list[str], rank: int = RANK, seed: int = 7) -> State:
    """Return the tensors of an adapter for some modules, as PEFT names them."""
    gen = torch.Generator().manual_seed(seed)
    found: State = {}
    for module in modules:
        w = base[f"{module}.weight"]
        found[f"{PREFIX}{module}.lora_A.weight"] = torch.randn(rank, *w.shape[1:], generator=gen)
        found[f"{PREFIX}{module}.lora_B.weight"] = torch.randn(w.shape[0], rank, *[1] * (w.ndim - 2), generator=gen)
    return found


def write(folder: Path, tensors: State, **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    text = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return folder


def merged(base: State, tensors: State, scale: Callable[[str], float]) -> State:
    """The rule, by hand: in float64, rounded once."""
    out = {k: v.clone() for k, v in base.items()}
    for key, a in tensors.items():
        if ".lora_A." not in key:
            continue
        module = key.removeprefix(PREFIX).partition(".lora_A")[0]
        b = tensors[key.replace("lora_A", "lora_B")].double().flatten(1)
        w = base[f"{module}.weight"]
        delta = (b @ a.double().flatten(1)).reshape(w.shape)
        out[f"{module}.weight"] = (w.double() + scale(module) * delta).to(w.dtype)
    return out


MODULES = ["blocks.0.attn.qkv", "blocks.1.attn.qkv", "blocks.0.mlp.fc1", "patch_embed.proj"]


@pytest.fixture
def base(save) -> tuple[Path, State]:
    state = timm_vit().state_dict()
    return save(state), state


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("rslora", [False, True], ids=["alpha / r", "alpha / sqrt(r)"])
def test_the_rule(base, tmp_path: Path, capsys, rslora: bool) -> None:
    path, state = base
    tensors = adapter(state, MODULES)
    folder = write(tmp_path / "lora", tensors, use_rslora=rslora)
    scale = ALPHA / RANK**0.5 if rslora else ALPHA / RANK
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder, "--prove") == 0
    out = capsys.readouterr().out
    assert f"W + B A * {scale:g} ({'alpha / sqrt(r)' if rslora else 'alpha / r'}) in 4 tensors" in out
    assert "float64" in out and "rounded once to F32" in out and "changes the function" in out
    assert same(load_file(tmp_path / "o.safetensors"), merged(state, tensors, lambda _: scale))


def test_into_another_dialect(base, tmp_path: Path) -> None:
    """The merged weights go on as any others: converted at once, or afterwards."""
    path, state = base
    folder = write(tmp_path / "lora", adapter(state, MODULES))
    assert call(path, tmp_path / "hf.safetensors", "--to", "hf-vit", "--adapter", folder) == 0
    assert call(path, tmp_path / "t.safetensors", "--to", "timm", "--adapter", folder) == 0
    assert call(tmp_path / "t.safetensors", tmp_path / "hf2.safetensors", "--to", "hf-vit") == 0
    assert same(load_file(tmp_path / "hf.safetensors"), load_file(tmp_path / "hf2.safetensors"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(save, tmp_path: Path, dtype: torch.dtype) -> None:
    state = {k: v.to(dtype) for k, v in timm_vit().state_dict().items()}
    tensors = adapter({k: v.float() for k, v in state.items()}, MODULES)
    folder = write(tmp_path / "lora", tensors)
    assert call(save(state), tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 0
    assert same(load_file(tmp_path / "o.safetensors"), merged(state, tensors, lambda _: ALPHA / RANK))


def test_ranks_and_alphas_by_module(base, tmp_path: Path) -> None:
    path, state = base
    tensors = adapter(state, MODULES[:1]) | adapter(state, MODULES[1:2], rank=2)
    folder = write(tmp_path / "lora", tensors, rank_pattern={"1.attn.qkv": 2}, alpha_pattern={r"blocks\.1\..*": 6})
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 0
    want = merged(state, tensors, lambda module: 6 / 2 if ".1." in module else ALPHA / RANK)
    assert same(load_file(tmp_path / "o.safetensors"), want)


def test_a_head_that_was_trained_whole(base, tmp_path: Path, capsys) -> None:
    path, state = base
    head = {f"{PREFIX}head.weight": torch.randn(3, 32), f"{PREFIX}head.bias": torch.randn(3)}
    folder = write(tmp_path / "lora", adapter(state, MODULES) | head, modules_to_save=["head"])
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 0
    assert "taken from the adapter whole: head.bias, head.weight" in capsys.readouterr().out
    got = load_file(tmp_path / "o.safetensors")
    assert torch.equal(got["head.weight"], head[f"{PREFIX}head.weight"])
    assert torch.equal(got["head.bias"], head[f"{PREFIX}head.bias"])


def test_a_module_with_the_adapter_merged(base, tmp_path: Path) -> None:
    import vitconv

    path, state = base
    tensors = adapter(state, MODULES)
    facts = {"heads": 4, "norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu", "grid": (4, 4)}
    facts |= {"pooling": "token", "norm_placement": "pre", "mean": (0.5,), "std": (0.5,)}
    module = vitconv.load(path, "timm", facts=facts, adapter=write(tmp_path / "lora", tensors))
    assert same(dict(module.state_dict()), merged(state, tensors, lambda _: ALPHA / RANK))


def whole_model(state: State) -> State:
    """The state dict of a PEFT model in training: base layers, adapter and a saved head together."""
    out: State = {}
    for key, value in state.items():
        module, _, leaf = key.rpartition(".")
        name = f"{module}.base_layer.{leaf}" if module in MODULES else key
        name = f"{module}.original_module.{leaf}" if module == "head" else name
        out[PREFIX + name] = value
    for key, value in adapter(state, MODULES).items():
        out[key.replace(".weight", ".default.weight")] = value
    out[f"{PREFIX}head.modules_to_save.default.weight"] = torch.ones(5, 32)
    out[f"{PREFIX}head.modules_to_save.default.bias"] = torch.ones(5)
    return out


def test_a_peft_model_saved_whole(base, tmp_path: Path, capsys) -> None:
    _, state = base
    folder = write(tmp_path / "lora", adapter(state, MODULES))
    (folder / "adapter_model.safetensors").unlink()
    torch.save({"model": whole_model(state), "epoch": 1}, tmp_path / "peft.pth")
    args = (tmp_path / "peft.pth", tmp_path / "o.safetensors", "--to", "timm")
    assert call(*args) == 3
    err = capsys.readouterr().err
    assert "tensors of a LoRA adapter" in err and "--adapter" in err and "alpha" in err
    assert call(*args, "--adapter", folder / "adapter_config.json") == 0
    want = merged(state, adapter(state, MODULES), lambda _: ALPHA / RANK)
    want |= {"head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}
    assert same(load_file(tmp_path / "o.safetensors"), want)


def test_an_adapter_alone_asks_for_its_base(base, tmp_path: Path, capsys) -> None:
    folder = write(tmp_path / "lora", adapter(base[1], MODULES))
    assert call(folder, tmp_path / "o.safetensors", "--to", "timm") == 3
    assert "an adapter without its base" in capsys.readouterr().err
    assert run(["inspect", str(folder)]) == 3


def _half(t: State) -> State:
    return {k: v for k, v in t.items() if not k.endswith("blocks.0.attn.qkv.lora_B.weight")}


def _magnitude(t: State) -> State:
    return t | {f"{PREFIX}blocks.0.attn.qkv.lora_magnitude_vector": torch.ones(96)}


def _wide(t: State) -> State:
    return t | {f"{PREFIX}{module}.lora_magnitude_vector": torch.ones(5) for module in MODULES}


def _bias(t: State) -> State:
    return t | {f"{PREFIX}blocks.0.attn.qkv.lora_B.bias": torch.ones(5)}


def _factor(t: State) -> State:
    return t | {f"{PREFIX}blocks.0.attn.qkv.lora_E": torch.ones(5)}


def _stranger(t: State) -> State:
    return {k.replace("blocks", "layers"): v for k, v in t.items()}


def _shape(t: State) -> State:
    return {k: v[:, :-1] if k.endswith("blocks.0.attn.qkv.lora_A.weight") else v for k, v in t.items()}


def _two(t: State) -> State:
    one = {k.replace(".weight", ".one.weight"): v for k, v in t.items()}
    return one | {k.replace(".weight", ".two.weight"): v.clone() for k, v in t.items()}


FAULTS: list[tuple[str, Callable[[State], State] | None, dict[str, Any], str]] = [
    ("half a pair", _half, {}, "only one of A and B"),
    ("DoRA by its tensors alone", _magnitude, {}, "use_dora is not set"),
    ("DoRA by its configuration alone", None, {"use_dora": True}, "magnitudes of 0 of 4 modules"),
    ("DoRA for some modules", _magnitude, {"use_dora": True}, "magnitudes of 1 of 4 modules"),
    ("DoRA of another width", _wide, {"use_dora": True}, "its magnitudes F32 [5]"),
    ("a bias where there is none", _bias, {"lora_bias": True}, "a bias that is not there, or of another shape"),
    ("a factor of its own", _factor, {}, "kind that is not merged"),
    ("another network", _stranger, {}, "modules that the weights do not have"),
    ("another shape", _shape, {}, "does not fit the weights"),
    ("two adapters", _two, {}, r"several adapters (one, two)"),
    ("another rank", None, {"r": 8}, "rank 4 in the tensors, 8 in the configuration"),
    ("IA3", None, {"peft_type": "IA3"}, "only LORA is merged"),
    ("transposed", None, {"fan_in_fan_out": True}, "its weights are stored transposed (Conv1D)"),
    ("grouped inputs", None, {"use_qalora": True}, "pooled in groups"),
    ("adapters by token", None, {"arrow_config": {"top_k": 3}}, "chooses among adapters"),
    ("LoRA-GA", None, {"init_lora_weights": "lora_ga"}, "changed the base too"),
    ("pissa", None, {"init_lora_weights": "pissa_niter_4"}, "changed the base too"),
    ("no alpha", None, {"lora_alpha": None}, "lora_alpha=None"),
]


@pytest.mark.parametrize(("change", "config", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_what_is_not_merged(base, tmp_path: Path, capsys, change: Any, config: dict[str, Any], words: str) -> None:
    path, state = base
    tensors = adapter(state, MODULES)
    tensors = {k: v.contiguous() for k, v in (change(tensors) if change else tensors).items()}
    folder = write(tmp_path / "lora", tensors, **config)
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 3
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_half_a_folder(base, tmp_path: Path, capsys, missing: str) -> None:
    path, state = base
    folder = write(tmp_path / "lora", adapter(state, MODULES))
    (folder / missing).unlink()
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 2
    assert missing.partition("_")[0] in capsys.readouterr().err


def test_overflow_is_refused(save, tmp_path: Path, capsys) -> None:
    state = {k: v.half() for k, v in timm_vit().state_dict().items()}
    tensors = {k: v * 300 for k, v in adapter({k: v.float() for k, v in state.items()}, MODULES[:1]).items()}
    folder = write(tmp_path / "lora", tensors)
    assert call(save(state), tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 3
    assert "past the largest value of F16" in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()


def test_peft_itself_agrees(base, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT's own merge is compared with where it is installed")
    path, _ = base
    module = timm_vit()
    modules = ["qkv", "fc1", "patch_embed.proj"]
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=modules, modules_to_save=["head"])
    model = peft.get_peft_model(module, config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_()
    model.save_pretrained(tmp_path / "lora")
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", tmp_path / "lora") == 0
    theirs = model.merge_and_unload().state_dict()
    ours = load_file(tmp_path / "o.safetensors")
    assert ours.keys() == theirs.keys()
    # PEFT rounds the product, its multiple and the sum to float32 each: three roundings of values up to 32.
    worst = max((ours[k] - v).abs().max().item() for k, v in theirs.items())
    assert worst <= 3 * 2.0**-19, worst


DORA: list[tuple[str, dict[str, Any]]] = [
    ("dora", {"use_dora": True}),
    ("dora, rslora", {"use_dora": True, "use_rslora": True}),
    ("dora, patterns", {"use_dora": True, "rank_pattern": {"fc1": 2}, "alpha_pattern": {"qkv": 5}}),
    ("rslora, patterns", {"use_rslora": True, "rank_pattern": {"blocks.1.attn.qkv": 3}, "alpha_pattern": {"fc1": 7}}),
    ("all biases", {"bias": "all"}),
    ("biases of the modules", {"bias": "lora_only"}),
    ("biases of its own", {"lora_bias": True}),
]


# PEFT takes its own biases for cut factors, and warns.
@pytest.mark.filterwarnings("ignore:Adapter .* LoRA tensor")
@pytest.mark.parametrize("options", [o for _, o in DORA], ids=[name for name, _ in DORA])
def test_peft_itself_agrees_in_float64(options: dict[str, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT's own merge is compared with where it is installed")
    module = timm_vit().double()
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=gen, dtype=torch.float64))
    save_file(module.state_dict(), tmp_path / "base.safetensors")
    config = peft.LoraConfig(
        r=4, lora_alpha=12, target_modules=["qkv", "fc1", "patch_embed.proj"], modules_to_save=["head"], **options
    )
    model = peft.get_peft_model(module, config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or p.requires_grad:
                p.copy_(torch.randn(p.shape, generator=gen, dtype=torch.float64))
    model.save_pretrained(tmp_path / "lora")
    out = tmp_path / "o.safetensors"
    assert call(tmp_path / "base.safetensors", out, "--to", "timm", "--adapter", tmp_path / "lora") == 0
    whole = tmp_path / "whole.pth"
    torch.save(model.state_dict(), whole)
    config_file = tmp_path / "lora" / "adapter_config.json"
    again = tmp_path / "w.safetensors"
    assert call(whole, again, "--to", "timm", "--adapter", config_file) == 0
    theirs = model.merge_and_unload().state_dict()
    for ours in (load_file(out), load_file(again)):
        assert ours.keys() == theirs.keys()
        assert max(float((ours[k] - v).abs().max()) for k, v in theirs.items()) < 1e-11


def test_dora_keeps_the_norms_that_it_holds(base, tmp_path: Path, capsys) -> None:
    """The rule by hand: every row of W + s B A is brought to its magnitude."""
    path, state = base
    tensors = adapter(state, MODULES[:1])
    held = torch.rand(96, generator=torch.Generator().manual_seed(2)) + 0.5
    tensors[f"{PREFIX}{MODULES[0]}.lora_magnitude_vector"] = held
    folder = write(tmp_path / "dora", tensors, use_dora=True)
    assert call(path, tmp_path / "o.safetensors", "--to", "timm", "--adapter", folder) == 0
    assert "dora: rows of the norms that the adapter holds" in capsys.readouterr().out
    found = load_file(tmp_path / "o.safetensors")[f"{MODULES[0]}.weight"].double()
    assert (found.norm(dim=1) - held).abs().max() < 1e-6
    plain = merged(state, tensors, lambda _: ALPHA / RANK)[f"{MODULES[0]}.weight"].double()
    assert torch.nn.functional.cosine_similarity(found, plain).min() > 1 - 1e-6
    assert (found - plain).abs().max() > 0.1


def test_an_adapter_of_a_live_model_finds_the_names_on_disk(tmp_path: Path, capsys) -> None:
    """transformers 5 holds other names in memory than it writes, and PEFT writes those of the memory."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    net = ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=3))
    net.save_pretrained(tmp_path / "base")
    live = {k: v.detach().clone() for k, v in net.state_dict().items()}
    modules = ["vit.layers.0.attention.q_proj", "vit.layers.1.attention.v_proj", "vit.layers.1.mlp.fc1"]
    tensors = adapter(live, modules)
    # Trained whole: the classifier, and a bias beside LoRA.
    more = {"classifier.weight": torch.randn(3, 32), "vit.layers.0.attention.q_proj.bias": torch.randn(32)}
    tensors |= {PREFIX + "classifier.weight": more["classifier.weight"]}
    tensors |= {PREFIX + "vit.layers.0.attention.q_proj.base_layer.bias": more["vit.layers.0.attention.q_proj.bias"]}
    folder = write(tmp_path / "lora", tensors, alpha_pattern={"v_proj": 2})
    assert call(tmp_path / "base", tmp_path / "out", "--adapter", folder, "--to", "hf-vit-5") == 0
    want = merged(live, tensors, lambda m: (2 if m.endswith("v_proj") else ALPHA) / RANK) | more
    assert same(load_file(tmp_path / "out" / "model.safetensors"), want)
    # A module of no name that the network has in either epoch is still refused.
    stray = {k.replace("layers.0.attention.q_proj", "layers.0.attention.x_proj"): v for k, v in tensors.items()}
    folder = write(tmp_path / "stray", stray)
    assert call(tmp_path / "base", tmp_path / "no", "--adapter", folder, "--to", "hf-vit-5") == 3
    assert "vit.layers.0.attention.x_proj" in capsys.readouterr().err


def test_an_adapter_that_is_not_there_is_named(base, tmp_path: Path, capsys) -> None:
    path = tmp_path / "missing"
    assert call(base[0], tmp_path / "o.safetensors", "--to", "timm", "--adapter", path) == 2
    assert f"{path}: there is no such file or folder" in capsys.readouterr().err
