"""Initialised and audited checkpoints: schemes meet files, dialects and names of networks."""
