"""Public names of earlier releases, which answer for one release with a warning."""

import importlib
import warnings
from typing import Any

RENAMED = {
    "jaxscale.runs_from_pandas": "jaxscale.read_runs",
    "jaxscale.report.figures.latency_against_load": "jaxscale.serving.latency_against_load",
    "jaxscale.report.figures.serving_frontier": "jaxscale.serving.serving_frontier",
}
"""Public names by those of release 0.1."""


def renamed(package: str, name: str) -> Any:
    """The object behind a public name of an earlier release.

    Raises:
        AttributeError: no release had the name.
    """
    present = RENAMED.get(f"{package}.{name}")
    if present is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    old, new = (path.replace("jaxscale.", "js.", 1) for path in (f"{package}.{name}", present))
    warnings.warn(f"{old} is now {new}; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
    module, attribute = present.rsplit(".", 1)
    return getattr(importlib.import_module(module), attribute)
