"""Commands `jaxscale law fit|predict|optimum|compare`: laws of the loss."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    Json,
    Numbers,
    Outputs,
    PlotFile,
    Quiet,
    ReportFolder,
    Texts,
    Words,
    checked_count,
    command,
    every_value,
    option,
    pairs,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, say

if TYPE_CHECKING:
    from jaxscale.designs.law_designs import LawDesign
    from jaxscale.laws.fitted_law import FittedLaw
    from jaxscale.laws.loss_reader import Losses


LawFile = Annotated[tyro.conf.Positional[Path], option(metavar="LAW.toml", help="law that `law fit` wrote")]

PriorName = Annotated[str, option(metavar="shipped|none", help="what other sources show, or the data alone")]


@dataclass(frozen=True)
class Source:
    """Options that select the runs for a fit: a file or a shipped table, and a subset of the rows."""

    runs: Annotated[tyro.conf.Positional[Path | None], option(metavar="RUNS.csv", help="table of losses")] = None
    table: Annotated[str | None, option(metavar="NAME", help="shipped table in place of a file, such as gemstones")] = (
        None
    )
    where: Annotated[
        Texts,
        option(metavar="COLUMN=VALUE", help="keep the rows whose cells are equal to these"),
    ] = ()
    best: Annotated[
        bool,
        option(help="keep the least loss of each pair of n_params and tokens: the best of a sweep"),
    ] = False
    count: Annotated[
        str, option(metavar="KIND", help="parameters as total, non-embedding or active, where a row states both")
    ] = ""

    @property
    def name(self) -> str:
        """Name of the table or of the file."""
        return self.table or (self.runs.name if self.runs else "")

    def losses(self) -> "Losses":
        """Table of losses of the selected runs.

        Raises:
            InputError: neither or both of file and table are given, or the file is malformed.
        """
        from jaxscale.cli.runs_tables import say_doubts
        from jaxscale.laws.loss_reader import best_of, loss_table, read_losses

        if (self.runs is None) == (self.table is None):
            raise InputError("give a file RUNS.csv or --table NAME; expected exactly one of them")
        if self.table is not None:
            if self.where:
                raise InputError("--where does not go with --table; expected a file RUNS.csv")
            table = loss_table(self.table, self.count)
        else:
            assert self.runs is not None
            table = read_losses(self.runs, count=self.count, where=pairs("--where", self.where, may_be_empty=True))
            say_doubts(table)
        return best_of(table, ("n_params", "tokens")) if self.best else table


def prior_name(text: str) -> str | None:
    """Name of the prior for `fit_law` from option `--prior`; None for `none`.

    Raises:
        InputError: an unknown name.
    """
    if text not in ("shipped", "none"):
        raise InputError(f"--prior {text!r} is unknown; expected shipped or none")
    return None if text == "none" else text


@dataclass(frozen=True)
class LawFit:
    """Fit a law of loss to runs, with intervals, and test it on the runs' own upper decade."""

    source: Annotated[Source, tyro.conf.arg(name="")]
    out: Annotated[
        Path | None, option(metavar="LAW.toml", help="file to write; `law predict` and `shape --law` read it")
    ] = None
    form: Annotated[str, option(metavar="joint|additive|tied|kaplan", help="form of the law")] = "joint"
    terms: Annotated[Words, option(metavar="TERM", help="of shape, batch, repetition and experts")] = ()
    prior: PriorName = "shipped"
    likelihood: Annotated[
        str, option(metavar="student|huber", help="robust likelihood; huber as in Hoffmann et al. 2022")
    ] = "student"
    cluster: Annotated[str, option(metavar="auto|rows|COLUMN", help="rows that are drawn together: runs or shapes")] = (
        "auto"
    )
    draws: Annotated[int, option(metavar="N", help="resampled fits")] = 200
    plot: PlotFile = None
    report: ReportFolder = None
    seed: Annotated[int, option(metavar="N", help="of the draws")] = 0
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Fit and test the law, write the requested files, and print a summary.

        Raises:
            InputError: a malformed table, an unknown word, or an output that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.laws.backtest import checked_law
        from jaxscale.laws.fitted_law import law_document, save_law
        from jaxscale.laws.law_report import law_report, law_summary
        from jaxscale.laws.loss_fit import fit_law
        from jaxscale.report.figures.loss_laws import loss_against_compute

        checked_count("--draws", self.draws)
        if self.out is not None:
            if self.out.suffix != ".toml":
                raise InputError(f"--out = {str(self.out)!r} is not the name of a law; expected one that ends in .toml")
            check_writable(self.out, self.source.runs)
        check_pictures(self.plot, self.report, self.source.runs)
        law = fit_law(
            self.source.losses(),
            self.form,
            every_value(self.terms),
            prior=prior_name(self.prior),
            cluster=self.cluster,
            likelihood=self.likelihood,
            n_draws=self.draws,
            seed=self.seed,
            progress=say,
        )
        law = checked_law(law, progress=say)
        for doubt in law.warnings:
            say(f"warning: {doubt}")
        if self.out is not None:
            save_law(law, self.out)
            say(f"wrote {self.out}")
        answer(self.json, lambda: law_document(law), lambda: law_summary(law))
        title = f"Law of loss of {self.source.name}"
        save_pictures(self.plot, self.report, lambda: loss_against_compute(law), lambda: law_report(law, title))


