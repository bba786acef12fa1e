"""FLatten-PVT: position tables per stage, keys and values of a reduced map; the final norm is kept and not applied.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_pvt.py, commit a7f0a4b.
"""

from vitconv.dialects._flatten import SOURCE, pyramid

DIALECT = pyramid("flatten-pvt", "FLatten-PVT", SOURCE.format("pvt"), v2=False)
