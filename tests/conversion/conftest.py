"""Fixtures of the conversion tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conversion_kit import save  # noqa: F401
