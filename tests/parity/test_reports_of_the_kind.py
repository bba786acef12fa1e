"""More inputs of the kinds of public reports I and E: networks that users wrap, as the command line is given them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitconv.cli.main import run

SIZES = ("img_size=16", "patch_size=4", "embed_dim=32", "depth=2", "num_heads=4", "num_classes=5")
NETWORKS = """
import timm, torch, types
from torch import nn
from torch.nn import functional as F


def plain(**more):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4,
                             num_classes=5, **more).eval()


def put(module, forward):
    module.forward = types.MethodType(forward, module)


def whole(forward, **more):
    net = plain(**more)
    put(net, forward)
    return net


def squeezed():
    return whole(lambda self, x: type(self).forward(self, x).squeeze(0))


def one_of_a_tuple():
    return whole(lambda self, x: (type(self).forward(self, x),))


def in_a_dict():
    return whole(lambda self, x: {"logits": type(self).forward(self, x)})


def in_a_dict_of_its_own():
    return whole(lambda self, x: {"boxes": type(self).forward(self, x)})


def noise_behind_the_head():
    def forward(self, x):
        y = type(self).forward(self, x)
        return y + 1e-3 * torch.rand_like(y)

    return whole(forward)


def puts_itself_in_train():
    def forward(self, x):
        self.train()
        return type(self).forward(self, x)

    return whole(forward, drop_rate=0.3)


def residual_detached():
    net = plain()
    def forward(self, x, **_):
        y = x.detach() + self.attn(self.norm1(x))
        return y + self.mlp(self.norm2(y))

    put(net.blocks[1], forward)
    return net


def positions_in_bfloat16():
    def forward(self, x):
        t = self._pos_embed(self.patch_embed(x))
        return self.forward_head(self.norm(self.blocks(self.norm_pre(t.bfloat16().to(t.dtype)))))

    return whole(forward)


def first_batch_remembered():
    def forward(self, x):
        t = self.patch_embed(x)
        self.kept = t[:1].detach() if self.kept is None else self.kept
        t = self._pos_embed(t + 1e-3 * (self.kept - t))
        return self.forward_head(self.norm(self.blocks(t)))

    net = whole(forward)
    net.kept = None
    return net


def clamped():
    net = plain()
    put(net.blocks[1], lambda self, x, **_: type(self).forward(self, x).clamp(-3, 3))
    return net


def no_head_bias():
    net = plain()
    put(net.head, lambda self, x: F.linear(x, self.weight))
    return net


def classes_in_another_order():
    net = plain()
    put(net.head, lambda self, x: F.linear(x, self.weight, self.bias).flip(-1))
    return net


def probabilities():
    return whole(lambda self, x: type(self).forward(self, x).softmax(-1))


def normalised_again():
    return whole(lambda self, x: type(self).forward(self, (x - 0.5) / 0.5))


def last_block_twice():
    return whole(lambda self, x: self.forward_head(self.norm(self.blocks[1](self.blocks(self._pos_embed(
        self.patch_embed(x)))))))


def recomputed():
    net = plain()
    net.set_grad_checkpointing(True)
    return net
"""


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, Any]]:
    """Verify timm's network against one of those above by the command line: (exit code, JSON or what stderr says)."""
    pytest.importorskip("timm")
    (tmp_path / "wrapped.py").write_text(NETWORKS, encoding="utf-8")

    def of(name: str, *more: str) -> tuple[int, Any]:
        told = [x for s in SIZES for x in ("--set-a", s)]
        words = ["timm:vit_tiny_patch16_224", f"python:{tmp_path / 'wrapped.py'}:{name}", *told, "--dialect-b", "timm"]
        code = run(["verify", *words, "--precision", "fp64", "--inputs", "coloured", "--json", *more])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else err

    return of


@pytest.mark.parametrize("name", ["one_of_a_tuple", "in_a_dict", "recomputed"])
def test_another_wrapping_is_no_difference(name, verified):
    code, told = verified(name)
    assert code == 0, told


def test_what_is_no_tensor_is_refused_by_its_names(verified):
    code, told = verified("in_a_dict_of_its_own")
    assert code == 3
    assert "gives dict with boxes; expected a tensor, or one called logits" in json.dumps(told)


# {name: (what the sentence says, the cause or None, the first tap that is off)}
DIFFERENT: dict[str, tuple[str, str | None, str | None]] = {
    "squeezed": ("shapes [5] alone, [2, 5] of 2", None, None),
    "noise_behind_the_head": ("first output output", None, "output"),
    "puts_itself_in_train": ("dropout acts ahead of the head", "dropout-head-alive", "pool"),
    "residual_detached": ("is detached, in block 1", "backward-cut-attn-residual@1", None),
    "positions_in_bfloat16": ("bfloat16 in VisionTransformer", "half-inside-bf16", "embed"),
    "first_batch_remembered": ("first tap embed", None, "embed"),
    "clamped": ("first tap blocks.1 ", None, "blocks.1"),
    "no_head_bias": ("no bias in the classifier", "head-bias-missing", "head"),
    "classes_in_another_order": ("first tap head", None, "head"),
    "probabilities": ("probabilities for logits", "output-softmax", "output"),
    "normalised_again": ("normalised already", "input-half-again", "embed"),
    "last_block_twice": ("blocks run in the order 0, 1, 1", "blocks-order", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_seen_and_named_or_left_unnamed(name, verified):
    said, cause, site = DIFFERENT[name]
    code, told = verified(name)
    assert code == 1, told
    assert said in told["verdict"]["sentence"]
    assert (told["cause"] or {"found": []})["found"] == ([] if cause is None else [cause])
    if site is not None:
        assert told["where"]["forward"] == site


def test_a_random_output_is_told_with_its_operator(verified):
    _, told = verified("noise_behind_the_head", "--skip", "why")
    sanity = next(s for s in told["stages"] if s["key"] == "sanity")
    row = next(r for r in sanity["rows"] if r["name"] == "B: repeats")
    assert row["status"] == "fail" and "rand" in row["detail"]
