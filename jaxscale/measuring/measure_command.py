"""`jaxscale measure`: record of the local chip and network, in five minutes."""

from pathlib import Path
from typing import Annotated

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import Outputs, command, option
from jaxscale.cli.console import advance, answer, check_pictures, save_pictures, say, stage

QUICK = 40.0
"""Time of a quick measurement [s]."""

LONG = 240.0
"""Default time of a measurement [s]."""


@command
class MeasureCommand(Outputs):
    """Time kernels and collectives on the devices of JAX, and write the record of the chip for --hardware."""

    out: Annotated[Path, option(metavar="CHIP.toml", help="hardware file to write")]
    timings: Annotated[Path | None, option(metavar="FILE.csv", help="table of all timings to write")] = None
    name: Annotated[
        str | None, option(metavar="ID", help="id of the chip; as the catalogue or JAX names it where left out")
    ] = None
    seconds: Annotated[
        float | None, option(metavar="S", help=f"time for all timings; {LONG:g} where left out, {QUICK:g} if quick")
    ] = None
    quick: Annotated[bool, option(help="fewer kernels and sizes")] = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: too short a time, or a file that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.hardware.catalogue import load_hardware
        from jaxscale.measuring.measure_report import attained_figure, measure_report, record_document, record_tables
        from jaxscale.measuring.measured_devices import measure_devices

        if self.quick and self.seconds is not None:
            raise InputError("--quick beside --seconds; expected one of them")
        check_writable(self.out, self.hardware)
        if self.out.suffix.lower() != ".toml":
            raise InputError(f"--out = {str(self.out)!r} is not the name of a hardware file; expected .toml at its end")
        if self.timings is not None:
            check_writable(self.timings, self.hardware, self.out)
        check_pictures(self.plot, self.report, self.hardware)
        hardware = load_hardware(self.hardware)
        seconds = self.seconds if self.seconds is not None else QUICK if self.quick else LONG
        found = measure_devices(seconds, name=self.name, hardware=hardware, stage=stage, advance=advance)
        found.record.save(self.out)
        if self.timings is not None:
            found.save_timings(self.timings)
        answer(self.json, lambda: record_document(found), lambda: record_tables(found, hardware))
        say(f"wrote {self.out}: use it by --hardware {self.out} --gpu {found.record.id}")
        save_pictures(self.plot, self.report, lambda: attained_figure(found), lambda: measure_report(found, hardware))
