"""The verifier: do two sides compute the same function, with the same numerics, and where and why do they part.

`vitconv.parity.verify.verify` does it all; this package imports nothing, so that naming it costs no torch.
"""
