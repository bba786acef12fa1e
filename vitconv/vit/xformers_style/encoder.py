"""The encoder block and the stack that `xFormer.from_config` builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from vitconv.vit.xformers_style.attention import MultiHead
from vitconv.vit.xformers_style.config import BlockConfig, Stack, read_stack
from vitconv.vit.xformers_style.embed import patch_embedding, position_encoding
from vitconv.vit.xformers_style.feedforward import FeedForward
from vitconv.vit.xformers_style.norm import make_norm
from vitconv.vit.xformers_style.release import Environment, Release, release
from vitconv.vit.xformers_style.wrapper import PostNorm, PreNorm, Residual, deepnorm_alpha


class EncoderBlock(nn.Module):
    """One encoder block.

    pre: x + f(n(x)), and n''(.) at the end of the block where `final`; post: n(x + f(x)); deepnorm: n(alpha
    x + f(x)). Up to 0.0.11 the attention and the feedforward are registered twice, also as `mha` and
    `feedforward`; these names come first among the parameters.
    """

    def __init__(
        self, config: BlockConfig, release: Release, environment: Environment, *, first: bool, final: bool, patch: bool
    ) -> None:
        super().__init__()
        self.pose_encoding = None
        if config.position is not None and first:
            self.pose_encoding = position_encoding(config.position)
            if config.position.width != config.width:
                self.embedding_projector = nn.Linear(config.position.width, config.width)

        mha = MultiHead(config, release, environment)
        feedforward = FeedForward(config, release, environment)
        if release.fused_projection:
            self.mha, self.feedforward = mha, feedforward

        def norm(use_triton: bool = config.use_triton) -> nn.Module:
            return make_norm(config.width, release, environment, use_triton, config.normalise)

        def wrap(sublayer: nn.Module) -> nn.Module:
            if config.style == "pre":
                return Residual(PreNorm(norm(), sublayer, release.kv_normalised))
            scale = deepnorm_alpha(config.layers) if config.style == "deepnorm" else None
            return PostNorm(norm(), Residual(sublayer, scale))

        self.wrap_att = wrap(mha)
        self.wrap_ff = wrap(feedforward)
        if config.style == "pre" and final:
            heeds = release.final_norm_heeds_use_triton
            self.wrap_ff = PostNorm(norm(config.use_triton or not heeds), self.wrap_ff)
        self.patch_emb = patch_embedding(config.patch) if config.patch is not None and patch else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t d], float, to [b t d]; with a patch embedding x may be [b c height width]."""
        if self.patch_emb is not None:
            x = self.patch_emb(x)
        if self.pose_encoding is not None:
            x = self.pose_encoding(x)
            if hasattr(self, "embedding_projector"):
                x = self.embedding_projector(x)
        return self.wrap_ff(self.wrap_att(x, x, x))


class XFormer(nn.Module):
    """The stack of encoder blocks, under the names `encoders.{i}`.

    Of a configuration with several layers none has a final norm. Positions (and, in 0.0.11, patches) stand
    in the first block of each configuration, since 0.0.12 in the first block of the stack, and patches then
    in every block.
    """

    def __init__(self, stack: Stack, release: Release, environment: Environment) -> None:
        super().__init__()
        self.stack, self.release, self.environment = stack, release, environment
        blocks: list[EncoderBlock] = []
        for config in stack.blocks:
            for i in range(config.layers):
                first = i == 0 if not release.since(12) else not blocks
                alone = config.layers == 1 and (release.final_norm_per_config or config is stack.blocks[-1])
                patch = first or release.since(12)
                blocks.append(EncoderBlock(config, release, environment, first=first, final=alone, patch=patch))
        self.encoders = nn.ModuleList(blocks)
        self.decoders = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t d], float, to [b t d]; with a patch embedding x may be an image [b c height width]."""
        for block in self.encoders:
            x = block(x)
        return x


def xformer(
    config: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    release_name: str,
    environment: Environment | None = None,
    *,
    refuse_ignored: bool = False,
) -> XFormer:
    """Build what `xFormer.from_config(xFormerConfig(config))` builds in a release and an environment.

    `config` is not changed. Weights are torch's defaults; init schemes are not this module's business.

    Raises:
        UsageError, Refused: see `read_stack` and `release`.
    """
    which = release(release_name)
    return XFormer(read_stack(config, which, refuse_ignored=refuse_ignored), which, environment or Environment())
