"""PVT: position tables per stage, keys and values of a reduced map, a class token in the last stage.

Source: whai362/PVT, classification/pvt.py, v1 branch of the models (PVT v2 has FLatten-PVTv2's layout).
"""

from vitconv.dialects._flatten import pyramid

DIALECT = pyramid("pvt", "PVT", "whai362/PVT classification/pvt.py", v2=False, token=True)
