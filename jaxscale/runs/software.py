"""Software of a run from columns of a runs table: a plan without degrees, and levels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale.calibration.levels import GUESSES
from jaxscale.models import catalogue_model
from jaxscale.plans.plan import END_STAGES, Plan
from jaxscale.runs.arrays import plans_of
from jaxscale.runs.description import describe_rows
from jaxscale.runs.run_levels import OF_MODELS, OF_PLANS
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical

UNDECIDED: Mapping[str, Any] = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "n_microbatches"), 1.0),
    "shard_group": None,
    "schedule": None,
    "zero_stage": 0.0,
    **dict.fromkeys(END_STAGES, 0.0),
}
"""Cells of a row whose plan is left to a search: one chip's, for every decision."""

ANY_SHAPE: Mapping[str, Any] = {"n_layers": 1.0, "d_model": 128.0, "n_heads": 1.0, "seq_len": 128.0, "n_gpus": 2.0}
"""Cells of a row of which nothing but its software is asked."""


class Software(NamedTuple):
    """Software of a run: its switches in a plan, and its levels in a fit.

    Attributes:
        plan: kernels, overlap, widths, number format and recomputation; the degrees are placeholders.
        levels: level by factor: framework, precision, release, recipe, ...
    """

    plan: Plan
    levels: dict[str, str | None]


def software_of(cells: Mapping[str, Any]) -> Software:
    """Software from values of columns of a runs table; empty columns have the default of the framework.

    Args:
        cells: values by column, such as `framework`, `precision`, `tp_overlap`.
    """
    # Two ranks that split tensors, so that what depends on a split is there.
    table = {**ANY_SHAPE, "gpu": "", **cells, **UNDECIDED, "tp": 2.0, "dp": 1.0, "global_batch_size_seqs": 1.0}
    columns = {name: Categorical.constant(value, 1) for name, value in table.items()}
    # A table of a single row: rows and command lines share the rules.
    described = describe_rows(Runs(Path(), (), np.zeros(1, dtype=int), {}, columns), catalogue_model)
    levels = of_search(described.levels.row(0))
    plan = jax.tree.map(lambda leaf: leaf[0], plans_of(described))
    others = (*OF_MODELS, "gpu", "company")
    return Software(plan, {kind: name for kind, name in levels.items() if kind not in others})


def of_search(levels: Mapping[str, str | None]) -> dict[str, str | None]:
    """Levels of a run whose plan is searched for: without the levels that follow from the plan."""
    guesses = (levels["unstated"] or "").split(GUESSES)
    # The search decides the recomputation.
    unstated = GUESSES.join(fact for fact in guesses if fact != "activation_recompute") or None
    return {**{kind: name for kind, name in levels.items() if kind not in OF_PLANS}, "unstated": unstated}
