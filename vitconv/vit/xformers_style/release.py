"""What each release of xformers' factory does: every rule that changed, with the release that changed it.

Source: facebookresearch/xformers, tags and commits named at the rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitconv.errors import UsageError

LAST = (0, 0, 28)
# Development builds from d4c28fbb (2022-03-01) until 78bc58cb (2022-03-11): the new eps and the new FusedMLP with the
# old pre-norm. The first public report tested one of them.
DEVELOPMENT = "0.0.10.dev"


@dataclass(frozen=True)
class Environment:
    """Where the network runs, as far as the releases look at it.

    `triton`: CUDA and Triton can be imported, so the Triton norm class and FusedMLP exist (from 0.0.24 only
    on cards of compute capability 8.0 and above). `cuda`: tensors are on the card, so that the Triton
    kernels run; without it the same modules take their PyTorch path. `nvfuser`:
    `xformers._is_functorch_available` was switched on. `sparse`: the compiled sparse extension is there (it
    switched attention dropout off before 0.0.7).
    """

    triton: bool = False
    cuda: bool = False
    nvfuser: bool = False
    sparse: bool = False


@dataclass(frozen=True)
class Release:
    """One release and its rules.

    `number` is (0, 0, z), or (0, 0, 9, 1) for the development builds before 0.0.10.
    """

    text: str
    number: tuple[int, ...]

    def since(self, z: int) -> bool:
        """Return True for release 0.0.z and later ones."""
        return self.number >= (0, 0, z)

    @property
    def _since_new_eps(self) -> bool:
        # d4c28fbb, 2022-03-01
        return self.number >= (0, 0, 9, 1)

    @property
    def fused_projection(self) -> bool:
        """One `in_proj_weight`, and the alias names `mha` and `feedforward`; until 52d1dd02 (0.0.12)."""
        return not self.since(12)

    @property
    def kv_normalised(self) -> bool:
        """Pre-norm normalises queries, keys and values; only the queries before 78bc58cb (0.0.10)."""
        return self.since(10)

    @property
    def styles(self) -> tuple[str, ...]:
        """The residual norm styles; deepnorm since c8baac00 (0.0.10)."""
        return ("pre", "post", "deepnorm") if self.since(10) else ("pre", "post")

    @property
    def style_key(self) -> str:
        """The configuration key of the style; renamed by 3a7b713d (0.0.12)."""
        return "residual_norm_style" if self.since(12) else "layer_norm_style"

    @property
    def strict(self) -> bool:
        """An unknown key of a block is a TypeError since c1b03258 (0.0.8); before, it is ignored."""
        return self.since(8)

    @property
    def block_keys(self) -> frozenset[str]:
        """The keys of one encoder configuration."""
        keys = {"block_type", "dim_model", "num_layers", "reversible", "use_triton", "layer_position"}
        keys |= {"multi_head_config", "feedforward_config", "position_encoding_config", self.style_key}
        if self.since(11):
            keys |= {"patch_embedding_config", "simplicial_embeddings"}
        if self.since(12):
            keys |= {"normalization"}
        return frozenset(keys)

    @property
    def activations(self) -> tuple[str, ...]:
        """The activations of the feedforward."""
        new = (("smelu",) if self.since(11) else ()) + (("star_relu",) if self.since(16) else ())
        return ("relu", "gelu", "leaky_relu", "squared_relu", *new)

    @property
    def final_norm_per_config(self) -> bool:
        """Every one-layer pre-norm configuration ends with a norm; only the last since 3a7b713d (0.0.12)."""
        return not self.since(12)

    @property
    def final_norm_heeds_use_triton(self) -> bool:
        """The final norm follows `use_triton` since 22c1bab4 (0.0.12)."""
        return self.since(12)

    def norm(self, environment: Environment, use_triton: bool) -> tuple[str, float]:
        """Return (class, eps) of the norm in effect: nn.LayerNorm at 1e-5, or the Triton class.

        The Triton class: switched off before 0.0.4; eps 1e-5, then 1e-6 (d4c28fbb); removed in 0.0.27.
        """
        if not (environment.triton and use_triton and self.since(4)) or self.since(27):
            return "LayerNorm", 1e-5
        return "FusedLayerNorm", 1e-6 if self._since_new_eps else 1e-5

    @property
    def half_eps_floor(self) -> float:
        """The least eps of the Triton kernel on a float16 input: 1.6e-5 since 498e0093 (0.0.11)."""
        return 1.6e-5 if self.since(11) and not self.since(27) else 0.0

    @property
    def fused_mlp(self) -> str | None:
        """The layout of FusedMLP: F0, F1 (eb80810f), F2 (9be9167d), F3 (d4c28fbb), F4 (cbf45263), gone."""
        if self.since(27):
            return None
        if self.since(12):
            return "F4"
        if self._since_new_eps:
            return "F3"
        return "F2" if self.since(8) else "F1" if self.since(4) else "F0"

    def fused_kernel_runs(self, environment: Environment, width: int, dropping: bool) -> bool:
        """Return True when FusedMLP's Triton kernel computes the activation: its GELU is the tanh form.

        `width` is the number of columns, `dropping` is training with a dropout rate above 0. Before 0.0.8
        there was no other path; then CUDA and more than 512 columns; since 0.0.11 only while it drops as
        well.
        """
        if not self.since(8):
            return True
        return environment.cuda and width > 512 and (dropping or not self.since(11))

    @property
    def nvfuser_mlp(self) -> bool:
        """The MLP with bias, activation and dropout in one nvFuser module, opt-in (089f8261 to e8313350)."""
        return self.since(12) and not self.since(22)

    @property
    def mlp_bias_heeded(self) -> bool:
        """The MLP's `bias` has an effect since 089f8261 (0.0.12)."""
        return self.since(12)

    @property
    def residual_dropout_required(self) -> bool:
        """`residual_dropout` has no default before 90a1ec77 (0.0.11)."""
        return not self.since(11)

    @property
    def learnable_position(self) -> bool:
        """Learnable positions, patch embeddings and the embedding projector exist since 0.0.11."""
        return self.since(11)

    @property
    def rotary_in_activation_dtype(self) -> bool:
        """Rotary tables are cast to the activations' dtype since bcb70757 (0.0.12)."""
        return self.since(12)

    @property
    def causal_by_length(self) -> bool:
        """Causal attention masks by the length it meets, and keeps no buffer, since 0.0.6."""
        return self.since(6)

    def dim_value_ignored(self, separate: bool) -> bool:
        """`dim_value` had no effect before 0.0.11 (633797a9), nor in it without `use_separate_proj_weight`.

        `separate`: that flag as it stands in the configuration, false when absent.
        """
        return not self.since(11) or (not self.since(12) and not separate)

    def attention_dropout_works(self, environment: Environment) -> bool:
        """Return False where attention dropout did nothing: sparse extension, before 861493c5 (0.0.7)."""
        return self.since(7) or not environment.sparse


def release(text: str) -> Release:
    """Read a release such as "0.0.9", "v0.0.28.post3", "0.0.16rc424", or "0.0.10.dev" (see `DEVELOPMENT`).

    Raises:
        UsageError: not a release that has the factory (0.0.1 to 0.0.28.post3).
    """
    if text.removeprefix("v") == DEVELOPMENT:
        return Release(DEVELOPMENT, (0, 0, 9, 1))
    found = re.fullmatch(r"v?0\.0\.?0?(\d+)((?:\.post\d+)|(?:rc\d+))?", text)
    number = (0, 0, int(found[1])) if found else (0,)
    if not found or not (0, 0, 1) <= number <= LAST:
        raise UsageError(
            f"xformers release {text!r}: expected 0.0.1 to 0.0.28.post3 (the factory was removed in 0.0.29),"
            f" or {DEVELOPMENT}"
        )
    return Release(text.removeprefix("v"), number)
