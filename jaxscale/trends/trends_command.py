"""`jaxscale trends`: throughput, power, cost and marginal returns of training against the number of chips."""

from typing import TYPE_CHECKING, Annotated

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    ModelName,
    Outputs,
    SoftwareOptions,
    checked_batch,
    checked_count,
    command,
    option,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage
from jaxscale.cli.plan import load_model

if TYPE_CHECKING:
    from jaxscale.trends.layout import ParallelLayout


DEGREES = {
    **{name: f"--{name}" for name in ("tp", "pp", "cp", "ep")},
    "n_microbatches": "--microbatches",
    "shard_group": "--shard-group",
}
"""Options by the columns of a runs table that say the same."""

KEPT = ("vpp", "schedule", "first_stage_layers", "last_stage_layers")
"""Choices of a pipeline that a trend does not have: stages of equal share, one chunk each, 1F1B."""


@command
class TrendsCommand(Outputs, SoftwareOptions):
    """Throughput, power, cost and marginal returns of FSDP training against the number of chips."""

    model: ModelName = "llama2-7b"
    gpu: Annotated[str, option(metavar="ID", help="v100-32gb, a100-80gb, h100-80gb, b200, gb200 or gb300")] = (
        "h100-80gb"
    )
    lowest: Annotated[float, option(name="from", metavar="N", help="fewest chips")] = 8.0
    highest: Annotated[float, option(name="to", metavar="N", help="most chips")] = 8192.0
    seq_len: Annotated[int | None, option(metavar="S", help="tokens of a sequence; the model's own")] = None
    sequences_per_chip: Annotated[
        float | None, option(metavar="B", help="weak scaling: sequences per chip and step; 2 where left out")
    ] = None
    global_batch: Annotated[
        str | None,
        option(metavar="B", help="strong scaling: sequences per step, all chips together, or tokens: `4M tokens`"),
    ] = None
    tp: Annotated[int, option(metavar="N", help="tensor-parallel degree")] = 1
    pp: Annotated[int, option(metavar="N", help="pipeline stages; above 1 the optimizer alone is sharded")] = 1
    cp: Annotated[int, option(metavar="N", help="context-parallel degree")] = 1
    ep: Annotated[int, option(metavar="N", help="expert-parallel degree")] = 1
    microbatches: Annotated[int, option(metavar="M", help="microbatches per step and replica")] = 1
    shard_group: Annotated[
        int | None, option(metavar="N", help="replicas that share one copy (HSDP); all of them where left out")
    ] = None
    power_cap: Annotated[
        float | None, option(metavar="W", help="power cap of each chip; its own limit where left out")
    ] = None
    least_return: Annotated[
        float, option(metavar="SHARE", help="what a worthwhile chip returns of one on the fewest chips")
    ] = 0.5
    fit: FitName = "default"
    framework: Annotated[
        str | None, option(metavar="NAME", help="software that will run it; `pytorch-fsdp` where left out")
    ] = None

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown name or fit, a number out of range, a layout without room, a figure that cannot be
                written.
        """
        import jaxscale as js
        from jaxscale.cli.arguments import software_cells
        from jaxscale.trends import deployment_library as library
        from jaxscale.trends import trends_report as report
        from jaxscale.trends.layout import UNLIMITED

        n = report.chip_range(self.lowest, self.highest)
        model = load_model(self.model, self.seq_len)
        if number(model.n_heads) % checked_count("--tp", self.tp):
            raise InputError(f"--tp = {self.tp} must divide the {number(model.n_heads):g} heads of {self.model}")
        together = None if self.global_batch is None else float(checked_batch(self.global_batch, model.seq_len))
        batch = report.batch_of(self.sequences_per_chip, together)
        hardware = js.load_hardware(self.hardware)
        fitted = js.load_fit(self.fit, hardware)
        cells = software_cells(
            self,
            fitted,
            model,
            otherwise=library.published_framework(),
            own=DEGREES,
            unused=("dp", "micro_batch_size", *KEPT),
        )
        # A pipeline shards the optimizer alone.
        layout = self._layout(round(cells.pop("zero_stage", 3 if self.pp == 1 else 1)))
        report.check_layout(layout, batch, n)
        check_pictures(self.plot, self.report, self.fit, self.hardware)
        setup = library.deployment(
            model,
            self.gpu,
            framework=cells["framework"],
            cells=cells,
            fit=fitted,
            hardware=hardware,
            power_cap=UNLIMITED if self.power_cap is None else self.power_cap,
        )
        stage("computing the trend and its intervals")
        trend = report.trend(setup, layout, batch, n, self.least_return)
        if short := report.memory_line(setup, trend):
            say(short)
        answer(
            self.json,
            lambda: report.document(trend),
            lambda: (report.trend_table(trend), report.last_chip_line(trend)),
        )
        title = f"What more chips return: {self.model} on {self.gpu}"
        save_pictures(
            self.plot,
            self.report,
            lambda: report.trends_figure(trend),
            lambda: report.trends_summary(setup, trend, title),
        )

    def _layout(self, zero_stage: int) -> "ParallelLayout":
        from jaxscale.trends.layout import UNLIMITED, ParallelLayout

        degrees = {name: checked_count(f"--{name}", getattr(self, name)) for name in ("tp", "pp", "cp", "ep")}
        return ParallelLayout(
            **degrees,
            n_microbatches=checked_count("--microbatches", self.microbatches),
            shard_group=UNLIMITED if self.shard_group is None else checked_count("--shard-group", self.shard_group),
            zero_stage=zero_stage,
        )
