"""The reference network of stage-wise models (Swin, PVT, CSwin, and FLatten's forms of them), to be read and right.

Its state dict has the canonical names and shapes of `vitconv.layout.canonical_stages`. `config` says what it needs to
know, `attention` and `focused` hold the kinds of attention, `block` and `embed` the rest, `model` the network.
"""
