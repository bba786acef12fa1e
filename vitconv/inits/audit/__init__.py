"""The audit: which distribution each tensor has, which scheme fits best, whether it was trained, and what is wrong."""
