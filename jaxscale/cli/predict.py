"""`jaxscale predict`: step time, memory and cost terms for every row of a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxscale.cli.arguments import FitName, HardwareFile, Json, RunsFile
from jaxscale.cli.console import emit_json, print_result, say


@dataclass(frozen=True)
class PredictCommand:
    """Predict step time and memory for every row of a runs table.

    Measured columns are never read to make a prediction; where they are there, the predictions are compared with them.
    """

    runs: RunsFile
    fit: FitName = "default"
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="OUT.csv", help="table to write: all input columns and the predictions")
    ] = None
    skip_bad: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="drop bad rows instead of refusing")] = (
        False
    )
    hardware: HardwareFile = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a malformed table or hardware file, an unknown fit, or an output that cannot be written.
        """
        import jaxscale as js
        from jaxscale.cli.runs_tables import predictions_as_json, runs_from_file, write_predictions
        from jaxscale.files import check_writable
        from jaxscale.predict import predict_described
        from jaxscale.report.terminal_tables import error_summary, prediction_rows
        from jaxscale.runs.measured import describe_runs, measured_of
        from jaxscale.runs.table_checks import tell_doubts

        if self.out is not None:
            check_writable(self.out, self.runs, self.fit, self.hardware)
        hardware = js.load_hardware(self.hardware)
        runs = runs_from_file(self.runs, self.skip_bad, hardware)
        described = describe_runs(runs, hardware)
        prediction = predict_described(runs, described, js.load_fit(self.fit))
        errors = prediction.errors()
        answered = int((prediction.step_time > 0).sum())
        if answered < len(runs):
            say(f"{len(runs) - answered} of {len(runs)} rows are incomplete and get no prediction: see predicted_note")
        if self.out is not None:
            write_predictions(self.out, runs, prediction)
            say(f"wrote {self.out}")
        if self.json:
            counts = {"n_rows": len(runs), "n_predicted": answered, "n_skipped": runs.n_skipped}
            emit_json({**errors, **counts, "predictions": predictions_as_json(prediction)})
            return
        if self.out is None:
            print_result(prediction_rows(runs, prediction))
        if errors["n"]:
            tell_doubts(runs, *measured_of(runs, described), say)
            print_result(error_summary(errors))
