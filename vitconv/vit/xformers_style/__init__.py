"""A twin of the encoder stack that `xformers.factory` built in releases 0.0.1 to 0.0.28.post3.

Key for key and number for number, by release: where the norms stand and with which eps, what keys and values
read, how the projections are stored, which MLP and which GELU runs. Written from the behaviour of the
releases (facebookresearch/xformers, folders xformers/factory and xformers/components, tags v0.0.2 to
v0.0.28.post3).
"""
