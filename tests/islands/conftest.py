"""Fits of the measured runs behind `data/islands.toml` are scripts beside the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "fits"))
