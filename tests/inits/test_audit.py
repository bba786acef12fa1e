"""Each finding of the audit fires on a planted fault and is silent on its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitconv.errors import Refused
from vitconv.initialise.audit import audit_file
from vitconv.inits.audit.audit import Audited, audit_tensors
from vitconv.inits.audit.measure import measure, spectral_excess
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.draw import draw
from vitconv.registry import INITS, load

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits" / "vit_digits.safetensors"
Make = Callable[..., Architecture]
Weights = dict[str, Tensor]
Q = "blocks.1.attn.q.weight"


def healthy(make: Make, scheme: str = "timm", seed: int = 0, **size: str) -> tuple[Weights, Architecture]:
    arch = make(**{"classes": "100", **size})
    return draw(arch, load(INITS, scheme), seed), arch


def ids(audited: Audited) -> set[str]:
    return {f.id for f in audited.findings}


def plant_nan(w: Weights) -> None:
    w[Q].view(-1)[[7, 9]] = float("nan")


def plant_memory(w: Weights) -> None:
    w["embed.cls"].fill_(1.0).view(-1)[3] = 4e18


def plant_subnormal_memory(w: Weights) -> None:
    w["embed.pos"].view(-1)[:5000] = 1e-41


def plant_stray(w: Weights) -> None:
    w[Q].view(-1)[5] = -2.0


def plant_zero(w: Weights) -> None:
    w[Q].zero_()


def plant_constant(w: Weights) -> None:
    w[Q].fill_(0.02)


def plant_swap(w: Weights) -> None:
    w["blocks.1.norm1.weight"], w["blocks.1.norm1.bias"] = w["blocks.1.norm1.bias"], w["blocks.1.norm1.weight"]


def plant_rounded(w: Weights) -> None:
    w[Q] = w[Q].bfloat16().float()


def plant_copy(w: Weights) -> None:
    w["blocks.2.attn.q.weight"] = w[Q].clone()


def plant_scaled_copy(w: Weights) -> None:
    w["blocks.2.attn.q.weight"] = w[Q] / 2**0.5


def plant_layer_scale(w: Weights) -> None:
    w |= {f"blocks.{i}.ls{k}": torch.ones(192) for i in range(3) for k in (1, 2)}


def plant_positions(w: Weights) -> None:
    w["embed.pos"].zero_()


def plant_gain(w: Weights) -> None:
    w["blocks.0.norm1.weight"].zero_()


PLANTED: dict[str, tuple[Callable[[Weights], None], str]] = {
    "nan": (plant_nan, "not-finite"),
    "memory": (plant_memory, "uninitialised"),
    "subnormal memory": (plant_subnormal_memory, "uninitialised"),
    "stray -2.0": (plant_stray, "stray-minus-two"),
    "all zero": (plant_zero, "all-zero"),
    "constant": (plant_constant, "constant"),
    "gain and bias swapped": (plant_swap, "gain-bias-mixed-up"),
    "through bfloat16": (plant_rounded, "rounded"),
    "copied": (plant_copy, "copied"),
    "copied and scaled": (plant_scaled_copy, "correlated"),
    "LayerScale 1": (plant_layer_scale, "layer-scale-one"),
    "positions zero": (plant_positions, "positions-zero"),
    "gain zero ahead of the branch": (plant_gain, "gain-switches-off"),
}


@pytest.mark.parametrize(("plant", "id_"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found_and_placed(plant: Callable[[Weights], None], id_: str, make: Make) -> None:
    weights, arch = healthy(make)
    before = {name: t.clone() for name, t in weights.items()}
    plant(weights)
    found = audit_tensors(weights, arch.facts).found(id_)
    assert found is not None
    changed = {n for n, t in weights.items() if n not in before or not torch.equal(t, before[n])}
    assert set(found.where) & changed
    assert found.advice


# fused-xavier and cut-narrows are what the scheme is, and not a fault of the draw.
BY_DESIGN = {
    "timm-jax": {"fused-xavier"}, "timm-jax-nlhb": {"fused-xavier"}, "mae": {"fused-xavier"},
    "xformers-timm": {"cut-narrows"}, "timm-2sigma": {"cut-narrows"}, "hf-deit": {"positions-zero"},
}  # fmt: skip


@pytest.mark.parametrize(
    "scheme", ["timm", "jax", "timm-moco", "timm-compensated", "hf-vit", "torch", "gpt2", "beit", "mup", *BY_DESIGN]
)
def test_the_healthy_twin_is_silent(scheme: str, make: Make) -> None:
    weights, arch = healthy(make, scheme)
    audited = audit_tensors(weights, arch.facts)
    assert ids(audited) == BY_DESIGN.get(scheme, set())
    assert scheme in audited.scheme.split(" or ")
    assert audited.training.state == "never trained"


def test_deepnorm_right_is_silent_and_each_half_is_not(make: Make) -> None:
    weights, arch = healthy(make, "deepnorm", norm="deepnorm")
    right = audit_tensors(weights, arch.facts)
    assert ids(right) == set()
    assert right.bound == pytest.approx(1.0, rel=0.02)
    flat, _ = healthy(make, "jax", norm="deepnorm")
    no_beta = audit_tensors(flat, arch.facts)
    assert no_beta.found("deepnet-bound") is not None
    assert no_beta.bound == pytest.approx((8 * 3) ** 0.5, rel=0.03)
    scaled, _ = healthy(make, "xformers-vit", norm="deepnorm")
    assert ids(audit_tensors(scaled, arch.facts)) == {"query-key-scaled"}
    early, _ = healthy(make, "xformers-0-0-9", norm="deepnorm")
    assert "value-without-beta" in ids(audit_tensors(early, arch.facts))


def test_small_gain_is_right_after_the_branch_and_fatal_after_the_sum(make: Make) -> None:
    weights, arch = healthy(make, "small-gain", norm="res-post")
    assert ids(audit_tensors(weights, arch.facts)) == set()
    found = audit_tensors(weights, arch.facts.replaced({"norm_placement": "post"})).found("gain-deletes-stream")
    assert found is not None
    assert len(found.where) == 6


def test_half_precision_subnormals_are_held_against_what_the_std_gives(make: Make) -> None:
    weights, arch = healthy(make)
    half = {name: t.half() for name, t in weights.items()}
    half["embed.cls"] = half["embed.cls"] * 0 + 1
    assert measure(Q, half[Q]).subnormal == pytest.approx(0.0024, abs=0.0006)
    assert "subnormal" not in ids(audit_tensors(half, arch.facts))
    half[Q].view(-1)[:2000] = 3e-5
    assert "subnormal" in ids(audit_tensors(half, arch.facts))


def test_against_one_scheme_every_deviation_is_named(make: Make) -> None:
    weights, arch = healthy(make)
    weights[Q] *= 1.2
    audited = audit_tensors(weights, arch.facts, "timm")
    assert [f.where for f in audited.findings if f.id == "deviates"] == [(Q,)]
    assert "1.2" in next(f.text for f in audited.findings if f.id == "deviates")


def trained_for(steps: int, make: Make) -> tuple[Weights, Architecture]:
    """Train a small network on noise for some steps of AdamW at 5e-4; [blocks and head only, by formula]."""
    from vitconv.hosts.base.host import Spec
    from vitconv.registry import HOSTS

    arch = make(depth="2", dim="96", heads="3", image="32", patch="8", classes="10")
    model = load(HOSTS, "reference").build(Spec(facts=arch.facts, shapes=arch.shapes)).module
    model.load_state_dict(draw(arch, load(INITS, "timm"), 0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32, generator=g), torch.randint(0, 10, (16,), generator=g)
    for _ in range(steps):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {k: t.detach().clone() for k, t in model.state_dict().items()}, arch


@pytest.mark.parametrize(
    ("steps", "state"), [(0, "never trained"), (1, "trained"), (60, "trained")], ids=["0", "1", "60"]
)
def test_one_step_of_training_is_seen(steps: int, state: str, make: Make) -> None:
    weights, arch = trained_for(steps, make)
    assert audit_tensors(weights, arch.facts).training.state == state


def test_a_part_that_was_never_trained_is_named(make: Make) -> None:
    weights, arch = trained_for(60, make)
    fresh = draw(arch, load(INITS, "timm"), 7)
    assert audit_tensors(weights, arch.facts).found("never-trained") is None
    weights |= {name: t for name, t in fresh.items() if name.startswith("blocks.1.")}
    audited = audit_tensors(weights, arch.facts)
    found = audited.found("never-trained")
    assert audited.training.state == "partly trained"
    assert found is not None
    assert "in blocks 1" in found.text
    assert {n for n in found.where if n.startswith("blocks.0.")} == set()


def test_the_trained_digits_are_trained_and_sound() -> None:
    audited = audit_file(DIGITS)
    assert audited.training.state == "trained"
    assert [f for f in audited.findings if f.level == "fail"] == []


@pytest.mark.parametrize("shape", [(192, 192), (768, 192), (300, 400)], ids=str)
def test_the_spectrum_of_independent_entries_ends_at_the_edge(shape: tuple[int, int]) -> None:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert 0.9 < spectral_excess(w) < 1.03
    spike = torch.outer(torch.ones(shape[0]), torch.ones(shape[1])) / (shape[0] * shape[1]) ** 0.5
    sign = torch.where(torch.arange(shape[1]) % 2 == 0, 1.0, -1.0)
    assert spectral_excess(w + 60.0 * spike * sign) > 1.1


@pytest.mark.parametrize("shape", [(768, 768), (512, 1024), (1024, 512)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_weak_direction_in_a_large_matrix_is_found_to_a_hundredth(shape: tuple[int, int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows, columns = shape
    left, right = torch.randn(rows, generator=g), torch.randn(columns, generator=g)
    edge = 0.02 * (rows**0.5 + columns**0.5)
    w = torch.randn(shape, generator=g) * 0.02 + 0.01
    w += 0.9 * edge * torch.outer(left / left.norm(), right / right.norm())
    exact = float(torch.linalg.svdvals(w - w.mean())[0] / (w.std() * (rows**0.5 + columns**0.5)))
    assert exact > 1.1
    assert exact - 0.01 < spectral_excess(w) < exact + 1e-4


def test_what_is_kept_of_a_tensor_does_not_change_with_its_memory() -> None:
    memory = torch.randn(1 << 16)
    kept = measure("x", memory)
    trace = kept.trace.clone()
    memory.fill_(7.0)
    assert torch.equal(kept.trace, trace)
    assert kept.trace.untyped_storage().nbytes() == kept.trace.numel() * 4


def test_the_audit_takes_one_thread_and_gives_the_others_back(make: Make) -> None:
    before, seen = torch.get_num_threads(), set[int]()

    class Watched(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            seen.add(torch.get_num_threads())
            return super().__getitem__(name)

        def items(self) -> Any:
            return [(name, self[name]) for name in self]

    torch.set_num_threads(2)
    try:
        audit_tensors(Watched(healthy(make)[0]))
        assert seen == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(Refused):
            audit_tensors({"x": torch.ones(2)})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("twin", ["equal", "different"])
def test_a_file_whose_tensors_share_one_memory_is_compared_with_itself_rightly(tmp_path: Path, twin: str) -> None:
    from safetensors.torch import load_file, save_file

    from vitconv.initialise.network import Job
    from vitconv.initialise.write import initialise

    path = tmp_path / "m.safetensors"
    initialise("vit_tiny_patch16_224", path, Job("timm", to="timm", size={"depth": "3", "dim": "48", "heads": "3"}))
    tensors = load_file(path)
    copied = tensors["blocks.0.attn.proj.weight"].clone()
    # Off by one bit far from the sample: the same to every statistic, and no copy.
    if twin == "different":
        copied.view(-1)[1001] = copied.view(-1)[1001].nextafter(torch.tensor(9.0))
    tensors["blocks.2.attn.proj.weight"] = copied
    save_file(tensors, path)
    assert ("copied" in ids(audit_file(path))) == (twin == "equal")


def times(part: str, factor: float) -> Callable[[Weights], None]:
    return lambda w: [t.mul_(factor) for n, t in w.items() if n.endswith(part)] and None


def drawn(part: str, init: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    return lambda w: [init(t) for n, t in w.items() if n.endswith(part)] and None


def fan_out(t: Tensor) -> Tensor:
    return torch.nn.init.kaiming_normal_(t, mode="fan_out")


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (times("mlp.up.weight", 10.0), "10 times"),
        (times("attn.out.weight", 0.1), "0.099 times"),
        (times("norm1.weight", 0.05), "0.05 everywhere"),
        (times("head.weight", 100.0), "head.weight has std"),
        (
            drawn("mlp.up.weight", lambda t: torch.nn.init.kaiming_normal_(t, mode="fan_out")),
            "kaiming normal by fan_out",
        ),
        (drawn("mlp.up.weight", torch.nn.init.xavier_uniform_), "xavier uniform"),
        (drawn("attn.out.weight", torch.nn.init.orthogonal_), "orthogonal"),
        (drawn("embed.pos", torch.nn.init.normal_), "N(0, 1)"),
    ],
    ids=["ten-times", "a-tenth", "gains", "head", "kaiming", "xavier", "orthogonal", "positions"],
)
def test_kinds_that_no_scheme_draws_so_are_told_with_what_they_look_like(
    plant: Callable[[Weights], None], says: str, make: Make
) -> None:
    w, arch = healthy(make)
    assert "off-scheme" not in ids(audit_tensors(w, arch.facts))
    torch.manual_seed(0)
    plant(w)
    found = audit_tensors(w, arch.facts).found("off-scheme")
    assert found is not None
    assert found.level == "warn"
    assert says in found.text


def test_a_bias_that_is_infinite_is_no_sign_of_training(make: Make) -> None:
    w, arch = healthy(make)
    w["blocks.1.attn.q.bias"][3] = float("inf")
    found = audit_tensors(w, arch.facts)
    assert found.training.state == "never trained"
    assert ids(found) == {"not-finite"}


def test_gains_of_zero_where_nothing_says_where_the_norms_stand(make: Make) -> None:
    w, arch = healthy(make)
    for name, t in w.items():
        if name.endswith(("norm1.weight", "norm2.weight")):
            t.zero_()
    facts = arch.facts.replaced({"norm_placement": None})
    found = audit_tensors(w, facts).found("gain-switches-off")
    assert found is not None
    assert "not known" in found.text


def test_stray_values_hide_neither_the_scheme_nor_copies_that_are_none(make: Make) -> None:
    w, arch = healthy(make)
    for n, t in w.items():
        if n.endswith(("attn.q.weight", "attn.k.weight")):
            t.view(-1)[:20] = -2.0
    found = audit_tensors(w, arch.facts)
    assert "timm" in found.scheme.split(" or ")
    assert found.training.state == "never trained"
    assert ids(found) == {"stray-minus-two"}


@pytest.mark.parametrize(("scheme", "said"), [("clip", False), ("timm", False), ("planted", True)])
def test_a_class_token_of_another_size_is_told(scheme: str, said: bool, make: Make) -> None:
    weights, arch = healthy(make, "timm" if scheme == "planted" else scheme)
    if scheme == "planted":
        weights["embed.cls"] *= 0.2 / weights["embed.cls"].std()
    assert (audit_tensors(weights, arch.facts).found("token-large") is not None) == said
