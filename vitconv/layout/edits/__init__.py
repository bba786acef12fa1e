"""Edits: changes from canonical to canonical that are not permutations, made only when asked and always reported."""

from vitconv.layout.edits.catalogue import EDITS, apply_all, parse_edit
from vitconv.layout.edits.check import check_before_writing

__all__ = ["EDITS", "apply_all", "check_before_writing", "parse_edit"]
