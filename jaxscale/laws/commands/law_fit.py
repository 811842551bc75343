"""`jaxscale law fit` and `jaxscale law compare`: laws of loss from a table of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import Json, PlotFile, Quiet, ReportFolder, Words, checked_count, every_value, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, say
from jaxscale.laws.commands.law_arguments import PriorName, Source, prior_name


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
        """Run the command.

        Raises:
            InputError: a malformed table, an unknown word, or an output that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.laws.fitting.backtest import checked_law
        from jaxscale.laws.fitting.law_store import law_document, save_law
        from jaxscale.laws.fitting.loss_fit import fit_law
        from jaxscale.laws.law_report import law_report
        from jaxscale.laws.law_tables import law_summary
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
        """Run the command.

        Raises:
            InputError: a malformed table or an unknown word.
        """
        from jaxscale.laws.fitting.comparison import compare_forms
        from jaxscale.laws.fitting.loss_forms import FORMS
        from jaxscale.laws.law_tables import comparison_table

        table = self.source.losses()
        forms = every_value(self.forms) or tuple(FORMS)
        rows = compare_forms(table, forms, every_value(self.terms), prior=prior_name(self.prior), progress=say)
        answer(
            self.json,
            lambda: {"n": len(table), "forms": [row._asdict() for row in rows]},
            lambda: [comparison_table(rows)],
        )
