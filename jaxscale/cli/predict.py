"""Command `jaxscale predict`: step time, memory and cost terms for every row of a runs table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import (
    FitName,
    OptionalModel,
    Outputs,
    SequenceLength,
    SkipBad,
    SoftwareOptions,
    Texts,
    TimelineFile,
    checked_framework,
    command,
    option,
    pairs,
)
from jaxscale.cli.console import answer, check_pictures, save_pictures, save_timeline, say, stage

if TYPE_CHECKING:
    from jaxscale.base.table import Table
    from jaxscale.hardware.catalogue import Hardware
    from jaxscale.runs import Runs
    from jaxscale.runs.predict import Prediction


@command
class PredictCommand(Outputs, SoftwareOptions):
    """Predict step time and memory for every row of a runs table, or for one run that options describe.

    Measured columns of the table are never read to make a prediction; predictions are compared with them. Open degrees,
    microbatch or batch of a run are those of the fastest plan that fits.
    """

    runs: Annotated[tyro.conf.Positional[Path | None], option(metavar="RUNS.csv", help="runs table")] = None
    model: OptionalModel = None
    gpu: Annotated[str | None, option(metavar="ID", help="chip of one run; see `jaxscale hardware`")] = None
    n_gpus: Annotated[int | None, option(metavar="N", help="chips of one run")] = None
    global_batch: Annotated[
        str | None, option(metavar="B", help="sequences in a step of one run, or tokens: `4M tokens`")
    ] = None
    seq_len: SequenceLength = None
    set: Annotated[
        Texts,
        option(metavar="COLUMN=VALUE", help="any other column of one run, as tp=2 or fused_norm=no"),
    ] = ()
    fit: FitName = "default"
    out: Annotated[
        Path | None, option(metavar="OUT.csv", help="table to write: all input columns and the predictions")
    ] = None
    skip_bad: SkipBad = False
    timeline: TimelineFile = None

    def run(self) -> None:
        """Predict the runs, write the requested files, and print predictions and errors.

        Raises:
            InputError: a malformed table or hardware file, an unknown fit, or an output that cannot be written.
        """
        import numpy as np

        import jaxscale as js
        from jaxscale.base.files import check_writable
        from jaxscale.cli.runs_tables import predictions_as_json, say_unanswered, write_predictions
        from jaxscale.runs.measured import describe_runs, measured_of
        from jaxscale.runs.predict import predict_open

        if self.out is not None:
            check_writable(self.out, self.runs, self.fit, self.hardware)
        check_pictures(self.plot, self.report, self.runs, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        runs = self._one_run(hardware) if self.runs is None else self._table(hardware)
        if self.timeline is not None:
            check_writable(self.timeline, self.runs, self.fit, self.hardware)
            if len(runs) != 1:
                raise InputError(f"--timeline shows one run; found {len(runs):,} rows")
        stage(f"predicting {len(runs):,} rows" if len(runs) > 1 else "predicting")
        described = describe_runs(runs, hardware)
        prediction = predict_open(runs, described, js.load_fit(self.fit, hardware), hardware)
        errors = prediction.errors()
        # nan > 0 is false: rows without a prediction do not count.
        answered = int((prediction.step_time > 0).sum())
        say_unanswered(len(runs), answered)
        if self.out is not None:
            write_predictions(self.out, runs, prediction)
            say(f"wrote {self.out}")
        # Rows of traced workloads have no model whose flops a doubt could be based on.
        if errors["n"] and not self.json and np.isfinite(prediction.measured[described.index]).any():
            from jaxscale.runs.table_checks import tell_doubts

            tell_doubts(runs, *measured_of(runs, described), say)
        counts = {"n_rows": len(runs), "n_predicted": answered, "n_skipped": runs.n_skipped}
        answer(
            self.json,
            lambda: {"predictions": predictions_as_json(prediction), **counts, **errors},
            lambda: self._printed(runs, prediction, errors),
        )
        if self.plot or self.report:
            self._draw(runs, prediction)
        save_timeline(self.timeline, lambda: self._run_of(prediction, hardware))

    def _printed(self, runs: "Runs", prediction: "Prediction", errors: dict[str, Any]) -> "list[str | Table]":
        """Texts for a terminal: the predictions where no table is written, and the errors of measured rows."""
        from jaxscale.report.terminal_tables import error_summary, note_lines, prediction_rows

        is_table = self.runs is not None
        texts: list[str | Table] = []
        if self.out is None:
            texts.append(prediction_rows(runs, prediction, has_lines=is_table))
            texts += [] if is_table else note_lines(prediction)
        if errors["n"]:
            texts.append(error_summary(errors))
        return texts

    def _run_of(self, prediction: "Prediction", hardware: "Hardware") -> tuple[Any, ...]:
        """Model, plan, cluster and coefficients of the predicted run.

        Raises:
            InputError: there is no prediction, or none of a transformer.
        """
        import jax

        import jaxscale as js
        from jaxscale.runs.measured import describe_runs

        described = describe_runs(prediction.runs, hardware)
        if described.batch is None:
            raise InputError(f"--timeline: no plan to show; {prediction.notes[0] or 'expected a transformer'}")
        table, place = js.load_fit(self.fit, hardware).coefficient_table(described.levels)
        # The batch has a single run.
        run = jax.tree.map(lambda leaf: leaf[0], described.batch)
        return run.model, run.plan, run.cluster, jax.tree.map(lambda leaf: leaf[place[0]], table)

    def _draw(self, runs: "Runs", prediction: "Prediction") -> None:
        """Draw the figure and the report that are asked for."""
        from jaxscale.report.reports import prediction_figure, prediction_report

        title = (
            f"{self.model} on {self.n_gpus} {self.gpu}" if self.runs is None else f"Predictions for {self.runs.name}"
        )
        save_pictures(
            self.plot,
            self.report,
            lambda: prediction_figure(runs, prediction, title),
            lambda: prediction_report(runs, prediction, title),
        )

    def _table(self, hardware: "Hardware") -> "Runs":
        """Table of runs, from a file or from options."""
        from jaxscale.cli.runs_tables import runs_from_file

        assert self.runs is not None
        options = ("model", "gpu", "n_gpus", "global_batch", "seq_len", "framework", "precision", "set")
        given = [name for name in options if getattr(self, name)]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise InputError(f"{option} describes a run without a table; expected {option} or {self.runs}, not both")
        return runs_from_file(self.runs, self.skip_bad, hardware)

    def _one_run(self, hardware: "Hardware") -> "Runs":
        """The run that the options describe."""
        import jaxscale as js
        from jaxscale.cli.runs_tables import one_run

        missing = [name for name in ("model", "gpu", "n_gpus") if getattr(self, name) is None]
        if missing:
            options = ", ".join("--" + name.replace("_", "-") for name in missing)
            raise InputError(f"no table and no {options}; expected RUNS.csv, or --model, --gpu and --n-gpus at least")
        named = ("model", "gpu", "n_gpus", "seq_len", "framework", "precision")
        options = {name: getattr(self, name) for name in named} | {"global_batch_size_seqs": self.global_batch}
        stated, fitted = pairs("--set", self.set), js.load_fit(self.fit, hardware)
        for framework in (self.framework, stated.get("framework")):
            checked_framework(framework, fitted)
        return one_run(options, stated, hardware)
