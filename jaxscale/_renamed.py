"""Public names of earlier releases, which answer for one release with a warning."""

import importlib
import warnings
from typing import Any

RENAMED = {"runs_from_pandas": ("jaxscale.runs.reader", "read_runs")}
"""Module and name of what stands behind a name of release 0.1, by that name."""


def renamed(name: str) -> Any:
    """The object behind a public name of an earlier release.

    Raises:
        AttributeError: no release had the name.
    """
    if name not in RENAMED:
        raise AttributeError(f"module 'jaxscale' has no attribute {name!r}")
    module, present = RENAMED[name]
    warnings.warn(f"js.{name} is now js.{present}; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(module), present)
