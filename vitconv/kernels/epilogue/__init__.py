"""Compute the end of an MLP's first layer, bias + GELU + dropout, in one pass over memory."""