@dataclass(frozen=True)
class LawCompare:
    """Compare forms of the law by how well each predicts the runs' own upper decade."""

    source: Annotated[Source, tyro.conf.arg(name="")]
    forms: Annotated[Words, option(metavar="FORM", help="forms to compare, all of them where left out")] = ()
    terms: Annotated[Words, option(metavar="TERM", help="terms of every form")] = ()
    prior: PriorName = "shipped"
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Compare the forms, and print scores.

        Raises:
            InputError: a malformed table or an unknown word.
        """
        from jaxscale.laws.backtest import compare_forms
        from jaxscale.laws.law_report import comparison_table
        from jaxscale.laws.loss_forms import FORMS

        table = self.source.losses()
        forms = every_value(self.forms) or tuple(FORMS)
        rows = compare_forms(table, forms, every_value(self.terms), prior=prior_name(self.prior), progress=say)
        answer(
            self.json,
            lambda: {"n": len(table), "forms": [row._asdict() for row in rows]},
            lambda: [comparison_table(rows)],
        )


PREDICTED = ("predicted_loss", "predicted_loss_lo", "predicted_loss_hi")
"""Columns added by `law predict`: the loss and the 90 % interval [nat per token]."""


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
        """Predict the losses, write the table, and print the predictions.

        Raises:
            InputError: a malformed law or table, a different parameter count, or an output that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.cli.runs_tables import say_doubts
        from jaxscale.laws.fitted_law import load_law
        from jaxscale.laws.law_report import prediction_table
        from jaxscale.laws.loss_fit import check_needed
        from jaxscale.laws.loss_reader import read_losses, with_count
        from jaxscale.tables.table import write_extended

        if self.out is not None:
            check_writable(self.out, self.law, self.points)
        law = load_law(self.law)
        table = read_losses(self.points, needs_loss=False)
        # Laws hold for a single count of parameters.
        if law.count and table.count and table.count != law.count:
            table = with_count(table, law.count)
        check_needed(table, law.terms)
        say_doubts(table)
        for note in table.notes:
            say(note)
        told = law.predict_table(table)
        columns: dict[str, Any] = dict(zip(PREDICTED, (told.loss, told.lo, told.hi), strict=True))
        far = float(told.decades.max())
        if far > 1.0:
            say(f"the farthest point is {far:.1f} decades outside the fitted range: intervals widen with each decade")
        if self.out is not None:
            # Columns keep the headings of the file.
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
"""Training flop of the optima if neither flop nor days are given [flop]."""


@command
class LawOptimal(Outputs):
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

    def run(self) -> None:
        """Compute the optima, write the requested files, and print tables.

        Raises:
            InputError: a malformed law, a compute or time out of range, days without chips, or no design that fits.
        """
        from jaxscale.laws.fitted_law import load_law
        from jaxscale.laws.law_report import law_choice_table, optimum_report, optimum_table
        from jaxscale.report.figures.loss_laws import optima_against_compute

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
        """Best design for a time on the chips."""
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
    """JSON entry of a compute-optimal run: value, lo and hi of each quantity."""
    from jaxscale.laws.fitted_law import LawOptimum

    assert isinstance(one, LawOptimum)
    names = ("value", "lo", "hi")
    parts = {name: dict(zip(names, getattr(one, name), strict=True)) for name in ("n_params", "n_tokens", "loss")}
    return {"flop": one.flop, **parts}


AnyLawCommand = (
    Annotated[LawFit, tyro.conf.subcommand("fit")]
    | Annotated[LawPredict, tyro.conf.subcommand("predict")]
    | Annotated[LawOptimal, tyro.conf.subcommand("optimum")]
    | Annotated[LawCompare, tyro.conf.subcommand("compare")]
)


@dataclass(frozen=True)
class LawCommand:
    """Fit laws of loss to runs, predict losses, find compute-optimal sizes, compare forms."""

    action: Annotated[AnyLawCommand, tyro.conf.arg(name="")]

    def run(self) -> None:
        """Run the chosen subcommand.

        Raises:
            InputError: as the chosen subcommand.
        """
        self.action.run()
