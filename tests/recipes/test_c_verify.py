"""C04, C08, C14: what a position table does at another image size, and what is pooled, compared by verify."""

from __future__ import annotations

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitconv.parity.verify import verify

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


class OtherRule(VisionTransformer):
    """Resize positions without antialiasing."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        b, height, width, d = x.shape
        table = resample_abs_pos_embed(self.pos_embed, (height, width), num_prefix_tokens=1, antialias=False)
        return torch.cat([self.cls_token.expand(b, -1, -1), x.view(b, -1, d)], dim=1) + table


class Doubled(VisionTransformer):
    """Add the tokens to themselves, in place of the positions, at the native size only."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        if x.shape[1:3] != (4, 4):
            return super()._pos_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), x.flatten(1, 2)], dim=1)
        return tokens + tokens + 0 * self.pos_embed


class AllPooled(VisionTransformer):
    """Average the register tokens with the patches."""

    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        return x[:, 1:].mean(dim=1)


def network(cls: type[VisionTransformer] = VisionTransformer, **more: object) -> nn.Module:
    torch.manual_seed(0)
    made = cls(**{**SIZES, **more})
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def compared(a: nn.Module, b: nn.Module):
    return verify(a, b, precisions=())


def rows_of(result) -> dict[str, str]:
    return {row.name: row.status for row in result.stage("function").rows}


def test_c04_native_is_the_same_and_resized_parts_at_the_embedding() -> None:
    result = compared(network(dynamic_img_size=True), network(OtherRule, dynamic_img_size=True))
    assert result.verdict == "differs"
    rows = rows_of(result)
    assert rows["given weights, coloured"] == rows["probe weights, coloured"] == "ok"
    assert rows["probe weights, resized to 24x20"] == "fail"
    assert "the same function at the size of images they were made for, and not at another" in result.reason
    assert result.where is not None
    assert result.where.forward == "embed"
    assert "interpolation, antialias" in (result.stage("why").why_skipped or "")


def test_c04_the_same_rule_is_the_same_at_both_sizes() -> None:
    result = compared(network(dynamic_img_size=True), network(dynamic_img_size=True))
    assert result.verdict == "same"
    assert rows_of(result)["given weights, resized to 24x20"] == "ok"


def test_c04_a_network_of_one_size_is_said_to_be() -> None:
    result = compared(network(), network(OtherRule, dynamic_img_size=True))
    assert result.verdict == "same"
    assert any("A takes images of its own size only" in note for note in result.stage("function").notes)


def test_c08_native_parts_at_the_embedding_and_resized_is_the_same() -> None:
    result = compared(network(dynamic_img_size=True), network(Doubled, dynamic_img_size=True))
    assert result.verdict == "differs"
    rows = rows_of(result)
    assert rows["probe weights, coloured"] == "fail"
    assert rows["probe weights, resized to 24x20"] == "ok"
    assert result.where is not None
    assert result.where.forward == "embed"


def test_c14_registers_pooled_as_patches_are_seen_and_named() -> None:
    shape = {"global_pool": "avg", "reg_tokens": 4}
    result = compared(network(**shape), network(AllPooled, **shape))
    assert result.verdict == "differs"
    assert "regist" in str(result.cause.found[0])
