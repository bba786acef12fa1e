"""E: facts that the weights do not carry: activation, eps, gates, pooling heads. More in tests/parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import DEPTH, DIM, rand_t, save, tensors, vitconv

TOLD = ("heads=4", "norm_placement=pre", "norm_eps=1e-6", "final_norm_eps=1e-6", "pooling=token", "grid=4x4")
ONE = ("--precision", "fp64", "--inputs", "coloured")


def stated(folder: Path, name: str, *facts: str) -> Path:
    """Convert rand(T) to itself with facts in its metadata."""
    source = save(folder / "plain.safetensors", rand_t())
    out = folder / name
    sets = [x for fact in (*TOLD, *facts) for x in ("--set", fact)]
    answer = vitconv("convert", source, out, "--to", "timm", *sets)
    assert answer.code == 0, answer.text
    return out


ACTS = ("gelu", "gelu_tanh", "quick_gelu", "silu")


@pytest.mark.parametrize("used", ACTS[1:])
def test_e01_e04_e05_the_activation_that_is_used_is_named(used: str, tmp_path: Path) -> None:
    a, b = stated(tmp_path, "a.safetensors", "activation=gelu"), stated(tmp_path, "b.safetensors", f"activation={used}")
    answer = vitconv("verify", a, b, *ONE, "--json")
    assert answer.code == 1
    assert answer.json["cause"]["found"] == [f"activation-{used.replace('_', '-')}"]
    assert answer.json["facts"]["activation"] == {"A": "gelu", "B": used}
    tried = {n for n in answer.json["cause"]["excluded"] if n.startswith("activation-")}
    assert len(tried) >= 4, "a sweep tries every other one"


def test_e02_e03_facts_go_along_and_without_them_it_is_asked(tmp_path: Path) -> None:
    """Weights with quick_gelu in their metadata; saved anew without it, the activation is unknown, not the default."""
    known = stated(tmp_path, "a.safetensors", "activation=quick_gelu")
    answer = vitconv("convert", known, tmp_path / "hf", "--to", "hf-vit")
    assert answer.code == 0, answer.text
    assert '"hidden_act": "quick_gelu"' in (tmp_path / "hf" / "config.json").read_text()
    # In a folder of its own: a config.json beside a file speaks for it.
    bare = save(tmp_path / "alone" / "bare.safetensors", tensors(known))
    answer = vitconv("convert", bare, tmp_path / "hf2", "--to", "hf-vit", *(x for f in TOLD for x in ("--set", f)))
    assert "do not say activation" in answer.text
    assert not (tmp_path / "hf2" / "config.json").exists()
    answer = vitconv("verify", bare, known, *ONE)
    assert answer.code == 3
    assert "--set-a activation=gelu" in answer.err


@pytest.mark.parametrize(("eps", "stem"), [("1e-5", 0.01), ("1e-12", 0.01), ("1e-12", 1.0), ("1e-7", 1.0)])
def test_e06_e07_e08_another_eps_is_named_with_a_small_stem_and_an_ordinary_one(
    eps: str, stem: float, tmp_path: Path
) -> None:
    from vitconv.parity.verify import verify

    state = rand_t()
    for key in state:
        if key.startswith(("patch_embed", "cls_token", "pos_embed")):
            state[key] = state[key] * stem
    source = save(tmp_path / "s.safetensors", state)
    sets = dict(fact.split("=") for fact in (*TOLD, "activation=gelu"))
    told = [f"{k}={v}" for k, v in sets.items()]
    other = [t if not t.startswith("norm_eps") else f"norm_eps={eps}" for t in told]
    result = verify(str(source), str(source), set_a=told, set_b=other, precisions=["fp64"], inputs=["coloured"])
    assert result.verdict == "differs"
    assert result.cause.found == (f"eps-blocks-{eps}",)
    given = next(r for r in result.stage("function").rows if r.name.startswith("given"))
    assert given.values["output"] > (1e-2 if stem < 1 and eps == "1e-5" else 1e-9)


def test_e11_an_attention_pool_is_no_class_token_pooling(tmp_path: Path) -> None:
    """The probe of an attention-pooling head is not a linear pooler, and a layout that pools the token refuses it."""
    gen = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape, generator=gen)

    state = rand_t(head=False)
    shapes: dict[str, Any] = {
        "latent": (1, 1, DIM), "q.weight": (DIM, DIM), "q.bias": (DIM,), "kv.weight": (2 * DIM, DIM),
        "kv.bias": (2 * DIM,), "proj.weight": (DIM, DIM), "proj.bias": (DIM,), "norm.weight": (DIM,),
        "norm.bias": (DIM,), "mlp.fc1.weight": (128, DIM), "mlp.fc1.bias": (128,), "mlp.fc2.weight": (DIM, 128),
        "mlp.fc2.bias": (DIM,),
    }  # fmt: skip
    state |= {f"attn_pool.{name}": draw(*shape) for name, shape in shapes.items()}
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "out", "--to", "hf-vit")
    assert answer.code == 3, answer.text
    assert "pool." in answer.err
    assert not (tmp_path / "out").exists()
    # SigLIP's head as transformers has it, without the network around it, is no layout at all.
    alone = save(
        tmp_path / "head.safetensors",
        {
            "head.probe": draw(1, 1, 32),
            "head.attention.in_proj_weight": draw(96, 32),
            "head.layernorm.weight": draw(32),
        },
    )
    assert vitconv("inspect", alone).code == 1


@pytest.mark.parametrize(("hidden", "fits"), [(88, True), (85, False)])
def test_e13_the_hidden_width_is_the_tensors_and_not_a_formulas(hidden: int, fits: bool, tmp_path: Path) -> None:
    gen = torch.Generator().manual_seed(1)
    state = rand_t(head=False)
    for i in range(DEPTH):
        for old in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
            del state[f"blocks.{i}.mlp.{old}"]
        for name, shape in (("w12.weight", (2 * hidden, DIM)), ("w12.bias", (2 * hidden,)),
                            ("w3.weight", (DIM, hidden)), ("w3.bias", (DIM,))):  # fmt: skip
            state[f"blocks.{i}.mlp.{name}"] = torch.randn(*shape, generator=gen)
        state |= {f"blocks.{i}.ls{j}.gamma": torch.rand(DIM, generator=gen) for j in (1, 2)}
    state["mask_token"] = torch.randn(1, DIM, generator=gen)
    sets = ("--set", "heads=4", "--set", "grid=4x4", "--set", "norm_eps=1e-6", "--set", "final_norm_eps=1e-6")
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "out", "--to", "hf-dinov2", *sets)
    assert answer.code == 0, answer.text
    wrote = (tmp_path / "out" / "config.json").exists()
    assert wrote is fits, answer.text
    if not fits:
        assert "the MLP is 85 wide" in answer.text and "(88)" in answer.text
