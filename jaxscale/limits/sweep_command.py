"""`jaxscale sweep`: millions of points of the limits, in chunks, on all devices."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import HardwareFile, Json, PlotFile, Quiet, ReportFolder, option
from jaxscale.cli.console import advance, answer, check_pictures, save_pictures, say, stage


@dataclass(frozen=True)
class SweepCommand:
    """Evaluate a product of axes over assumptions, compute and plans; results in NPZ files, one for each chunk."""

    spec: Annotated[tyro.conf.Positional[Path], option(metavar="SPEC.toml", help="axes of the sweep")]
    out: Annotated[Path, option(metavar="DIR", help="folder for the results")]
    resume: Annotated[bool, option(help="go on where an earlier run of the same sweep stopped")] = False
    coordinator: Annotated[
        str | None, option(metavar="HOST:PORT", help="of several processes: address of the first")
    ] = None
    n_processes: Annotated[int, option(metavar="N", help="processes that share the sweep")] = 1
    process: Annotated[int, option(metavar="K", help="which of them this is, from 0")] = 0
    plot: PlotFile = None
    report: ReportFolder = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed specification, a folder that holds another sweep, or a process out of range.
        """
        import jax

        import jaxscale as js
        from jaxscale.limits.sweep import alone_in, clear_leftovers, prepare, read_spec, run_sweep

        if not 0 <= self.process < self.n_processes:
            raise InputError(
                f"--process = {self.process} is out of range; expected 0 to --n-processes - 1 = {self.n_processes - 1}"
            )
        if (self.coordinator is None) != (self.n_processes == 1):
            raise InputError("--coordinator and --n-processes above 1 go together; expected both or neither")
        if self.n_processes > 1 and (self.plot or self.report):
            raise InputError("--plot and --report need all files; expected them of one process, with --resume")
        check_pictures(self.plot, self.report, self.spec, self.hardware)
        spec = read_spec(self.spec, js.load_hardware(self.hardware))
        if self.coordinator is not None:
            jax.distributed.initialize(self.coordinator, self.n_processes, self.process)
        # Of several processes all but the first find the folder set up, or set it up the same.
        missing = prepare(spec, self.out, self.resume or self.n_processes > 1)
        # Several processes of one sweep write side by side.
        with alone_in(self.out) if self.n_processes == 1 else contextlib.nullcontext():
            if self.n_processes == 1:
                clear_leftovers(self.out)
            stage("sweep", total=spec.n_points, done=(spec.n_chunks - len(missing)) * spec.chunk)
            for _ in run_sweep(spec, self.out, missing):
                advance(spec.chunk)
        say(f"{spec.n_points:,} points in {spec.n_chunks:,} files: {self.out}")
        counts = {"n_points": spec.n_points, "n_files": spec.n_chunks, "n_computed": len(missing)}
        answer(self.json, lambda: {"folder": str(self.out), **counts}, tuple)
        if self.plot or self.report:
            from jaxscale.limits.sweep_figure import sweep_figure, sweep_report

            drawn = (spec, self.out)
            save_pictures(self.plot, self.report, lambda: sweep_figure(*drawn), lambda: sweep_report(*drawn))
        if self.coordinator is not None:
            jax.distributed.shutdown()
