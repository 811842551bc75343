"""What a framework does, and how fast, where a row of a runs table names nothing but the framework and the chip.

The answers come from such a row itself, so that trends and `jaxscale.predict` share coefficients and plans.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware
from jaxscale.plan.plan import Plan
from jaxscale.runs.categorical import Categorical
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.table import Runs

SMALLEST: Mapping[str, Any] = {
    "model": "llama2-7b",
    "seq_len": 4096.0,
    "n_gpus": 2.0,
    "tp": 2.0,
    "pp": 1.0,
    "micro_batch_size": 1.0,
    "global_batch_size_seqs": 1.0,
    "zero_stage": 3.0,
}
"""Cells that complete a row: the smallest run whose chips communicate. They move no default and no coefficient."""


class Software(NamedTuple):
    """A framework on a chip.

    Attributes:
        plan: what the framework does by default; its degrees and batch mean nothing.
        coefficients: fitted parameters of its runs.
    """

    plan: Plan
    coefficients: Coefficients


def software_on(framework: str, chip_id: str, fit: Fit, hardware: Hardware) -> Software:
    """Defaults and coefficients of a row that names its framework and its chip alone.

    Args:
        framework: as in the column `framework` of a runs table.
        chip_id: catalogue id of the chip.
        fit: the calibration.
        hardware: catalogue of chips.

    Returns:
        The plan of the row, and the coefficients of its levels.
    """
    cells = {**SMALLEST, "gpu": chip_id, "framework": framework}
    columns = {name: Categorical.constant(value, 1) for name, value in cells.items()}
    described = describe_runs(Runs(Path("trends"), tuple(columns), np.ones(1, dtype=int), columns, columns), hardware)
    if described.batch is None:
        raise ValueError(f"the row {cells} is incomplete: {described.notes[0]}")
    precision = described.levels.row(0)["precision"]
    plan = jax.tree.map(lambda leaf: np.asarray(leaf)[0], described.batch.plan)
    return Software(plan, fit.coefficients({"gpu": chip_id, "framework": framework, "precision": precision}))
