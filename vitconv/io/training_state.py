"""Parts of a training checkpoint that are not weights."""

from __future__ import annotations

from vitconv.io.wrappers import is_averaged

_WHOLE = {
    "optim", "opt", "opt_state", "scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "lr_sched", "scaler",
    "grad_scaler", "loss_scaler", "amp", "amp_scaler", "rng_state", "rng_states", "cuda_rng_state", "callbacks",
    "loops", "sampler", "dataloader", "train_dataloader", "random_states", "cpu_rng_state",
}  # fmt: skip
# What optimizers keep of each parameter, as torch.optim and others that follow it call it.
_PER_PARAMETER = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_avg_slow", "exp_avg_diff", "exp_inf", "exp_avg_sq_row",
    "exp_avg_sq_col", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "step", "mu_product", "ax",
    "hessian", "z",
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
    if is_per_parameter(path):
        return True
    if "callbacks" in path[:-1]:
        return not is_averaged(".".join(path[path.index("callbacks") + 1 : -1]))
    return any(name in _WHOLE or name.startswith(("optimizer", "optim_")) for name in path[:-1])


def is_per_parameter(path: tuple[str, ...]) -> bool:
    """Say whether a path is that of what an optimizer keeps of one parameter: state, its number or name, the kind."""
    return len(path) >= 3 and path[-3] == "state" and path[-1] in _PER_PARAMETER
