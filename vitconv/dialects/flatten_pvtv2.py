"""FLatten-PVTv2: overlapping patches, a convolution inside the MLP, a norm at the end of every stage.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_pvt_v2.py, commit a7f0a4b.
"""

from vitconv.dialects._flatten import SOURCE, pyramid

DIALECT = pyramid(
    "flatten-pvtv2", "FLatten-PVTv2 (and PVTv2, without a focused block)", SOURCE.format("pvt_v2"), v2=True
)
