"""Rows of attention that are masked as a whole: found in a network's own masks, and made where it takes a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.target import Wanted, context_of

TOKENS = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class Attending(nn.Module):
    """One attention over tokens [b t 16] and a head.

    `kind`: how it masks: `plain` (masked_fill, then softmax), `zeroed` (rows without keys set to 0 afterwards),
    `constant` (filled with -1e9), `fused` (torch's own). `shows`: whether True shows a key or hides it. `own`: it masks
    a row by itself, `low` with the lowest float.
    """

    def __init__(self, kind: str = "plain", *, shows: bool = True, own: bool = False, low: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 10)
        self.kind, self.shows, self.own = kind, shows, own
        self.hidden = torch.finfo(torch.float32).min if low else float("-inf")

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(tokens).chunk(3, -1)
        if self.own:
            mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool)
            mask[2] = not self.shows
        if mask is not None and mask.dtype != torch.bool:
            raise TypeError("a boolean mask")
        shown = None if mask is None else mask if self.shows else ~mask
        if self.kind == "fused":
            y = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=shown)[:, 0]
            return self.head(y.mean(1))
        logits = q @ k.transpose(-2, -1) / 4
        if shown is not None:
            fill = {"zeroed": torch.finfo(logits.dtype).min, "constant": -1e9}.get(self.kind, self.hidden)
            logits = logits.masked_fill(~shown, fill)
        weights = logits.softmax(-1)
        if self.kind == "zeroed" and shown is not None:
            weights = weights * shown.any(-1, keepdim=True)
        return self.head((weights @ v).mean(1))


def looked(module: nn.Module, check: Any, precision: str = "amp-fp16") -> Any:
    return check("masked-rows", context_of(module, Wanted(plan=Plan(precision=precision)), images=TOKENS))


@pytest.mark.parametrize("shows", [True, False], ids=["true-shows", "true-hides"])
@pytest.mark.parametrize(("kind", "level"), [("plain", "error"), ("zeroed", "ok"), ("fused", "ok")])
def test_a_mask_that_hides_a_whole_row(kind: str, level: str, shows: bool, check: Any) -> None:
    found = looked(Attending(kind, shows=shows), check)
    assert found.level == level, [f.text for f in found.findings]
    assert len(found.findings) == 2
    assert f"True {'shows' if shows else 'hides'}" in found.findings[0].text
    assert all("parameters" in f.text for f in found.findings if f.level == "error")


@pytest.mark.parametrize(
    ("low", "level", "says"), [(False, "error", "NaN"), (True, "warn", "evenly")], ids=["minus-infinity", "lowest"]
)
def test_a_row_that_the_network_masks_by_itself(low: bool, level: str, says: str, check: Any) -> None:
    found = looked(Attending(own=True, low=low), check)
    assert found.findings[0].level == level
    assert found.findings[0].figures["masked"] == 2
    assert says in found.findings[0].text


def test_a_constant_that_half_precision_cannot_hold(check: Any) -> None:
    found = looked(Attending("constant"), check)
    assert [f.level for f in found.findings] == ["ok", "error"]
    assert "overflow" in found.findings[1].text
    assert looked(Attending("constant"), check, "fp32").level == "ok"


def test_a_network_without_masks_has_nothing_to_say(network: Any, check: Any) -> None:
    assert "takes no mask" in check("masked-rows", network("depth=2")).skipped


def test_timms_network_stays_finite(check: Any) -> None:
    pytest.importorskip("timm")
    sizes = ("img_size=16", "patch_size=4", "embed_dim=48", "depth=2", "num_heads=3", "num_classes=10")
    found = check("masked-rows", context_of("timm:vit_tiny_patch16_224", Wanted(sets=sizes)))
    assert found.level == "ok"
    assert {f.figures["argument"] for f in found.findings} == {"attn_mask"}
