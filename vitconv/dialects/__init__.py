"""One dialect per file: names and shapes of one codebase, as data."""
