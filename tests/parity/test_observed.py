"""What a run itself shows: batches that mix, half precision and autocasts that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitconv.cli._verify_report import brief
from vitconv.parity.rejudge import judge_run
from vitconv.parity.verify import verify
from vitconv.vit.attention import Attention
from vitconv.vit.block import Block
from vitconv.vit.model import Pool, ViT
from vitconv.vit.norm import Norm

QUICK: dict[str, Any] = {"precisions": (), "inputs": ("coloured",)}


def becomes(path: str, kind: type, forward: Callable[..., Tensor]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        part = module.get_submodule(path) if path else module
        part.__class__ = type(kind.__name__, (kind,), {"forward": forward})

    return change


def centred_over_the_batch(self: Any, x: Tensor) -> Tensor:
    y = Pool.forward(self, x)
    return y - y.mean(0, keepdim=True)


def normalised_over_the_batch(self: Any, x: Tensor) -> Tensor:
    y = F.batch_norm(x.transpose(1, 2), None, None, self.weight, self.bias, training=True, eps=self.eps)
    return y.transpose(1, 2)


def group_of_one(self: Any, x: Tensor) -> Tensor:
    return F.group_norm(x.transpose(1, 2), 1, self.weight, self.bias, self.eps).transpose(1, 2)


def along_the_tokens(self: Any, x: Tensor) -> Tensor:
    y = F.layer_norm(x.transpose(1, 2), x.shape[1:2], eps=self.eps).transpose(1, 2)
    return y * self.weight + self.bias


@pytest.mark.parametrize(
    ("forward", "over"), [(normalised_over_the_batch, "batch"), (group_of_one, "both"), (along_the_tokens, "tokens")]
)
def test_what_a_norm_takes_its_statistics_over_is_named(forward, over, live):
    result = verify(live(), live(becomes("norm", Norm, forward)), **QUICK)
    assert result.cause.found == (f"norm-over-{over}-final",)
    assert result.cause.after < 1e-10 < result.cause.before


def tokens_less_their_mean(self: Any, x: Tensor) -> Tensor:
    y = Norm.forward(self, x)
    return y - y.mean(0, keepdim=True)


def standardised(self: Any, images: Tensor) -> Tensor:
    return ViT.forward(self, (images - images.mean()) / images.std())


@pytest.mark.parametrize(
    ("change", "site"),
    [
        pytest.param(becomes("pool", Pool, centred_over_the_batch), "pool", id="centred over the batch"),
        pytest.param(becomes("norm", Norm, tokens_less_their_mean), "norm", id="tokens less their mean"),
        pytest.param(becomes("", ViT, standardised), "embed", id="images standardised together"),
    ],
)
def test_a_batch_that_mixes_is_the_cause(change, site, live):
    result = verify(live(), live(change), **QUICK)
    assert result.verdict == "differs"
    assert (result.cause.found, result.cause.watched) == (("batch-mixed",), True)
    said = f"the output of an image depends on the others in its batch, first at {site}"
    assert said in result.cause.reason and said in str(brief(result))


def test_a_baseline_that_mixes_accuses_nobody(live):
    change = becomes("pool", Pool, centred_over_the_batch)
    result = verify(live(change), live(), **QUICK)
    assert result.cause is None or result.cause.found == ()


def rounded(self: Any, queries: Tensor, others: Tensor, *more: Any) -> Tensor:
    return Attention.forward(self, queries.bfloat16().to(queries), others, *more)


def test_casts_to_half_precision_are_the_cause(live):
    result = verify(live(), live(becomes("blocks.1.attn", Attention, rounded)), **QUICK)
    assert result.cause.found == ("half-inside-bf16",)
    assert "bfloat16 in blocks.1.attn (rounded)" in result.cause.reason


def under(device: str, dtype: torch.dtype, *, enabled: bool = True) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor, *more: Any) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            return Block.forward(self, x, *more).to(x.dtype)

    return forward


@pytest.mark.filterwarnings("ignore:CUDA is not available")
class TestAutocast:
    """An autocast that is written into a forward pass."""

    def test_one_that_acts_is_the_cause(self, live):
        change = becomes("blocks.1", Block, under("cpu", torch.bfloat16))
        result = verify(live(), live(change), precisions=("fp32",), inputs=("coloured",))
        assert result.verdict == "differs"
        assert result.cause.found == ("autocast-inside-bf16",)
        assert "which fp32 does not ask for: bfloat16 in blocks.1; with that off, B errs at most" in result.cause.reason
        assert result.cause.after < 5 < 100 < result.cause.before

    def test_that_of_cuda_is_not_seen_on_a_cpu_and_that_is_said(self, live, tmp_path):
        change = becomes("blocks.1", Block, under("cuda", torch.float16))
        ask: dict[str, Any] = {"precisions": ("fp32",), "inputs": ("coloured",)}
        result = verify(live(), live(change), save=tmp_path / "run", **ask)
        assert (result.verdict, result.exit_code) == ("undecided", 3)
        assert result.reason.startswith("B: as on CUDA: it switches on CUDA's autocast to float16 in blocks.1")
        assert result.where is None and result.cause is None
        again = judge_run(tmp_path / "run")
        assert (again.verdict, again.reason) == (result.verdict, result.reason)

    def test_in_float64_it_changes_nothing_and_is_said(self, live):
        change = becomes("blocks.1", Block, under("cuda", torch.float16))
        result = verify(live(), live(change), **QUICK)
        assert result.verdict == "same"
        assert "B: it switches on CUDA's autocast to float16 in blocks.1" in result.reason

    def test_under_the_emulation_of_cuda_it_acts_in_its_own_dtype(self, live):
        change = becomes("blocks.1", Block, under("cuda", torch.bfloat16))
        result = verify(live(), live(change), precisions=("amp-fp16",), inputs=("coloured",))
        assert result.verdict == "differs"
        assert result.cause.found == ("autocast-inside-bf16",)

    @pytest.mark.parametrize("device", ["cuda", "cpu"])
    def test_one_that_is_switched_off_is_none(self, device, live):
        change = becomes("blocks.1", Block, under(device, torch.bfloat16, enabled=False))
        result = verify(live(), live(change), precisions=("fp32",), inputs=("coloured",))
        assert result.verdict == "same", result.reason
        assert "autocast" not in result.reason

    def test_one_that_decorates_a_function_is_known_from_the_import(self, tmp_path, network):
        spec, options = network("timm")
        text = (
            "import timm, torch\n\nclass Net(timm.models.VisionTransformer):\n    @torch.autocast('cuda')\n"
            "    def forward(self, x):\n        return super().forward(x)\n\n"
            "def make(**options):\n    return Net(**options)\n"
        )
        (tmp_path / "decorated.py").write_text(text, encoding="utf-8")
        sizes = {k: v for k, v in options.items() if k != "pretrained"}
        b = f"python:{tmp_path / 'decorated.py'}:make"
        result = verify(spec, b, set_a=options, set_b=sizes, precisions=("fp32",), inputs=("coloured",))
        assert result.reason.startswith("B: as on CUDA: it switches on CUDA's autocast to float16 in Net")
