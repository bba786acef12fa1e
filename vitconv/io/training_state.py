"""Parts of a training checkpoint that are not weights."""

from __future__ import annotations

from vitconv.io.wrappers import is_averaged

_WHOLE = {
    "optim", "opt", "opt_state", "scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "lr_sched", "scaler",
    "grad_scaler", "loss_scaler", "amp", "amp_scaler", "rng_state", "rng_states", "cuda_rng_state", "callbacks",
    "loops", "sampler", "dataloader", "train_dataloader", "random_states", "cpu_rng_state",
}  # fmt: skip
# State of random numbers, which a training keeps as one tensor of bytes.
_RANDOM = {"rng_state", "torch_rng_state", "cpu_rng_state", "cuda_rng_state"}


def is_training_state(path: tuple[str, ...]) -> bool:
    """Say whether a path lies under the state of an optimizer, a scheduler, a gradient scaler or the like.

    Only containers count: a tensor is never taken for training state by its own key, but for random state. Averaged
    weights that a callback keeps are weights: Lightning's EMA callbacks put them there.
    """
    if path and path[-1] in _RANDOM:
        return True
    if "callbacks" in path[:-1]:
        return not is_averaged(".".join(path[path.index("callbacks") + 1 : -1]))
    return any(name in _WHOLE or name.startswith(("optimizer", "optim_")) for name in path[:-1])
