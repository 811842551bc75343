"""`jaxscale fit`: calibrate on a table of measured runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.cli.arguments import FitName, HardwareFile, Json, RunsFile
from jaxscale.cli.console import emit_json, say, show


@dataclass(frozen=True)
class Fit:
    """Fit the model to measured runs, with intervals and held-out error."""

    runs: RunsFile
    out: Annotated[Path, tyro.conf.arg(metavar="FIT.toml", help="file to write; `predict --fit` reads it")]
    start: FitName = "default"
    skip_bad: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="drop bad rows instead of refusing")] = (
        False
    )
    hardware: HardwareFile = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed table or hardware file, an unknown start, or an output that cannot be written.
        """
        import jaxscale as js
        from jaxscale.cli.tables import read_table
        from jaxscale.report.files import check_writable

        check_writable(self.out)
        hardware = js.load_hardware(self.hardware)
        start = js.load_fit(self.start)
        runs = read_table(self.runs, self.skip_bad, hardware)
        result = js.fit(runs, start=start, name=self.out.stem, hardware=hardware, progress=say)
        result.save(self.out)
        say(f"wrote {self.out}")
        emit_json(result.to_json()) if self.json else show(result.summary())
