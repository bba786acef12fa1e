"""Faults planted in libraries' own networks of stages are named; what is right is left in peace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitconv.hosts.base.host import Spec
from vitconv.parity.verify import verify
from vitconv.registry import HOSTS, load

pytestmark = pytest.mark.slow

TIMM: dict[str, Any] = {
    "img_size": 32, "patch_size": 2, "num_classes": 5, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4),
    "window_size": 4,
}  # fmt: skip
ENTRY = {False: "swin_tiny_patch4_window7_224", True: "swinv2_tiny_window8_256"}
TOLD = {"image_size": 32, "window": 4, "pretrained_window": 0}


def checkpoint(folder: Path, *, v2: bool) -> Path:
    torch.manual_seed(0)
    net = load(HOSTS, "timm").build(Spec(ENTRY[v2], TIMM)).module
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.normal_(0, 0.3)
            # Past its limit of log 100 in one head.
            if name.endswith("logit_scale"):
                p.copy_(torch.linspace(1.0, 5.0, len(p))[:, None, None])
    save_file(net.state_dict(), folder / "swin.safetensors")
    return folder / "swin.safetensors"


def explained(path: Path, *, v2: bool) -> Any:
    told = TOLD if v2 else {"image_size": 32}
    return verify(path, f"timm:{ENTRY[v2]}", set_a=told, set_b=TIMM, precisions=(), inputs=("coloured",))


def by_rows(self: Any, x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    cells = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).flatten(3)
    return self.reduction(self.norm(cells))


def unscaled_by_100(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    inner, torch_clamp = type(self).plain, torch.clamp
    torch.clamp = lambda t, *a, **k: t  # type: ignore[assignment]
    try:
        return inner(self, x, mask)
    finally:
        torch.clamp = torch_clamp


def unmasked(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return type(self).plain(self, x, None)


def transposed_index(window: tuple[int, int]) -> Tensor:
    at = torch.arange(window[0] * window[1])
    right, down = (x[:, None] - x[None, :] for x in (at // window[1], at % window[1]))
    return (down + window[0] - 1) * (2 * window[1] - 1) + right + window[1] - 1


# Name of the fault: Swin V2?, module, class, method, what stands there instead.
PLANTED: dict[str, tuple[bool, str, str, str, Callable[..., Any]]] = {
    "merge-order-rows": (False, "swin_transformer", "PatchMerging", "forward", by_rows),
    "shift-mask-missing": (True, "swin_transformer_v2", "WindowAttention", "forward", unmasked),
    "logit-scale-unclamped": (True, "swin_transformer_v2", "WindowAttention", "forward", unscaled_by_100),
}


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_a_right_one_has_no_cause(tmp_path: Path, v2: bool) -> None:
    result = explained(checkpoint(tmp_path, v2=v2), v2=v2)
    assert result.exit_code == 0, result
    assert result.cause is None


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_in_timm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import timm.models as models

    v2, module, owner, attribute, new = PLANTED[name]
    path = checkpoint(tmp_path, v2=v2)
    target = getattr(getattr(models, module), owner)
    monkeypatch.setattr(target, "plain", getattr(target, attribute), raising=False)
    monkeypatch.setattr(target, attribute, new)
    result = explained(path, v2=v2)
    assert result.exit_code == 1
    assert frozenset({name}) in result.cause.names, result.cause
    assert result.cause.side == "B"
    assert result.cause.after < 1e-9 < result.cause.before


def spoiled(change: Callable[[nn.Module], None], v2: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Verify against a network of timm's that was changed right after it was made."""
    import timm.models.swin_transformer as one
    import timm.models.swin_transformer_v2 as two

    kind: Any = two.SwinTransformerV2 if v2 else one.SwinTransformer
    made = kind.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        change(self)

    monkeypatch.setattr(kind, "__init__", init)
    return explained(path, v2=v2)


def no_shift(net: Any) -> None:
    for layer in net.layers:
        for block in layer.blocks:
            block.shift_size = (0, 0)
            block.register_buffer("attn_mask", None, persistent=False)


def stale_index(net: Any) -> None:
    for m in net.modules():
        if hasattr(m, "relative_position_index"):
            m.register_buffer("relative_position_index", transposed_index((4, 4)), persistent=False)


def pretrained(net: Any) -> None:
    for m in net.modules():
        if hasattr(m, "relative_coords_table"):
            reach = torch.arange(-3, 4.0) / 7 * 8
            line = reach.sign() * torch.log2(reach.abs() + 1) / 3
            table = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)[None]
            m.register_buffer("relative_coords_table", table.contiguous(), persistent=False)


@pytest.mark.parametrize(
    ("name", "v2", "change"),
    [
        ("shift-missing", False, no_shift),
        ("shift-missing", True, no_shift),
        ("table-transposed", False, stale_index),
        ("pretrained-window-8", True, pretrained),
    ],
    ids=["v1 shift", "v2 shift", "v1 index", "v2 coordinates"],
)
def test_what_was_changed_in_a_network_of_timms_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, v2: bool, change: Callable[[Any], None]
) -> None:
    result = spoiled(change, v2, checkpoint(tmp_path, v2=v2), monkeypatch)
    assert result.exit_code == 1
    assert frozenset({name}) in result.cause.names, result.cause


def test_norms_that_stand_ahead_of_their_branches_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm.models.swin_transformer_v2 as two

    path = checkpoint(tmp_path, v2=True)

    def forward(self: Any, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x + self._attn(self.norm1(x))
        x = x.reshape(b, -1, c)
        return (x + self.mlp(self.norm2(x))).reshape(b, h, w, c)

    monkeypatch.setattr(two.SwinTransformerV2Block, "forward", forward)
    result = explained(path, v2=True)
    assert result.exit_code == 1
    assert frozenset({"placement-pre"}) in result.cause.names, result.cause


def test_a_file_whose_mergings_are_in_the_order_of_unfold_is_explained(tmp_path: Path) -> None:
    """mmpretrain's columns under timm's names: a converter that renamed and did not permute."""
    path = checkpoint(tmp_path, v2=False)
    from safetensors.torch import load_file

    state = load_file(path)
    for name in state:
        if ".downsample." in name:
            t = state[name]
            # timm: column by column; nn.Unfold: row by row within each channel.
            parts = dict(zip(("00", "10", "01", "11"), t.chunk(4, -1), strict=True))
            state[name] = torch.stack([parts[at] for at in ("00", "01", "10", "11")], -1).flatten(-2).contiguous()
    save_file(state, tmp_path / "wrong.safetensors")
    told = {"image_size": 32}
    result = verify(path, tmp_path / "wrong.safetensors", set_a=told, set_b=told, precisions=(), inputs=("coloured",))
    assert result.exit_code == 1
    assert frozenset({"merge-of-unfold"}) in result.cause.names, result.cause
