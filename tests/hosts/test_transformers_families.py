"""Every vision family of transformers: built, described, and the same function as the reference in float64."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families_kit import CASES, built, randomised, saved

from vitconv.errors import Refused, UsageError
from vitconv.hosts._transformers import FAMILIES
from vitconv.hosts.base.host import Spec
from vitconv.hosts.base.tap import recording
from vitconv.parity.verify import verify
from vitconv.registry import HOSTS, load

FP64: dict[str, Any] = {"precisions": ["fp64"], "inputs": ["coloured"]}
# What transformers' defaults are; the small networks leave them alone.
EPS = {"dinov2": 1e-6, "dinov3": 1e-5, "clip": 1e-5, "siglip": 1e-6, "siglip2": 1e-6}
ACTS = {"clip": "quick_gelu", "siglip": "gelu_tanh", "siglip2": "gelu_tanh"}
POOLED = {
    "beit": "avg", "beit masked": "none", "beit table": "avg", "ijepa": "none", "ijepa classes": "avg", "mae": "none",
    "mae without decoder": "none", "siglip": "map", "siglip stream": "none", "siglip2": "map",
}  # fmt: skip
POSITION = {"dinov3": "rope", "beit": "relative"}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def of(case: str, table: dict[str, Any], usual: Any) -> Any:
    return table.get(case, table.get(case.split()[0], usual))


def test_every_family_has_a_case() -> None:
    assert {model for model, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_library_computes_what_the_reference_does(case: str, tmp_path: Path) -> None:
    found = saved(case, tmp_path)
    attn = {"attn": "eager"} if "eager" in case else {}
    result = verify(f"transformers:{tmp_path}@{tmp_path}", f"reference@{tmp_path}", set_a=attn, **FP64)
    assert result.verdict == "same", result.reason
    faulty = copy.deepcopy(found.module)
    block = load(HOSTS, "transformers").describe(faulty, Spec()).taps["blocks.1"].module
    wrong: Any = next(m for m in block.modules() if isinstance(m, torch.nn.LayerNorm))
    wrong.eps = 1e-4
    result = verify(f"transformers:{tmp_path}@{tmp_path}", faulty, **FP64)
    assert result.verdict == "differs"


@pytest.mark.parametrize("case", CASES)
def test_facts_and_taps(case: str) -> None:
    found = built(case)
    facts = found.facts
    eps = of(case, EPS, 1e-12)
    assert (facts.norm_eps, facts.heads, facts.grid, facts.image_size) == (eps, 4, (4, 4), (16, 16))
    assert facts.activation == ("silu" if "swiglu" in case or "gated" in case else of(case, ACTS, "gelu"))
    assert facts.pooling == POOLED.get(case, "token")
    assert facts.position == ("learned" if "table" in case else of(case, POSITION, "learned"))
    assert found.survey.attention_backend == ("eager" if "eager" in case else "sdpa")
    with torch.no_grad(), recording(found.taps) as record:
        y = found(torch.randn(2, 3, 16, 16))
    taps = list(record.values())
    blocks = [f"blocks.{i}{part}" for i in (0, 1) for part in (".attn", ".mlp", "")]
    assert taps[:7] == ["embed", *blocks]
    assert set(taps[7:]) <= {"norm", "pool", "head"} and taps[7:]
    last = record.values()[taps[-1]]
    if not case.startswith(("dinov", "deit two")):
        assert torch.equal(last, y)


@pytest.mark.parametrize(
    ("case", "part", "where"),
    [
        ("dinov3", "rope", "blocks.0.attn"),
        ("clip", "quick_gelu", "blocks.0.mlp"),
        ("siglip", "pool", "pool"),
        ("beit", "table", "blocks.0.attn"),
        ("mae", "order", "embed"),
        ("siglip2", "rows", "embed"),
    ],
)
def test_what_a_family_has_of_its_own_is_felt(case: str, part: str, where: str) -> None:
    """A fault in the family's own mechanism shows, and at its own tap."""
    good, bad = built(case), built(case)
    net: Any = bad.module.double()
    good.module.double()
    if part == "rope":
        net.rope_embeddings.config.rope_theta = net.rope_embeddings.base = 50.0
        load(HOSTS, "transformers").describe(net, Spec())
    if part == "quick_gelu":
        net.encoder.layers[0].mlp.activation_fn = torch.nn.GELU()
    if part == "pool":
        net.head.attention.num_heads, net.head.attention.head_dim = 2, 16
    if part == "table":
        table = net.beit.layers[0].relative_position_bias.relative_position_bias_table
        with torch.no_grad():
            table[:-3] = table[:-3].flip(0)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    other = images.flip(-1) if part in ("order", "rows") else images
    seen = []
    for b, x in ((good, images), (bad, other)):
        with torch.no_grad(), recording(b.taps) as record:
            b(x)
        seen.append(record.values())
    off = [n for n in seen[0] if (seen[0][n] - seen[1][n]).abs().max() > 1e-9]
    assert off and off[0] == where


def test_float64_is_float64_throughout_and_leaves_nothing_behind() -> None:
    """Tables that the library makes in float32 are made in float64 there, and float32 runs are as they were."""
    found = built("dinov3")
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        before = found(x)
        twin = copy.deepcopy(found.module).double()
        wide = load(HOSTS, "transformers").describe(twin, Spec())
        held = twin.rope_embeddings.inv_freq.clone()
        y = wide(x.double())
        bare = twin(x.double()).pooler_output
        assert torch.equal(found(x), before)
    assert torch.equal(twin.rope_embeddings.inv_freq, held)
    assert torch.get_default_dtype() == torch.float32
    assert 1e-10 < (y - bare).abs().max() < 1e-5
    x64 = x.double().requires_grad_()
    wide(x64).sum().backward()
    assert x64.grad is not None and x64.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("kind", "tower", "name"),
    [
        ("clip", "clip", "CLIPVisionModelWithProjection"),
        ("siglip", "siglip", "SiglipVisionModel"),
        ("siglip2", "siglip2", "Siglip2VisionModel"),
    ],
)
def test_of_two_towers_the_vision_one_is_built(kind: str, tower: str, name: str, tmp_path: Path) -> None:
    inner = {k: v for k, v in CASES[tower][1].items() if k != "class"}
    config = {"model_type": kind, "vision_config": inner, "projection_dim": 24, "architectures": ["TwoTowers"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load(HOSTS, "transformers").build(Spec(str(tmp_path)))
    assert type(found.module).__name__ == name
    assert len([t for t in found.taps if t.startswith("blocks.") and t.count(".") == 1]) == 2
    if kind == "clip":
        assert found(torch.randn(1, 3, 16, 16)).shape == (1, 24)


def test_what_is_not_known_is_refused() -> None:
    host = load(HOSTS, "transformers")
    with pytest.raises(Refused, match="BeitForSemanticSegmentation is not one of the classes of beit"):
        host.build(Spec("beit", {"class": "BeitForSemanticSegmentation"}))
    with pytest.raises(UsageError, match="no class 'Hugo'"):
        host.build(Spec("beit", {"class": "Hugo"}))


def test_images_of_another_size_are_run_as_the_library_does() -> None:
    net = randomised(built("mae").module)
    found = load(HOSTS, "transformers").describe(net, Spec())
    with torch.no_grad():
        assert found(torch.randn(1, 3, 24, 16)).shape == (1, 25, 32)
