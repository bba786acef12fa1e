"""The tiny networks of the hosts' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))
