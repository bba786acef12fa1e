"""The command line: one verb per file of this folder, found by name."""
