"""Hold the kernels: each with its plain reference, its Triton twin, and a module.

`dispatch` decides which of the two runs and says why; `focused` is focused linear attention, `layer_norm`
LayerNorm, `epilogue` bias + GELU + dropout. Nothing is imported here: torch is loaded by the submodule that
is asked for, and triton only by the Triton twins.
"""
