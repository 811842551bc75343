"""Streams of jobs are a module beside the notebooks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
