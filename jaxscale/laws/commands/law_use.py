"""`jaxscale law predict` and `jaxscale law optimum`: what a fitted law says."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    HardwareFile,
    Json,
    Numbers,
    PlotFile,
    Quiet,
    ReportFolder,
    checked_count,
    every_value,
    option,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say
from jaxscale.laws.commands.law_arguments import LawFile

if TYPE_CHECKING:
    from jaxscale.designs.law_designs import LawDesign
    from jaxscale.laws.fitting.fitted_law import FittedLaw

PREDICTED = ("predicted_loss", "predicted_loss_lo", "predicted_loss_hi")
"""Columns that `law predict` adds: the loss and its 90 % interval [nat per token]."""


@dataclass(frozen=True)
class LawPredict:
    """Predict the loss of each run of a table, with 90 % intervals; a column of losses is not read for it."""

    law: LawFile
    points: Annotated[tyro.conf.Positional[Path], option(metavar="POINTS.csv", help="table with n_params and tokens")]
    out: Annotated[
        Path | None, option(metavar="OUT.csv", help="table to write: all input columns and the predictions")
    ] = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed law or table, another count of parameters, or an output that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.laws.fitting.law_store import load_law
        from jaxscale.laws.law_tables import prediction_table
        from jaxscale.laws.losses.loss_checks import check_needed
        from jaxscale.laws.losses.loss_reader import read_losses, with_count
        from jaxscale.tables.writer import write_extended

        if self.out is not None:
            check_writable(self.out, self.law, self.points)
        law = load_law(self.law)
        table = read_losses(self.points, needs_loss=False)
        if law.count and table.count and table.count != law.count:
            table = with_count(table, law.count)
        check_needed(table, law.terms)
        for note in table.notes:
            say(note)
        told = law.predict_table(table)
        columns: dict[str, Any] = dict(zip(PREDICTED, (told.loss, told.lo, told.hi), strict=True))
        far = float(told.decades.max())
        if far > 1.0:
            say(f"the farthest point is {far:.1f} decades outside the fitted range: intervals widen with each decade")
        if self.out is not None:
            written = {table.headings[name]: cells for name, cells in table.texts().items()}
            write_extended(self.out, written, columns)
            say(f"wrote {self.out}")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        answer(
            self.json,
            lambda: {"n": len(table), "predictions": rows},
            lambda: [prediction_table(table, told)] if self.out is None else [],
        )


USUAL_FLOP = (1e21, 1e22, 1e23, 1e24, 1e25)
"""Training flop of the optima where neither flop nor days are asked for [flop]."""


@dataclass(frozen=True)
class LawOptimal:
    """Find the parameters and tokens of least loss for a training compute, or the best design for a time on chips."""

    law: LawFile
    flop: Annotated[Numbers, option(metavar="T", help="training flop 6 N D, one or several")] = ()
    days: Annotated[Numbers, option(metavar="D", help="days on the chips of --gpu, one or several: time-optimal")] = ()
    gpu: Annotated[str | None, option(metavar="ID", help="chip; see `jaxscale hardware`")] = None
    n_gpus: Annotated[int | None, option(metavar="N", help="chips")] = None
    model: Annotated[str, option(metavar="NAME|FILE", help="template of the designs, whose proportions are kept")] = (
        "llama3-8b"
    )
    draws: Annotated[int, option(metavar="N", help="drawn laws under which a design is chosen again")] = 4
    fit: FitName = "default"
    plot: PlotFile = None
    report: ReportFolder = None
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed law, a compute or time out of range, days without chips, or no design that fits.
        """
        from jaxscale.laws.fitting.law_store import load_law
        from jaxscale.laws.law_report import optimum_report
        from jaxscale.laws.law_tables import law_choice_table, optimum_table
        from jaxscale.report.figures.loss_optima import optima_against_compute

        given, days = every_value(self.flop), every_value(self.days)
        bad = [value for value in given if not 1.0 < value < 1e40]
        if bad:
            raise InputError(f"--flop = {bad[0]:g} is out of range; expected above 1, below 1e40")
        if bool(days) != (self.gpu is not None and self.n_gpus is not None):
            raise InputError("--days, --gpu and --n-gpus go together; expected all of them or none")
        check_pictures(self.plot, self.report, self.law, self.fit, self.hardware)
        law = load_law(self.law)
        designs = {f"{one:g} days": self._design(law, one) for one in days}
        flop = given or tuple(design.flop for design in designs.values()) or USUAL_FLOP
        optima = [law.optimum(value) for value in flop]
        entries = [{"days": time, **one.to_json()} for time, one in zip(days, designs.values(), strict=True)]
        tables = [optimum_table(optima)]
        for told, entry in zip(designs, entries, strict=True):
            tables += [f"{told} on {self.n_gpus} {self.gpu}", law_choice_table(entry)]
        answer(
            self.json,
            lambda: {"count": law.count, "optima": [optimum_entry(one) for one in optima], "designs": entries},
            lambda: tables,
        )
        title = f"Optimal runs under {self.law.name}"
        save_pictures(
            self.plot,
            self.report,
            lambda: optima_against_compute(law, designs),
            lambda: optimum_report(law, optima, designs, title),
        )

    def _design(self, law: "FittedLaw", days: float) -> "LawDesign":
        """The best design of a time on the chips."""
        from jaxscale.designs.budgets import Budget
        from jaxscale.designs.law_designs import law_design
        from jaxscale.hardware.catalogue import cluster, load_hardware

        assert self.gpu is not None and self.n_gpus is not None
        chips, n_gpus = load_hardware(self.hardware), checked_count("--n-gpus", self.n_gpus)
        say(f"searching the best design of {days:g} days on {n_gpus} {self.gpu}")
        return law_design(
            law,
            Budget(days=days),
            cluster(self.gpu, n_gpus, hardware=chips),
            fit=self.fit,
            levels={"gpu": chips[self.gpu].id, "precision": "bf16"},
            template=self.model,
            n_draws=self.draws,
            progress=say,
        )


def optimum_entry(one: "object") -> dict[str, object]:
    """An optimum as JSON: value, lo and hi of each quantity."""
    from jaxscale.laws.fitting.fitted_law import LawOptimum

    assert isinstance(one, LawOptimum)
    names = ("value", "lo", "hi")
    parts = {name: dict(zip(names, getattr(one, name), strict=True)) for name in ("n_params", "n_tokens", "loss")}
    return {"flop": one.flop, **parts}
