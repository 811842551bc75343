"""`FitResult`, the result of `fit`, with a report in words and as JSON."""

from pathlib import Path
from typing import Any

from jaxscale.base.show import MOST_LINES
from jaxscale.base.table import text_of
from jaxscale.calibration.coefficients import unconstrain
from jaxscale.fitting.fit_estimates import FitEstimates
from jaxscale.fitting.summary import cautions, summary_html, summary_json, summary_parts


class FitResult(FitEstimates):
    """Result of `fit`: estimates, diagnostics, cautions and a report."""

    @property
    def messages(self) -> tuple[str, ...]:
        """Cautions about the fit: failed convergence, coefficients not identified by the runs, and so on."""
        return cautions(self)

    def summary(self) -> str:
        """Report in plain text: errors, parameter table, messages."""
        return text_of(summary_parts(self))

    def __repr__(self) -> str:
        """First lines of the report."""
        return "\n".join(self.summary().splitlines()[:MOST_LINES])

    def _repr_html_(self) -> str:
        return summary_html(self)

    def to_json(self) -> dict[str, Any]:
        """Report as JSON data; nan becomes None."""
        return summary_json(self)

    def save(self, path: str | Path) -> None:
        """Write the fit atomically as TOML.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        comment = f"jaxscale fit of {self.n} runs; load with jaxscale.load_fit or jaxscale predict --fit"
        self.fit.save(path, self._parameters_about(unconstrain(self.fit.pooled)), comment)
