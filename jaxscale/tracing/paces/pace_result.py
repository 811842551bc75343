"""`PaceResult`: fitted paces of traced workloads, with their errors in words and as plain data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.show import MOST_LINES
from jaxscale.base.table import Table, TableColumn, html_of, make_table, text_column, text_of
from jaxscale.calibration.record import Fit
from jaxscale.calibration.workload_paces import WorkloadPace
from jaxscale.fitting.statistics.percent_errors import LogErrors, mean_percent
from jaxscale.tracing.paces.pace_problem import KINDS_OF_PACE, PaceRows

PACE_COLUMNS = (
    text_column("workload"),
    text_column("chip", says="on {}"),
    TableColumn("pace", stays=True),
    TableColumn("90 % interval", "90 %", says="{}", stays=True),
)


@dataclass(frozen=True)
class PaceResult(LogErrors):
    """Outcome of a fit to rows of traced workloads.

    Attributes:
        fit: the start of the fit, with the paces.
        rows: what was measured.
        paces: of each workload and chip.
        spreads: standard deviation of the effects of each of `KINDS_OF_PACE` [1].
        noise: scale of the errors of single rows [1].
        residuals: predicted minus measured log step time of each row, in sample [row].
        held_out: the same for rows that the paces did not see; nan where all rows have one setting [row].
    """

    fit: Fit
    rows: PaceRows
    paces: tuple[WorkloadPace, ...]
    spreads: np.ndarray
    noise: float
    residuals: np.ndarray
    held_out: np.ndarray

    @property
    def mape_before(self) -> float:
        """Mean absolute percentage error of the start of the fit [%]."""
        return mean_percent(-self.rows.log_pace)

    @property
    def messages(self) -> tuple[str, ...]:
        """Cautions for a careful reader."""
        few = "all rows have one setting: no row was held out, intervals rest on the spreads of other measured steps"
        return () if np.isfinite(self.held_out).any() else (few,)

    def headlines(self) -> list[str]:
        """What was fitted and how well, in a few lines."""
        held_out = f"{self.mape_cv:.2f} % held out (median {self.median_cv:.2f} %)"
        spreads = zip(KINDS_OF_PACE, self.spreads, strict=True)
        return [
            f"paces of traced workloads: {self.n} rows, workloads {len(set(self.rows.workload))}, kinds of chip "
            f"{len(set(self.rows.gpu))}",
            f"error of step time: {self.mape_before:.2f} % before, {self.mape_train:.2f} % in sample, "
            + (held_out if np.isfinite(self.held_out).any() else "no row held out"),
            ", ".join(f"spread of {kind.replace('_', ' ')} {spread:.3f}" for kind, spread in spreads)
            + f", of single rows {self.noise:.3f}",
        ]

    def parts(self) -> list[str | Table]:
        """Lines and tables of the fit, in order: errors, paces, messages."""
        return [*self.headlines(), self.pace_table(), *self.messages]

    def summary(self) -> str:
        """Report in plain text: errors, paces, messages."""
        return text_of(self.parts())

    def pace_table(self) -> Table:
        """Table of measured over predicted step times, of pairs that were measured."""
        pairs = set(zip(self.rows.workload, self.rows.gpu, strict=True))
        rows = [
            (
                pace.workload or "any other",
                pace.gpu or "any other",
                f"{np.exp(pace.log_pace):.3f}",
                f"[{np.exp(pace.log_pace - pace.half_width):.3f}, {np.exp(pace.log_pace + pace.half_width):.3f}]",
            )
            for pace in self.paces
            if (pace.workload, pace.gpu) in pairs or not (pace.workload and pace.gpu)
        ]
        return make_table("Paces: measured over predicted step times", PACE_COLUMNS, rows)

    def to_html(self) -> str:
        """The same in HTML."""
        return html_of(self.parts())

    def __repr__(self) -> str:
        """The first lines of the report."""
        return "\n".join(self.summary().splitlines()[:MOST_LINES])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_json(self) -> dict[str, Any]:
        """The report as plain data; nan becomes None."""
        return {
            "n": self.n,
            "mape_before": self.mape_before,
            "mape_train": self.mape_train,
            "mape_held_out": self.mape_cv if np.isfinite(self.held_out).any() else None,
            "spreads": dict(zip(KINDS_OF_PACE, self.spreads.tolist(), strict=True)),
            "noise": self.noise,
            "paces": [vars(pace) for pace in self.paces],
            "messages": list(self.messages),
        }

    def save(self, path: str | Path) -> None:
        """Write the fit as TOML, whole or not at all.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        comment = f"jaxscale fit of {self.n} rows of traced workloads; load with jaxscale.load_fit or predict --fit"
        self.fit.save(path, comment=comment)
