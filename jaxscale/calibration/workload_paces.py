"""Paces of traced workloads: ratio of measured to predicted step time, by workload and chip."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.intervals import looked_up
from jaxscale.calibration.levels import Levels


@dataclass(frozen=True)
class WorkloadPace:
    """Pace of a traced workload on a chip: posterior ratio of measured to predicted step time.

    Attributes:
        workload: name in the column `workload`; empty for unmeasured workloads.
        gpu: catalogue id of the chip; empty for unmeasured chips.
        log_pace: logarithm of measured over predicted step time [1].
        half_width: half-width of the central 90 % interval of the log step time of a further run [1].
        n_chips: largest number of chips of a measured run of the workload [1].
    """

    workload: str
    gpu: str
    log_pace: float
    half_width: float
    n_chips: float


class PaceColumns(NamedTuple):
    """Paces of many runs.

    Attributes:
        log_pace: logarithm of measured over predicted step time, 0 without a pace [1], [row].
        half_width: half-width of the 90 % interval of log step time [1]; nan without a measured step of the workload on
            at least as many chips [row].
        is_measured: whether a step of the workload was measured [row].
    """

    log_pace: Float[np.ndarray, " row"]
    half_width: Float[np.ndarray, " row"]
    is_measured: np.ndarray


def paces_of(paces: Sequence[WorkloadPace], levels: Levels, n_chips: Float[np.ndarray, " row"]) -> PaceColumns:
    """Paces of runs of traced workloads.

    Args:
        paces: paces of a fit.
        levels: levels of the runs; the workload is the level `architecture`.
        n_chips: number of chips of each run [1].

    Returns:
        The paces.
    """
    entries = {(pace.workload, pace.gpu): (pace.log_pace, pace.half_width, pace.n_chips) for pace in reversed(paces)}
    log_pace, half_width, most = looked_up(entries, levels, ("architecture", "gpu"), _places, _NO_PACE)
    workloads = {workload for workload, _ in entries} - {""}
    is_measured = levels.has(workloads.__contains__, "architecture")
    return PaceColumns(log_pace, np.where(is_measured & (n_chips <= most), half_width, np.nan), is_measured)


def _places(workload: str, gpu: str) -> tuple[tuple[str, str], ...]:
    """Lookup order: workload on chip, workload on any chip, any workload on chip, any workload on any chip."""
    return (workload, gpu), (workload, ""), ("", gpu), ("", "")


_NO_PACE = (0.0, np.nan, 0.0)
"""Log pace, half-width and number of chips without a measured step."""
