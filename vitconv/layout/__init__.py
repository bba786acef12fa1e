"""Names, shapes and permutations: the mapping between layouts, without touching a byte."""
