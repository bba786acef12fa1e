"""Hold the layers: published keys, windows, non-square grids, reduction, stripes, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F

from vitconv.errors import UsageError
from vitconv.kernels.focused.module import (
    FocusedLinearAttention,
    Form,
    ReducedFocusedAttention,
    StripeFocusedAttention,
    depthwise,
    from_stripes,
    to_stripes,
)


def fill(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.double()


def tokens(b, t, d, seed=1):
    return torch.randn(b, t, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SWIN_KEYS = {
    "qkv.weight",
    "qkv.bias",
    "proj.weight",
    "proj.bias",
    "dwc.weight",
    "dwc.bias",
    "scale",
    "positional_encoding",
}


def test_published_keys_and_shapes():
    state = FocusedLinearAttention(24, 7, 3).state_dict()
    assert set(state) == SWIN_KEYS
    assert state["positional_encoding"].shape == (1, 49, 24)
    assert state["dwc.weight"].shape == (8, 1, 5, 5)
    reduced = ReducedFocusedAttention(24, 64, 3, sr_ratio=2, qkv_bias=True).state_dict()
    assert set(reduced) == SWIN_KEYS - {"qkv.weight", "qkv.bias"} | {
        "q.weight", "q.bias", "kv.weight", "kv.bias", "sr.weight", "sr.bias", "norm.weight", "norm.bias",
    }  # fmt: skip
    assert reduced["positional_encoding"].shape == (1, 16, 24)
    stripe = StripeFocusedAttention(24, 8, (8, 2), 3).state_dict()
    assert set(stripe) == {"get_v.weight", "get_v.bias", "dwc.weight", "dwc.bias", "scale", "positional_encoding"}


@pytest.mark.parametrize("variant", ["original", "autocast-off", "upstream-fix", "stable"])
def test_every_variant_fits_the_layer_and_agrees(variant):
    x = tokens(2, 12, 24)
    expected = fill(FocusedLinearAttention(24, (3, 4), 3, form=Form("upstream-fix", eps=0.0)))(x)
    got = fill(FocusedLinearAttention(24, (3, 4), 3, form=Form(variant, eps=0.0)))(x)
    assert (got - expected).abs().max() < 1e-12 * expected.abs().max()


def test_a_window_is_independent_of_the_others_and_the_mask_is_ignored():
    module = fill(FocusedLinearAttention(24, 4, 3))
    x = tokens(4, 16, 24)
    whole = module(x, mask=torch.full((4, 16, 16), -100.0))
    assert (module(x[2:3]) - whole[2:3]).abs().max() < 1e-12


def test_a_non_square_grid_is_not_its_transpose():
    module = fill(ReducedFocusedAttention(24, 12, 3))
    x = tokens(2, 12, 24)
    assert (module(x, 3, 4) - module(x, 4, 3)).abs().max() > 0.1


def test_the_depthwise_branch_equals_one_convolution_per_head():
    module = fill(FocusedLinearAttention(24, (3, 5), 3))
    v = tokens(2, 15, 24)
    per_head = v.view(2, 3, 5, 3, 8).permute(0, 3, 4, 1, 2).reshape(6, 8, 3, 5)
    expected = F.conv2d(per_head, module.dwc.weight, module.dwc.bias, padding=2, groups=8)
    expected = expected.view(2, 3, 8, 15).permute(0, 3, 1, 2).reshape(2, 15, 24)
    assert (depthwise(v, (3, 5), module.dwc, 3) - expected).abs().max() < 1e-12


def test_pooled_keys_are_49_whatever_the_grid():
    module = fill(ReducedFocusedAttention(16, 49, 2, pooled=True))
    assert module(tokens(1, 14 * 10, 16), 14, 10).shape == (1, 140, 16)
    assert {"sr.weight", "norm.weight"} <= set(module.state_dict())


def test_stripes_are_cut_and_put_back():
    x = tokens(2, 24, 5)
    cut = to_stripes(x, (4, 6), (4, 2))
    assert cut.shape == (6, 8, 5)
    assert torch.equal(from_stripes(cut, (4, 6), (4, 2)), x)
    assert torch.equal(cut[1], x[0].view(4, 6, 5)[:, 2:4].reshape(8, 5))


def test_stripe_attention_treats_each_stripe_alone():
    module = fill(StripeFocusedAttention(16, (4, 6), (4, 2), 2))
    qkv = torch.stack([tokens(2, 24, 16, seed) for seed in range(3)])
    whole = module(qkv).view(2, 4, 6, 16)
    qkv.view(3, 2, 4, 6, 16)[:, :, :, 4:] += 1
    changed = module(qkv).view(2, 4, 6, 16)
    assert torch.equal(changed[:, :, :4], whole[:, :, :4])
    assert (changed[:, :, 4:] - whole[:, :, 4:]).abs().max() > 0.1


def test_training_in_half_under_autocast_is_finite():
    module = FocusedLinearAttention(32, 7, 1)
    x = torch.randn(2, 49, 32, generator=torch.Generator().manual_seed(0)) * 50
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    (y.float().square().mean() * 65536).backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FocusedLinearAttention(24, 4, 5), "width 24 does not divide into 5 heads"),
        (lambda: StripeFocusedAttention(24, 8, (8, 3), 3), "stripes of 8 x 3 do not tile a grid of 8 x 8"),
        (lambda: Form("original", eps_mode="mean"), "'stable' can do both"),
        (lambda: Form("best"), "no variant 'best'"),
        (lambda: ReducedFocusedAttention(24, 12, 3)(torch.zeros(1, 12, 24)), "12 tokens form no square grid"),
        (lambda: FocusedLinearAttention(24, 4, 3)(torch.zeros(1, 12, 24)), "does not hold the 12 tokens"),
        (lambda: ReducedFocusedAttention(24, 12, 3)(torch.zeros(1, 12, 24), 3), "height and width both or neither"),
    ],
    ids=["heads", "stripes", "eps mode", "variant", "square", "window", "half a grid"],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()
