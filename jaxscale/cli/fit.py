"""Command `jaxscale fit`: calibration on a table of measured runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import FitName, Outputs, RunsFile, SkipBad, checked_count, command, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage

if TYPE_CHECKING:
    from jaxscale.base.table import Table


@command
class FitCommand(Outputs):
    """Fit the model to measured runs, with intervals and held-out error."""

    runs: RunsFile
    out: Annotated[Path, option(metavar="FIT.toml", help="file to write; `predict --fit` reads it")]
    start: FitName = "default"
    skip_bad: SkipBad = False
    n_starts: Annotated[
        int, option(metavar="N", help="points from which the best fit is searched; more take longer")
    ] = 4

    def run(self) -> None:
        """Fit the runs, write the fit, and print coefficients and held-out errors.

        Raises:
            InputError: a malformed table or hardware file, an unknown start, or an output that cannot be written.
        """
        import jaxscale as js
        from jaxscale.base.files import check_writable
        from jaxscale.cli.runs_tables import runs_from_file
        from jaxscale.fitting.result import FitResult

        checked_count("--n-starts", self.n_starts)
        # Before minutes of work, and never over an input.
        check_writable(self.out, self.runs, self.start, self.hardware)
        if self.out.suffix != ".toml":
            raise InputError(f"--out = {str(self.out)!r} is not the name of a fit; expected one that ends in .toml")
        check_pictures(self.plot, self.report, self.runs, self.start, self.hardware)
        hardware = js.load_hardware(self.hardware)
        runs = runs_from_file(self.runs, self.skip_bad, hardware)
        result = js.fit(
            runs, start=self.start, n_starts=self.n_starts, name=self.out.stem, hardware=hardware, progress=say
        )
        if isinstance(result, FitResult):
            stage("finding how far each coefficient can go: intervals by profile likelihood")
        result.save(self.out)
        say(f"wrote {self.out}")
        answer(self.json, result.to_json, lambda: self._printed(result))
        # Paces of traced workloads have no figure.
        if not (self.plot or self.report):
            return
        if not isinstance(result, FitResult):
            raise InputError(f"{self.runs}: a figure needs rows of models; the fit of its workloads is written")
        from jaxscale.report.reports import fit_figure, fit_report

        title = f"Fit of {self.runs.name}"
        save_pictures(self.plot, self.report, lambda: fit_figure(result), lambda: fit_report(result, title))

    @staticmethod
    def _printed(result: Any) -> "list[str | Table]":
        """Texts for a terminal."""
        from jaxscale.fitting.result import FitResult
        from jaxscale.fitting.summary import summary_parts

        return summary_parts(result) if isinstance(result, FitResult) else result.parts()
