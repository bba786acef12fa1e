"""Networks: the one readable reference ViT (its state dict is canonical) and the twin of xformers' factory.

Import the modules by name (`vitconv.vit.model`, `vitconv.vit.xformers_style.factory`); this package imports
nothing, so that reading its name costs no torch.
"""
