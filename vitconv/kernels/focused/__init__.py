"""Compute focused linear attention (arXiv 2308.00442) in every published variant, and in a bounded one.

`variants` holds the published formulations, `stable` the bounded one with its explicit backward, `attention`
the differentiable function that picks the Triton kernels or the plain code, `module` the layers whose
state-dict keys are those of LeapLabTHU/FLatten-Transformer, `overflow` the table of what leaves float16
where.
"""
