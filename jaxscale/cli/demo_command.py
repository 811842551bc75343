"""Command `jaxscale demo`: from shipped measured runs to a fit, a plan, a shape and a report."""

from dataclasses import dataclass
from pathlib import Path

from jaxscale.cli.arguments import DefaultReportFolder, HardwareFile, Json, PlotFile, Quiet
from jaxscale.cli.console import answer, check_pictures, save_pictures, say


@dataclass(frozen=True)
class DemoCommand:
    """Fit shipped runs, predict runs held out, find the best plan and a better shape; write a report."""

    plot: PlotFile = None
    report: DefaultReportFolder = Path("demo-report")
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Fit, predict, choose a plan and a shape, write the report, and print the results.

        Raises:
            InputError: a hardware file with a mistake, or a folder that cannot be written to.
        """
        import jaxscale as js
        from jaxscale.cli.demo_study import (
            calibrate,
            choose,
            demo_document,
            held_out_figure,
            make_report,
            summary_lines,
        )

        check_pictures(self.plot, self.report, self.hardware)
        hardware = js.load_hardware(self.hardware)
        calibration = calibrate(hardware, say)
        design = choose(calibration.result.fit, hardware, say)
        save_pictures(
            self.plot, self.report, lambda: held_out_figure(calibration), lambda: make_report(calibration, design)
        )
        answer(self.json, lambda: demo_document(calibration, design), lambda: summary_lines(calibration, design))
