"""Kind of rows of a runs table with a traced workload."""

from collections.abc import Callable, Collection

import numpy as np

from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.row_kinds import AbstractRowKind, RowAnswers
from jaxscale.runs.schema import Runs
from jaxscale.tracing.pace_fit import PaceResult, fit_paces
from jaxscale.tracing.predict_traced import predict_traced
from jaxscale.tracing.traced_rows import workload_problems


class TracedKind(AbstractRowKind):
    """Kind of rows with a cell in the column `workload`: predicted from traced kernels, fitted by paces."""

    def problems(
        self, runs: Runs, is_kind: np.ndarray, is_catalogue_model: Callable[[str], bool], bad: Collection[int]
    ) -> dict[int, list[str]]:
        """Problems of rows with a workload, by row; arguments as in `AbstractRowKind`."""
        return workload_problems(runs, is_kind, is_catalogue_model, bad)

    def predict(self, runs: Runs, fit: Fit, hardware: Hardware) -> RowAnswers:
        """Predictions from traced kernels, under the plan of each row or the best plan."""
        return predict_traced(runs, fit, hardware)

    def fit(
        self,
        runs: Runs,
        start: Fit,
        *,
        n_folds: int,
        name: str,
        hardware: Hardware | None,
        progress: Callable[[str], None] | None,
    ) -> PaceResult:
        """Fit of the paces of workloads and chips, ratios of measured to predicted step time."""
        if progress is not None:
            progress(f"fitting the paces of {len(runs)} rows of traced workloads")
        return fit_paces(runs, start, n_folds=n_folds, name=name, hardware=hardware)
