"""Compute LayerNorm with float32 statistics, any mix of dtypes, and an output dtype of choice."""
