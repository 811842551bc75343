"""`jaxscale serving predict|fit|plan`: latency, throughput and memory of serving, its calibration, and engines."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import Outputs, SkipBad, checked_count, command, framework_among, option
from jaxscale.cli.console import answer, check_pictures, save_pictures, say, stage

if TYPE_CHECKING:
    from jaxscale.runs.schema import Runs
    from jaxscale.serving.serving_predict import ServingPrediction


SLOWEST_TOKEN = 10.0
"""Limit of the time per token that no engine comes near: a number of milliseconds [s]."""

FitOption = Annotated[str, option(metavar="NAME|FIT.toml", help="calibration: `default`, `prior` for none, or a file")]


@command
class ServingPlan(Outputs):
    """Choose degrees, copies, batch, format and split that answer most tokens per chip under limits of latency."""

    model: Annotated[str, option(metavar="NAME", help="model of the catalogue, TOML file or config.json")]
    gpu: Annotated[str, option(metavar="ID", help="chip of the catalogue")]
    n_gpus: Annotated[int, option(metavar="N", help="chips at hand")]
    input_len: Annotated[int, option(metavar="S", help="tokens of a prompt")]
    output_len: Annotated[int, option(metavar="S", help="tokens of an answer")]
    tpot: Annotated[float | None, option(metavar="SECONDS", help="largest time per token")] = None
    ttft: Annotated[float | None, option(metavar="SECONDS", help="largest time to the first token")] = None
    framework: Annotated[str, option(metavar="NAME", help="serving framework")] = "vllm"
    precision: Annotated[str, option(metavar="FORMAT[,FORMAT]", help="formats of the weights that may be used")] = (
        "bf16"
    )
    dollars_per_gpu_hour: Annotated[float | None, option(metavar="DOLLAR", help="price of a chip")] = None
    top: Annotated[int, option(metavar="N", help="engines to list")] = 5
    fit: FitOption = "default"

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: an unknown model, chip, format or fit, a value out of range, or no engine that keeps the limits.
        """
        import jaxscale as js
        from jaxscale.serving.serving_figures import serving_frontier
        from jaxscale.serving.serving_report import engine_report, serving_engine_table

        for flag, value in (("--n-gpus", self.n_gpus), ("--top", self.top)):
            checked_count(flag, value)
        if self.dollars_per_gpu_hour is not None and not self.dollars_per_gpu_hour > 0.0:
            raise InputError(
                f"--dollars-per-gpu-hour = {self.dollars_per_gpu_hour:g} is out of range; expected above 0"
            )
        if self.tpot is not None and self.tpot > SLOWEST_TOKEN:
            raise InputError(f"--tpot = {self.tpot:g} s a token holds no engine back; expected seconds, as 0.05")
        check_pictures(self.plot, self.report, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        chip = hardware[self.gpu].id
        model, cluster = js.model(self.model), js.cluster(self.gpu, self.n_gpus, hardware=hardware)
        framework = framework_among("--framework", self.framework, js.serving.load_serving_fit(self.fit).frameworks)
        levels = js.serving.stack_levels(framework, chip, model, name=self.model, hardware=hardware)
        stage("scoring engines")
        choice = js.serving.best_serving_plan(
            model,
            cluster,
            self.input_len,
            self.output_len,
            tpot_limit=self.tpot,
            ttft_limit=self.ttft,
            fit=self.fit,
            levels=levels,
            space=js.serving.ServingSpace(precisions=tuple(self.precision.split(","))),
            dollars_per_chip_hour=self.dollars_per_gpu_hour,
            top=self.top,
        )
        answer(self.json, choice.to_json, lambda: (serving_engine_table(choice), choice.price_line))
        stack = js.serving.load_serving_fit(self.fit).coefficients(**levels)
        limits = {name: value for name, value in (("tpot", self.tpot), ("ttft", self.ttft)) if value is not None}
        title = f"Serving {self.model} on {self.n_gpus} {chip}"
        save_pictures(
            self.plot,
            self.report,
            lambda: serving_frontier(choice, self.tpot),
            lambda: engine_report(choice, model, cluster, stack, title, limits),
        )


ServingTable = Annotated[tyro.conf.Positional[Path], option(metavar="TABLE.csv", help="serving table")]
ServingFitName = Annotated[
    str, option(metavar="NAME|FIT.toml", help="calibration: `default`, `prior` for none, or a file")
]


@command
class ServingPredict(Outputs):
    """Predict first token, time per token, throughput and memory for every row of a serving table.

    Measured columns are never read to make a prediction; where present, they are compared with the predictions.
    """

    table: ServingTable
    out: Annotated[Path | None, option(metavar="OUT.csv", help="table to write: all columns, predictions")] = None
    fit: ServingFitName = "default"
    skip_bad: SkipBad = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed table or hardware file, an unknown fit, or an output that cannot be written.
        """
        import jaxscale as js
        from jaxscale.base.files import check_writable
        from jaxscale.cli.runs_tables import say_doubts, say_unanswered
        from jaxscale.serving.serving_report import serving_error_table, serving_rows_table
        from jaxscale.tables.table import write_extended

        if self.out is not None:
            check_writable(self.out, self.table, self.fit, self.hardware)
        check_pictures(self.plot, self.report, self.table, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        runs = js.serving.read_serving(self.table, skip_bad=self.skip_bad, hardware=hardware)
        say_doubts(runs)
        stage(f"predicting {len(runs):,} rows" if len(runs) > 1 else "predicting")
        prediction = js.serving.predict_serving(runs, self.fit, hardware)
        answered = int((prediction.values["tpot_s"] > 0).sum())
        say_unanswered(len(runs), answered)
        columns = prediction.columns()
        if self.out is not None:
            write_extended(self.out, runs.texts(), columns)
            say(f"wrote {self.out}")
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        errors = prediction.errors(runs)
        counts = {"n_rows": len(runs), "n_predicted": answered, "n_skipped": runs.n_skipped}
        answer(
            self.json,
            lambda: {**counts, "errors": errors, "predictions": rows},
            lambda: (
                f"{answered} of {len(runs)} rows predicted",
                *([serving_rows_table(runs, prediction)] if self.out is None else []),
                *([serving_error_table(errors)] if errors else []),
            ),
        )
        draw(self.plot, self.report, runs, prediction, f"Predictions for {self.table.name}")


@command
class ServingFitCommand(Outputs):
    """Fit serving stacks to a table of measured rows; ten rows of a new stack are enough."""

    table: ServingTable
    out: Annotated[Path, option(metavar="FIT.toml", help="file to write; `serving predict --fit` reads it")]
    start: ServingFitName = "default"
    skip_bad: SkipBad = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed table or hardware file, an unknown start, or an output that cannot be written.
        """
        import jaxscale as js
        from jaxscale.base.files import check_writable
        from jaxscale.cli.runs_tables import say_doubts
        from jaxscale.serving.serving_report import serving_error_table

        check_writable(self.out, self.table, self.start, self.hardware)
        check_pictures(self.plot, self.report, self.table, self.start, self.hardware)
        if self.out.suffix != ".toml":
            raise InputError(f"--out = {str(self.out)!r} is not the name of a fit; expected one that ends in .toml")
        hardware = js.load_hardware(self.hardware)
        runs = js.serving.read_serving(self.table, skip_bad=self.skip_bad, hardware=hardware)
        say_doubts(runs)
        before = js.serving.predict_serving(runs, self.start, hardware).errors(runs)
        fit = js.serving.fit_serving(runs, self.start, name=self.out.stem, hardware=hardware, progress=say)
        fit.save(self.out)
        say(f"wrote {self.out}")
        prediction = js.serving.predict_serving(runs, fit, hardware)
        after = prediction.errors(runs)
        moments = (("before the fit", before), ("after the fit, in sample", after))
        answer(
            self.json,
            lambda: {"name": fit.name, "n_rows": len(runs), "errors_before": before, "errors_in_sample": after},
            lambda: [serving_error_table(errors, f", {when}") for when, errors in moments],
        )
        draw(self.plot, self.report, runs, prediction, f"Fit of {self.table.name}, in sample")


def draw(plot: Path | None, report: Path | None, runs: "Runs", prediction: "ServingPrediction", title: str) -> None:
    """Draw the requested figure and report of predictions."""
    from jaxscale.serving.serving_report import serving_errors, serving_figure

    save_pictures(
        plot,
        report,
        lambda: serving_figure(runs, prediction, title),
        lambda: serving_errors(runs, prediction, title),
    )


AnyServing = (
    Annotated[ServingPredict, tyro.conf.subcommand("predict", prefix_name=False)]
    | Annotated[ServingFitCommand, tyro.conf.subcommand("fit", prefix_name=False)]
    | Annotated[ServingPlan, tyro.conf.subcommand("plan", prefix_name=False)]
)


@dataclass(frozen=True)
class ServingCommand:
    """Serving: predict, fit, plan."""

    action: tyro.conf.OmitArgPrefixes[AnyServing]

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: as the action does.
        """
        self.action.run()
