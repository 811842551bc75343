"""`jaxscale demo`: the main job on shipped data, from measured runs to a better design and a report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxscale.cli.arguments import HardwareFile, Json, Quiet, option
from jaxscale.cli.console import answer, save_report, say


@dataclass(frozen=True)
class DemoCommand:
    """Fit shipped runs, predict runs held out, find the best plan and a better shape; write a report."""

    out: Annotated[Path, option(metavar="DIR", help="folder of the report and its figures")] = Path("demo-report")
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a hardware file with a mistake, or a folder that cannot be written to.
        """
        import jaxscale as js
        from jaxscale.cli.demo.demo_report import demo_document, make_report, summary_lines
        from jaxscale.cli.demo.demo_work import calibrate, choose
        from jaxscale.files import check_folder

        check_folder(self.out)
        hardware = js.load_hardware(self.hardware)
        calibration = calibrate(hardware, say)
        design = choose(calibration.result.fit, hardware, say)
        save_report(lambda: make_report(calibration, design), self.out)
        answer(self.json, lambda: demo_document(calibration, design), lambda: summary_lines(calibration, design))
