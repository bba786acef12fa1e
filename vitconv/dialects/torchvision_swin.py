"""torchvision's Swin: stem, stages and mergings in one list, the index of relative positions flat.

Source: pytorch/vision, torchvision/models/swin_transformer.py, 0.29.1.
"""

from vitconv.dialects._swin import torchvision

DIALECT = torchvision("torchvision-swin", "torchvision SwinTransformer", v2=False)
