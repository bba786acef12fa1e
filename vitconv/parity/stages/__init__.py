"""The stages of a verification, one per file; this package imports nothing."""
