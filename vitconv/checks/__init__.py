"""Checks that tell, before a training, whether it can work: one per file, cheap to dear."""
