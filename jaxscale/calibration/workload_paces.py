"""Paces of traced workloads: how much longer measured steps take than their kernels say, by workload and chip."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.levels import Levels


@dataclass(frozen=True)
class WorkloadPace:
    """Pace of a traced workload on a chip, as measured steps and priors have it.

    Attributes:
        workload: name in the column `workload`; empty for any that no measured step had.
        gpu: catalogue id; empty for any chip that no measured step had.
        log_pace: logarithm of measured over predicted step time [1].
        half_width: of the central 90 % interval of the log step time of a further run [1].
        n_chips: most chips of any measured run of the workload [1].
    """

    workload: str
    gpu: str
    log_pace: float
    half_width: float
    n_chips: float


class PaceColumns(NamedTuple):
    """Paces of runs.

    Attributes:
        log_pace: logarithm of measured over predicted step time, 0 without any pace [1], [row].
        half_width: of the 90 % interval of log step time [1]; nan where no step of the workload was measured, or none
            on so many chips [row].
        is_measured: whether a step of the workload was measured [row].
    """

    log_pace: Float[np.ndarray, " row"]
    half_width: Float[np.ndarray, " row"]
    is_measured: np.ndarray


def paces_of(paces: Sequence[WorkloadPace], levels: Levels, n_chips: Float[np.ndarray, " row"]) -> PaceColumns:
    """Paces of runs of traced workloads.

    Args:
        paces: those that a fit has.
        levels: of the runs; the workload is their level `architecture`.
        n_chips: of each run [1].

    Returns:
        The paces.
    """
    by_place = {(pace.workload, pace.gpu): pace for pace in reversed(paces)}
    workloads, chips = ({place[side] for place in by_place} - {""} for side in (0, 1))
    kept = levels.only({"architecture": workloads.__contains__, "gpu": chips.__contains__})
    combinations, index = kept.distinct()
    places = [
        (row.get("architecture") or "", row.get("gpu") or "")
        for row in (combinations.row(place) for place in range(len(combinations)))
    ]
    own = [_nearest(by_place, *place) for place in places]
    most = np.asarray([pace.n_chips for pace in own])[index]
    half_width = np.asarray([pace.half_width for pace in own])[index]
    is_measured = np.asarray([bool(workload) for workload, _ in places], bool)[index]
    return PaceColumns(
        log_pace=np.asarray([pace.log_pace for pace in own])[index],
        half_width=np.where(is_measured & (n_chips <= most), half_width, np.nan),
        is_measured=is_measured,
    )


def _nearest(by_place: Mapping[tuple[str, str], WorkloadPace], workload: str, gpu: str) -> WorkloadPace:
    """Pace of the workload on the chip, else on any chip, else of any workload on the chip, else none."""
    for place in ((workload, gpu), (workload, ""), ("", gpu)):
        if place in by_place:
            return by_place[place]
    return _NO_PACE


_NO_PACE = WorkloadPace("", "", 0.0, np.nan, 0.0)
"""What a fit has of a workload and a chip that no measured step had."""
