"""Command `jaxscale explain`: measured and predicted time of a step, component by component."""

from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.cli.arguments import FitName, Outputs, Texts, command, option, pairs
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage


@command
class ExplainCommand(Outputs):
    """Put the measured step of a run beside the predicted step, and say which part the difference is in.

    With a kernel trace of a rank (PyTorch's profiler, JAX, an SQLite export of Nsight Systems) part by part: matmuls,
    attention, memory-bound work, optimizer, exposed and hidden collectives, waits for the host. Without a trace, the
    parts and the blank cells that could account for the difference.
    """

    run_file: Annotated[
        tyro.conf.Positional[Path], option(name="run", metavar="RUN.csv|LOG|LAUNCH", help="table, log or launch file")
    ]
    trace: Annotated[
        tyro.conf.UseAppendAction[tuple[tuple[Path, ...], ...]],
        option(metavar="FILE", help="kernel trace of a rank: .json, .json.gz, .xplane.pb or .sqlite"),
    ] = ()
    config: Annotated[
        tyro.conf.UseAppendAction[tuple[Path, ...]], option(metavar="FILE", help="launch file of the log")
    ] = ()
    set: Annotated[
        Texts,
        option(metavar="COLUMN=VALUE", help="a further cell of the run, as gpu=h100-80gb"),
    ] = ()
    line: Annotated[int | None, option(metavar="N", help="line of the run in a table of several")] = None
    fit: FitName = "default"

    def run(self) -> None:
        """Read the run and the traces, and print measured and predicted components with likely causes.

        Raises:
            InputError: an unreadable file, a run without measurement or prediction, or an output not writable.
        """
        import jaxscale as js
        from jaxscale.cli.arguments import every_value
        from jaxscale.explaining import explain_report as report
        from jaxscale.explaining.trace_files import read_traces

        files = every_value(self.trace)
        check_pictures(self.plot, self.report, self.run_file, self.fit, self.hardware, *files, *self.config)
        stage("reading the trace")
        traces = [one for path in files for one in read_traces(path)]
        stage("explaining")
        found = js.explain(
            self.run_file,
            traces,
            configs=self.config,
            stated=pairs("--set", self.set),
            line=self.line,
            fit=self.fit,
            hardware=js.load_hardware(self.hardware),
        )
        for remark in found.remarks:
            say(remark)
        answer(self.json, found.to_json, lambda: report.parts_shown(found))
        save_pictures(
            self.plot,
            self.report,
            lambda: report.explanation_figure(found),
            lambda: report.explanation_report(found),
        )
