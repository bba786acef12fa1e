"""The feedforwards of the factory: MLP, its nvFuser form, and the five layouts of FusedMLP.

Which modules hold the biases, which biases are saved, and which GELU runs differ by release; see `Release`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.vit.activation import activation, gelu_tanh
from vitconv.vit.xformers_style.config import BlockConfig
from vitconv.vit.xformers_style.release import Environment, Release


class Activation(nn.Module):
    """Apply an activation by the factory's name; gelu is the exact one.

    smelu: x where x >= 2, 0 where x <= -2, (x+2)^2/8 between (Shamir et al., 2022, beta 2).
    star_relu: 0.8944 max(x, 0)^2 - 0.4472 (Yu et al., MetaFormer baselines, 2022).
    """

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Map x elementwise."""
        if self.name is None:
            return x
        if self.name == "smelu":
            return torch.where(x.abs() <= 2, (x + 2).square() / 8, torch.where(x > 2, x, torch.zeros_like(x)))
        if self.name == "star_relu":
            return 0.8944 * x.relu().square() - 0.4472
        return activation(self.name)(x)

    def extra_repr(self) -> str:
        """Describe the activation in `print(model)`."""
        return str(self.name)


class FusedDropoutBias(nn.Module):
    """dropout(act(x + bias)), in one Triton kernel where it runs.

    `bias`: "buffer" (F1: saved, zero, never trained), "hidden" (F2 to F4: a plain tensor, zero or noise of
    1e-6, in no state dict and no optimiser), or "parameter" (the nvFuser form), or None. The kernel's gelu
    is the tanh form; it has no star_relu and passes its input on instead.
    """

    def __init__(
        self,
        width: int,
        act: str | None,
        dropout: float,
        bias: str | None,
        release: Release,
        environment: Environment,
    ) -> None:
        super().__init__()
        self.act, self.p, self.release, self.environment = Activation(act), dropout, release, environment
        self.fused = bias != "parameter" and bias is not None
        zero = torch.zeros(width)
        if bias == "buffer":
            self.register_buffer("bias", zero)
        elif bias == "parameter":
            self.bias = nn.Parameter(zero)
        else:
            # Not a parameter and not a buffer, on purpose.
            self.bias = zero.requires_grad_() if bias == "hidden" else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [... width], float."""
        if self.bias is not None:
            x = x + self.bias.to(dtype=x.dtype, device=x.device)
        dropping = self.training and self.p > 0
        if self.fused and self.release.fused_kernel_runs(self.environment, x.shape[-1], dropping):
            x = gelu_tanh(x) if self.act.name == "gelu" else x if self.act.name == "star_relu" else self.act(x)
        else:
            x = self.act(x)
        return nn.functional.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Describe the module in `print(model)`."""
        return f"p={self.p}"


class FusedLinear(nn.Linear):
    """gelu_tanh(x W^T + b) and the like in one kernel: the first layer of F0 (0.0.1 to 0.0.3)."""

    def __init__(self, width: int, hidden: int, act: str) -> None:
        super().__init__(width, hidden)
        self.act = Activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [... width], float, to [... hidden]."""
        y = super().forward(x)
        return gelu_tanh(y) if self.act.name == "gelu" else self.act(y)


class FeedForward(nn.Module):
    """down(act(up(x))) with a dropout after each, under the names of the release."""

    def __init__(self, config: BlockConfig, release: Release, environment: Environment) -> None:
        super().__init__()
        self.mlp = nn.Sequential(*_layers(config, release, environment))

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t d], float, to [b t d]."""
        return self.mlp(x)


def _layers(config: BlockConfig, release: Release, environment: Environment) -> list[nn.Module]:
    d, m, act, p = config.width, config.mlp_width, config.activation, config.mlp_dropout
    if config.mlp == "MLP" and not (environment.nvfuser and release.nvfuser_mlp):
        b = config.mlp_bias
        return [nn.Linear(d, m, b), Activation(act), nn.Dropout(p), nn.Linear(m, d, b), nn.Dropout(p)]
    if config.mlp == "MLP":
        linear, bias = False, "parameter" if config.mlp_bias else None
    elif not environment.triton:
        raise UsageError("FusedMLP exists only where CUDA and Triton can be imported: build with triton=True")
    elif release.fused_mlp == "F0":
        return [FusedLinear(d, m, act), nn.Dropout(p), nn.Linear(m, d), nn.Dropout(p)]
    else:
        linear, bias = release.fused_mlp == "F3", "buffer" if release.fused_mlp == "F1" else "hidden"
    return [
        nn.Linear(d, m, bias=linear),
        FusedDropoutBias(m, act, p, bias, release, environment),
        nn.Linear(m, d, bias=linear),
        FusedDropoutBias(d, None, p, bias, release, environment),
    ]
