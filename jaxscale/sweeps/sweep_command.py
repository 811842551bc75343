"""`jaxscale sweep`: any question over a product of axes, region by region, on all devices."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.base.files import writing
from jaxscale.base.units import plural
from jaxscale.cli.arguments import Outputs, command, option
from jaxscale.cli.console import advance, answer, check_pictures, save_pictures, say, stage

if TYPE_CHECKING:
    from jaxscale.sweeps.question import SweepSpec


@command
class SweepCommand(Outputs):
    """Evaluate a question over a product of axes: step times, plans, designs, limits, serving, islands."""

    spec: Annotated[tyro.conf.Positional[Path], option(metavar="SPEC.toml", help="what is asked, and the axes")]
    out: Annotated[Path, option(metavar="DIR", help="folder for the results, a Zarr store")]
    resume: Annotated[bool, option(help="go on where an earlier run stopped, or add values of the first axis")] = False
    dask: Annotated[
        str | None, option(metavar="HOST:PORT", help="scheduler of a Dask cluster whose workers share the folder")
    ] = None
    coordinator: Annotated[
        str | None, option(metavar="HOST:PORT", help="of several processes: address of the first")
    ] = None
    n_processes: Annotated[int, option(metavar="N", help="processes that share the sweep")] = 1
    process: Annotated[int, option(metavar="K", help="which of them this is, from 0")] = 0
    draw: Annotated[
        str | None, option(metavar="NAME", help="result that the figure shows; the first where left out")
    ] = None
    over: Annotated[
        tuple[str, ...], option(metavar="AXIS [AXIS]", help="axes of the figure; the two longest where left out")
    ] = ()

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed specification, a folder that holds another sweep, or a process out of range.
        """
        import jax

        from jaxscale.sweeps.run_sweep import run_on_workers, run_regions
        from jaxscale.sweeps.sweep_figure import check_drawn, sweep_figure, sweep_report
        from jaxscale.sweeps.sweep_spec import read_spec
        from jaxscale.sweeps.sweep_store import alone_in, clear_leftovers, needs_stores, open_sweep, prepare

        self._check_processes()
        needs_stores()
        check_pictures(self.plot, self.report, self.spec, self.hardware)
        spec = read_spec(self.spec, self.hardware)
        if self.draw or self.over:
            check_drawn(spec, self.draw, self.over, bool(self.plot or self.report))
        if self.coordinator is not None:
            # Before devices are first queried.
            jax.distributed.initialize(self.coordinator, self.n_processes, self.process)
        # A single process locks the folder throughout; several processes set it up in turn, then write concurrently.
        several = self.n_processes > 1
        with writing(self.out), contextlib.nullcontext() if several else alone_in(self.out):
            with alone_in(self.out, waits=True) if several else contextlib.nullcontext():
                spec, missing = prepare(spec, self.out, self.resume or several, is_alone=not several)
            if not several:
                clear_leftovers(self.out)
            stage("sweep", total=spec.n_points, done=spec.n_points - sum(map(spec.size_of, missing)))
            if self.dask is None:
                refusals = run_regions(spec, self.out, missing, advance)
            else:
                refusals = run_on_workers(spec, self.out, missing, self.dask, advance)
        self._tell(spec, len(missing), refusals)
        if self.plot or self.report:
            drawn = (open_sweep(self.out), self.draw, self.over)
            save_pictures(self.plot, self.report, lambda: sweep_figure(*drawn), lambda: sweep_report(*drawn))
        if self.coordinator is not None:
            jax.distributed.shutdown()

    def _check_processes(self) -> None:
        """Refuse incompatible options of processes."""
        if not 0 <= self.process < self.n_processes:
            raise InputError(
                f"--process = {self.process} is out of range; expected 0 to --n-processes - 1 = {self.n_processes - 1}"
            )
        if (self.coordinator is None) != (self.n_processes == 1):
            raise InputError("--coordinator and --n-processes above 1 go together; expected both or neither")
        if self.coordinator is not None and self.dask is not None:
            raise InputError("--coordinator does not go with --dask; expected one of them")
        if self.n_processes > 1 and (self.plot or self.report):
            raise InputError("--plot and --report need all regions; expected them of one process, with --resume")

    def _tell(self, spec: "SweepSpec", n_computed: int, refusals: list[str]) -> None:
        """Report the number of points and regions, and the reason of points without an answer."""
        say(f"{spec.n_points:,} points in {spec.n_regions:,} {plural(spec.n_regions, 'region')}: {self.out}")
        if refusals:
            say(f"{len(refusals):,} points have no answer, the first: {refusals[0]}")
        counts = {"n_points": spec.n_points, "n_regions": spec.n_regions, "n_computed": n_computed}
        counts["n_unanswered"] = len(refusals)
        answer(self.json, lambda: {"folder": str(self.out), "of": spec.of, **counts}, tuple)
