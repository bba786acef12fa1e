"""How to build and run the network of a dialect: one host per file, each holding its `HOST`.

`base` holds what they share. This package imports nothing, so that listing the hosts costs no torch.
"""
