"""Public names of earlier releases, which answer for one release with a warning."""

import importlib
import warnings
from typing import Any

RENAMED = {
    "jaxscale.runs_from_pandas": "jaxscale.read_runs",
    "jaxscale.report.figures.latency_against_load": "jaxscale.serving.latency_against_load",
    "jaxscale.report.figures.serving_frontier": "jaxscale.serving.serving_frontier",
    "jaxscale.serving.best_plan": "jaxscale.serving.best_serving_plan",
    "jaxscale.laws.backtest": "jaxscale.laws.backtest_of",
    "jaxscale.laws.check": "jaxscale.laws.checked_law",
    "jaxscale.laws.compare": "jaxscale.laws.compare_forms",
    "jaxscale.laws.document": "jaxscale.laws.law_document",
    "jaxscale.laws.fit": "jaxscale.laws.fit_law",
    "jaxscale.laws.load": "jaxscale.laws.load_law",
    "jaxscale.laws.losses": "jaxscale.laws.losses_of",
    "jaxscale.laws.read": "jaxscale.laws.read_losses",
    "jaxscale.laws.save": "jaxscale.laws.save_law",
    "jaxscale.laws.table": "jaxscale.laws.loss_table",
    "jaxscale.laws.tables": "jaxscale.laws.loss_table_names",
}
"""Public names by those of before."""


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
